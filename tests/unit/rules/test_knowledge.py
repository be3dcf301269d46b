"""The knowledge of causes is data: complete, checked entry by entry, and extended by files of users."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchglass.diagnose import diagnose
from watchglass.errors import InvalidValueError, MissingFileError
from watchglass.records import FAULT_KINDS, Finding, Mode, Severity
from watchglass.rules import Knowledge, built_in_knowledge, find_rule, load_knowledge, rule_names, symptoms_of

BUILT_IN = built_in_knowledge()

MINE = """
[causes.cold_coffee]
title = "the coffee is cold"
explanation = "Nobody looks at a training without coffee."
what_to_try = ["Make new coffee", "Buy a thermos"]
advice = ["Heat it from {temperature:.0f} degrees to {warmer:g}, says {barista}", "Heat it, says {barista}"]
leads_to = ["loss_flat", "sleep"]
source = "house"

[symptoms.cup_is_cold]
means = "the cup is cold"

[symptoms.nobody_there]
means = "nobody is there"
breaks = true

[symptoms.yawning]
means = "somebody yawns"

[groups]
sleep = ["yawning"]

[links]
cup_is_cold = { cold_coffee = 0.9, learning_rate_too_high = -0.2 }
gradient_growth = { cold_coffee = 0.1 }

[placeholders]
temperature = { kind = "number", means = "of the coffee" }
barista = { kind = "text", means = "who made it", otherwise = "nobody" }

[placeholders.warmer]
kind = "number"
means = "a better temperature"
scale = "temperature"
by = "temperature"
healthy = 60.0
decades = [1, 2]
"""


def finding(symptoms: tuple[str, ...], **evidence: object) -> Finding:
    return Finding(
        "0", "Mine", Severity.WARNING, 3, 3, 1, Mode.TRAIN, "worker_0", ("cup",), None, None, "a message",
        global_step=3, evidence={"symptoms": list(symptoms), **evidence},
    )  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


# ---------------------------------------------------------------- what is built in


def symptoms_in_source(tree: ast.AST) -> Iterator[str]:
    """Symptoms that a rule's source names: what is passed as symptoms, what is called so, and what feeds both."""
    for node in ast.walk(tree):
        texts: list[ast.AST] = []
        if isinstance(node, ast.keyword) and node.arg in ("symptom", "symptoms"):
            texts = [node.value]
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id.lower() for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            if any("symptom" in name for name in names) and node.value is not None:
                texts = node.value.values if isinstance(node.value, ast.Dict) else [node.value]
        elif isinstance(node, ast.FunctionDef) and (
            node.name in ("_before", "_half") or node.name.lstrip("_").startswith("symptom")
        ):
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            # `Culprit(where, name, module, type, sentence, symptoms)`, and `_finding(..., symptom)`.
            texts = list(node.args[5:6]) if name == "Culprit" else []
            if name == "append" and "symptom" in ast.unparse(node.func):
                texts = list(node.args)
            if name in ("_finding", "_Found", "Mistake"):
                texts = [each for each in node.args if isinstance(each, ast.Constant)]
        for each in texts:
            for leaf in _results(each):
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    yield leaf.value


def _results(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression may give, without the conditions that choose."""
    if isinstance(node, ast.IfExp):
        yield from _results(node.body)
        yield from _results(node.orelse)
    elif isinstance(node, (ast.Tuple, ast.List)):
        for each in node.elts:
            yield from _results(each.value if isinstance(each, ast.Starred) else each)
    else:
        yield node


def test_every_symptom_that_a_rule_names_is_known(repository: Path) -> None:
    found: dict[str, set[str]] = {}
    for path in (repository / "src" / "watchglass" / "rules").rglob("*.py"):
        found[str(path)] = set(symptoms_in_source(ast.parse(path.read_text())))
    # Subjects, severities and messages of findings are passed beside symptoms: these are no symptoms.
    named = {name for names in found.values() for name in names if re.fullmatch(r"[a-z]+(_[a-z]+)+", name)}
    assert named <= set(BUILT_IN.symptoms)
    # Kinds of faults of operations are symptoms as they are.
    silent = set(BUILT_IN.symptoms) - named - set(FAULT_KINDS)
    assert silent == set(), "symptoms that no rule reports"


def test_symptoms_of_time_and_machine_are_those_of_the_rules_about_them() -> None:
    """Else a diagnosis would say that they follow from values that became NaN before."""
    of_machine = {symptom for name in rule_names("system") for symptom in symptoms_of(find_rule(name))}
    assert {symptom.id for symptom in BUILT_IN.symptoms.values() if symptom.machine} == of_machine


def test_every_cause_is_the_first_one_of_some_symptoms() -> None:
    each = [BUILT_IN, built_in_knowledge(trees=True)]
    likely = [knowledge.likely([symptom]) for knowledge in each for symptom in BUILT_IN.symptoms]
    assert {causes[0] for causes in likely if causes} == set(BUILT_IN.causes)


def test_every_entry_is_complete() -> None:
    for name, cause in BUILT_IN.causes.items():
        assert cause.id == name
        assert cause.title[0].islower()
        assert not cause.title.endswith(".")
        assert cause.explanation.endswith(".")
        assert all(text[0].isupper() and not text.endswith(".") for text in cause.what_to_try)
    for symptom in BUILT_IN.symptoms.values():
        assert not symptom.means.endswith(".")
        assert symptom.id in BUILT_IN.links
    assert all(-1 < link.weight < 1 and link.weight for link in BUILT_IN.all_links())
    assert {link.cause for link in load_knowledge().all_links()} == set(BUILT_IN.causes)
    assert set().union(*BUILT_IN.consequences.values()) <= set(BUILT_IN.symptoms)
    assert BUILT_IN.breaks(["rose_before", "nonfinite_loss"])
    assert not BUILT_IN.breaks(["rose_before", "gradient_growth", "nonfinite_validation"])


@pytest.mark.parametrize("cause", [cause for cause, templates in BUILT_IN.advice.items() for _ in templates])
def test_every_template_is_filled_from_its_placeholders_and_left_out_without(cause: str) -> None:
    values = {
        name: 0.5 if placeholder.is_number else f"<{name}>"
        for name, placeholder in BUILT_IN.placeholders.items()
        if not placeholder.sources
    }
    # A number that asks for the opposite of an advice leaves it out.
    values["update_ratio"] = 1e-6 if cause == "learning_rate_too_low" else 0.5
    for template in BUILT_IN.advice[cause]:
        said = template.fill(BUILT_IN.placeholders, values)
        assert said is not None
        assert "{" not in said
        assert all(f"<{name}>" in said for name in template.names if f"<{name}>" in map(str, values.values()))
        needed = [name for name in template.names if BUILT_IN.placeholders[name].otherwise is None]
        assert needed, "a template without numbers is general advice"
        assert template.fill(BUILT_IN.placeholders, {}) is None


def test_used_placeholders_are_the_declared_ones() -> None:
    used = {name for templates in BUILT_IN.advice.values() for template in templates for name in template.names}
    used |= {source for placeholder in BUILT_IN.placeholders.values() for source in placeholder.sources}
    assert set(BUILT_IN.placeholders) == used


def test_symptoms_add_up_and_count_once() -> None:
    one = BUILT_IN.support(["gradient_growth"])
    two = BUILT_IN.support(["gradient_growth", "loss_diverged", "gradient_growth"])
    assert two["learning_rate_too_high"] > one["learning_rate_too_high"]
    assert BUILT_IN.support(["gradient_growth"] * 3) == one
    assert BUILT_IN.support(["of a custom rule"]) == {}
    assert BUILT_IN.likely(["nonfinite_loss_only", "calm_before"])[0] == "overflow_in_loss"
    assert BUILT_IN.likely(["nonfinite_loss_only", "rose_before"])[0] == "learning_rate_too_high"


def test_named_causes_weigh_less_and_less() -> None:
    odds = list(BUILT_IN.named(["a", "b", "c", "d"]).items())
    assert [name for name, _ in odds] == ["a", "b", "c"]
    assert odds[0][1] > odds[1][1] > odds[2][1] > 0


# ---------------------------------------------------------------- files of users


def test_a_file_adds_causes_symptoms_and_links(mine: Path) -> None:
    known = load_knowledge([str(mine)])
    assert isinstance(known, Knowledge)
    assert set(known.causes) == {*BUILT_IN.causes, "cold_coffee"}
    assert known.likely(["cup_is_cold"]) == ("cold_coffee",)
    assert known.links["gradient_growth"] == {**BUILT_IN.links["gradient_growth"], "cold_coffee": 0.1}
    assert known.consequences["cold_coffee"] == {"loss_flat", "yawning"}
    assert known.breaks(["nobody_there"])
    assert "cold_coffee" not in BUILT_IN.causes
    assert "cold_coffee" not in BUILT_IN.links["gradient_growth"]


def test_a_later_file_builds_on_an_earlier_one(mine: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.toml"
    more.write_text("[links]\nyawning = { cold_coffee = 0.5 }\n")
    assert load_knowledge([mine, more]).likely(["yawning"]) == ("cold_coffee",)
    with pytest.raises(InvalidValueError, match=r'more\.toml: links names "yawning", which is not a known symptom'):
        load_knowledge([more])


@pytest.mark.parametrize(
    ("evidence", "advice"),
    [
        ({"temperature": 5.0, "barista": "me"}, "Heat it from 5 degrees to 60, says me"),
        ({"temperature": 0.5}, "Heat it from 0.5 degrees to 50, says nobody"),
        ({"temperature": "cold", "barista": "me"}, "Heat it, says me"),
        ({"temperature": float("nan"), "barista": 7}, "Heat it, says nobody"),
        ({"temperature": True}, "Heat it, says nobody"),
        ({"temperature": 10**400}, "Heat it, says nobody"),
    ],
)
def test_advice_of_users_is_filled_in_with_what_rules_found(
    mine: Path, evidence: dict[str, object], advice: str
) -> None:
    (diagnosis,) = diagnose([finding(("cup_is_cold",), **evidence)], load_knowledge([mine]))
    assert diagnosis.headline == "The coffee is cold: a message"
    assert diagnosis.what_to_try == (advice, "Buy a thermos")


def test_causes_of_users_say_which_rules_would_see_them(mine: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen.toml"
    seen.write_text(mine.read_text().replace('source = "house"', 'seen_by = ["Mine"]'))
    known = load_knowledge([seen])
    assert known.seen_by["cold_coffee"] == {"Mine"}
    odds = known.support(["cup_is_cold"])["cold_coffee"]
    assert known.where([], ["Mine"]).support(["cup_is_cold"])["cold_coffee"] == pytest.approx(0.15 * odds)
    assert known.where([], ["Other"]).support(["cup_is_cold"])["cold_coffee"] == odds


def test_rules_that_would_see_a_cause_are_rules_that_there_are() -> None:
    named = set().union(*BUILT_IN.seen_by.values(), *BUILT_IN.ruled_out_by.values())
    assert named <= set(rule_names())


def test_evidence_is_a_value_and_never_a_template(mine: Path) -> None:
    (diagnosis,) = diagnose([finding(("cup_is_cold",), barista="{temperature.__class__}")], load_knowledge([mine]))
    assert diagnosis.what_to_try[0] == "Heat it, says {temperature.__class__}"


CAUSE = '[causes.mine]\ntitle = "a"\nexplanation = "b"\nwhat_to_try = ["c"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[links\n", "is not valid TOML: "),
        ("[causes.a]\n[causes.a]\n", "is not valid TOML: "),
        ("x = " + "[" * 5000, "is not valid TOML: "),
        ("[reasons]\n", "reasons is unknown; known are causes, symptoms, groups, links, placeholders"),
        ("[symptom]\n", 'symptom is unknown (did you mean "symptoms"?)'),
        ("named_causes = [0.5]\n", "named_causes is unknown"),
        ("links = 3\n", "links must be a table but got 3"),
        ("causes.mine = 3\n", "causes.mine must be a table but got 3"),
        ("[causes.mine]\n", "causes.mine.what_to_try is missing"),
        ('[causes.mine]\nwhat_to_try = ["a"]\n', "causes.mine.title is missing"),
        ('[causes.mine]\nwhat_to_try = []\n', "causes.mine.what_to_try must have at least one sentence"),
        ('[causes.mine]\nwhat_to_try = "a"\n', "causes.mine.what_to_try must be a list of texts but got 'a'"),
        ("[causes.mine]\nwhat_to_try = [1]\n", "causes.mine.what_to_try[0] must be a text but got 1"),
        (CAUSE + 'titel = "a"\n', 'causes.mine.titel is unknown (did you mean "title"?)'),
        (CAUSE.replace('"b"', '" "'), "causes.mine.explanation must be a text but got ' '"),
        (CAUSE.replace("mine", '"my cause"'), "causes.my cause must be named by small letters, digits and underscores"),
        (CAUSE.replace("mine", "overfitting"), "causes.overfitting exists already; choose another name"),
        (CAUSE + 'leads_to = ["loss_flatt"]\n',
         'causes.mine.leads_to names "loss_flatt", which is not a known symptom (did you mean "loss_flat"?)'),
        (CAUSE + 'advice = ["try {learning_rat:g}"]\n',
         "causes.mine.advice[0] mentions {learning_rat}, which is not a placeholder (did you mean \"learning_rate\"?)"),
        (CAUSE + 'advice = ["ok", "{optimizer.__class__}"]\n', "causes.mine.advice[1] must mention placeholders"),
        (CAUSE + 'advice = ["{optimizer[0]}"]\n', "attributes and elements are not allowed"),
        (CAUSE + 'advice = ["{}"]\n', 'must mention placeholders by name alone but got "{}"'),
        (CAUSE + 'advice = ["{0}"]\n', 'must mention placeholders by name alone but got "{0}"'),
        (CAUSE + 'advice = ["{optimizer!r}"]\n', 'must mention {optimizer} without a conversion but got "!r"'),
        (CAUSE + 'advice = ["{optimizer:>99999999}"]\n', 'cannot give {optimizer} the format ">99999999": it is'),
        (CAUSE + 'advice = ["{learning_rate:99999999g}"]\n', 'cannot give {learning_rate} the format "99999999g"'),
        (CAUSE + 'advice = ["{learning_rate:{best_step}}"]\n', 'cannot give {learning_rate} the format "{best_step}"'),
        (CAUSE + 'advice = ["{learning_rate"]\n', "causes.mine.advice[0] has braces that do not pair"),
        ("[symptoms.mine]\n", "symptoms.mine.means is missing"),
        ('[symptoms.mine]\nmeans = "a"\nbreaks = 1\n', "symptoms.mine.breaks must be true or false but got 1"),
        ('[symptoms.loss_flat]\nmeans = "a"\n', "symptoms.loss_flat exists already"),
        ('[groups]\nloss_flat = ["dead_units"]\n', "groups.loss_flat exists already"),
        ('[groups]\nmine = ["dead"]\n', 'groups.mine names "dead", which is not a known symptom'),
        ("[links]\nloss_flatt = { overfitting = 0.5 }\n",
         'links names "loss_flatt", which is not a known symptom (did you mean "loss_flat"?); declare it under '
         "[symptoms], with what it means"),
        ("[links]\nloss_flat = { overfiting = 0.5 }\n",
         'links.loss_flat names "overfiting", which is not a known cause (did you mean "overfitting"?)'),
        ("[links]\nloss_flat = { nothing_to_learn = 0.5 }\n",
         "links.loss_flat.nothing_to_learn exists already, with weight 0.4; links are only added"),
        *((f"[links]\nloss_flat = {{ overfitting = {weight} }}\n",
           "links.loss_flat.overfitting must be a weight between -1 and 1, and not 0, but got ")
          for weight in ("1.0", "-1", "0", "0.0", "nan", "inf", "true", '"0.5"')),
        ("[placeholders]\nmine = {}\n", "placeholders.mine.kind must be number or text but got None"),
        ('[placeholders]\nmine = { kind = "number" }\n', "placeholders.mine.means is missing"),
        (
            '[placeholders]\nlearning_rate = { kind = "number", means = "a" }\n',
            "placeholders.learning_rate exists already",
        ),
        ('[placeholders]\nmine = { kind = "number", means = "a", otherwise = "b" }\n', "is only for texts"),
        ('[placeholders]\nmine = { kind = "number", means = "a", log10_of = "b" }\n',
         'placeholders.mine follows from "b", which is not a placeholder'),
        ('[placeholders]\nmine = { kind = "number", means = "a", log10_of = "mine" }\n',
         'must be a number that follows from plain numbers but follows from "mine"'),
        ('[placeholders]\nmine = { kind = "number", means = "a", log10_of = "optimizer" }\n',
         'must be a number that follows from plain numbers but follows from "optimizer"'),
        ('[placeholders]\nmine = { kind = "number", means = "a", scale = "step" }\n',
         "placeholders.mine must have all of scale, by, healthy and decades"),
        ('[placeholders]\nmine = { kind="number", means="a", scale="step", by="step", healthy=0, decades=[1, 2] }\n',
         "placeholders.mine.healthy must be a number above 0 but got 0"),
        ('[placeholders]\nmine = { kind="number", means="a", scale="step", by="step", healthy=1, decades=[2, 1] }\n',
         "placeholders.mine.decades must be two powers of ten in order"),
        ('[placeholders]\nmine = { kind = "number", means = "a", most = 1 }\n',
         "placeholders.mine must have all of scale, by, healthy and decades"),
        ("[placeholders.mine]\nkind = 'number'\nmeans = 'a'\nscale = 'step'\nby = 'step'\nhealthy = 1\n"
         "decades = [1, 2]\nmost = 0\n",
         "placeholders.mine.most must be a number above 0 but got 0"),
        ("found_nothing = -0.5\n", "found_nothing is unknown"),
        (CAUSE + 'seen_by = "Mine"\n', "causes.mine.seen_by must be a list of texts but got 'Mine'"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InvalidValueError) as caught:
        load_knowledge([path])
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert message in said
    assert "\n" not in said


def test_a_file_that_is_not_there_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "causes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match=r"causes\.toml cannot be read"):
        load_knowledge([tmp_path / "causes.toml"])
    with pytest.raises(MissingFileError, match=r'cause\.toml does not exist \(did you mean "causes\.toml"\?\)'):
        load_knowledge([tmp_path / "cause.toml"])
    with pytest.raises(MissingFileError, match="is a folder"):
        load_knowledge([tmp_path])
