"""Rules are found by name, built with checked parameters, and come from users' files as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from real_runs import suites
from watchglass.config import RuleSpec, parameter
from watchglass.errors import InvalidValueError, MissingFileError, PluginFileError, UnknownNameError
from watchglass.evaluate import replay
from watchglass.records import Mode, Role, Status
from watchglass.rules import (
    BUILT_IN,
    Needs,
    Rule,
    build_rule,
    built_in_knowledge,
    default_rules,
    documentation,
    find_rule,
    rule_names,
)
from watchglass.testing import Step, build_run

CUSTOM = '''
from __future__ import annotations
from watchglass.config import parameter
from watchglass.records import Severity
from watchglass.rules import Needs, Rule, state

class LossTooHigh(Rule):
    """The loss is above a limit."""

    needs = (Needs(scalars=("loss",)),)
    limit: float = parameter(10.0, help="highest loss that is fine", gt=0)
    patience: int = 2
    seen: int = state(int)

    def check(self, view):
        loss = view.scalar("loss")
        if loss is not None and loss > self.limit:
            self.seen += 1
            if self.seen >= self.patience:
                yield self.finding(
                    view, severity=Severity.WARNING, message=f"the loss is {loss:.3g}", value=loss, limit=self.limit,
                    causes=["learning_rate_too_high"],
                )

class Unfinished(Rule):
    """Has no check."""

class NoRule:
    pass
'''


@pytest.fixture
def rule_file(tmp_path: Path) -> str:
    path = tmp_path / "my_rules.py"
    path.write_text(CUSTOM)
    return str(path)


def test_every_built_in_rule_is_found_and_documented() -> None:
    assert [spec.name for spec in default_rules()] == rule_names("default")
    for name in rule_names():
        assert documentation(find_rule(name)).name == name


@pytest.mark.parametrize("name", rule_names())
def test_every_built_in_rule_has_a_test_file_with_both_suites(name: str) -> None:
    group, module = find_rule(name).__module__.rsplit(".", 2)[1:]
    folders = Path(__file__).parent / group, Path(__file__).parents[2] / "integration"  # where it starts processes
    (file,) = (folder / f"test_{module}.py" for folder in folders if (folder / f"test_{module}.py").exists())
    tests = file.read_text(encoding="utf-8")
    assert "(RuleSuite):" in tests or find_rule(name).compares  # the suite has no other run
    assert BUILT_IN[name].built_only or file in {suite.file for suite in suites() if suite.rule == name}


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r'there is no rule "DeadReLU" \(did you mean "DeadRelu"\?\)'):
        find_rule("DeadReLU")


def test_a_near_parameter_is_suggested() -> None:
    with pytest.raises(
        UnknownNameError, match=r'DeadRelu has no parameter "treshold_layer" \(did you mean "threshold_la'
    ):
        build_rule(RuleSpec("DeadRelu", {"treshold_layer": 1}))


@pytest.mark.parametrize("value", ["many", "-1", "200", True])
def test_a_bad_parameter_is_one_line(value: object) -> None:
    with pytest.raises(InvalidValueError, match=r"^DeadRelu: threshold_layer must be .* but got [^\n]*$"):
        build_rule(RuleSpec("DeadRelu", {"threshold_layer": value}))


def test_calibrations_are_overridden_by_parameters() -> None:
    assert build_rule(RuleSpec("DeadRelu")).threshold_layer == 70  # type: ignore[attr-defined]
    assert build_rule(RuleSpec("DeadRelu"), "sagemaker").threshold_layer == 50  # type: ignore[attr-defined]
    assert build_rule(RuleSpec("DeadRelu", {"threshold_layer": "60"}), "sagemaker").threshold_layer == 60  # type: ignore[attr-defined]
    with pytest.raises(InvalidValueError, match="calibration"):
        build_rule(RuleSpec("DeadRelu"), "other")


def test_a_custom_rule_from_a_file(rule_file: str, run_path: Path) -> None:
    run = build_run(run_path, [Step(scalars={"loss": float(n)}) for n in range(10)])
    evaluation = replay(run, [RuleSpec(f"{rule_file}:LossTooHigh", {"limit": "5"})])
    (finding,) = evaluation.findings
    assert (finding.rule, finding.step, finding.last_step, finding.value) == ("LossTooHigh", 7, 9, 7.0)
    assert finding.what_to_try == built_in_knowledge().causes["learning_rate_too_high"].what_to_try
    assert evaluation.statuses[0].status is Status.ISSUES_FOUND


def test_a_bare_default_is_a_checked_parameter(rule_file: str) -> None:
    with pytest.raises(InvalidValueError, match="patience must be a whole number but got 'soon'"):
        build_rule(RuleSpec(f"{rule_file}:LossTooHigh", {"patience": "soon"}))


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("no_such.py:Rule", MissingFileError, "there is no rule file"),
        ("{file}:LossToHigh", UnknownNameError, 'did you mean "LossTooHigh"'),
        ("{file}:NoRule", PluginFileError, "is not a rule"),
        ("{file}:Unfinished", PluginFileError, "has no method check"),
        ("{file}", PluginFileError, "has 2 rules; name the class"),
    ],
)
def test_mistakes_in_naming_a_file(rule_file: str, spec: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find_rule(spec.format(file=rule_file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def broken(:\n", r"cannot be imported: line 1, SyntaxError"),
        ("import no_such_module_of_mine\n", "ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_to_import(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(PluginFileError, match=message):
        find_rule(f"{path}:Rule")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            'needs = (Needs(scalars=("loss",)))',
            r"needs of .*:Mine must be a tuple of Needs but is Needs\(.*a single need write",
        ),
        ("needs = (Needs(scalars=5),)", "Needs: scalars must be a list of text but got 5"),
        (
            "needs = (Needs(modes=Mode.EVAL),)",
            "Needs: modes must be a list out of train, .*, global but got",
        ),
        (
            'needs = (Needs(modes="evl"),)',
            r"Needs: modes must be one of train, .* but got 'evl' \(did you mean \"eval\"\?",
        ),
        ('needs = (Needs(role="gradiant"),)', "Needs: role must be one of weight, .* but got 'gradiant'"),
        ('needs = (Needs(module_kinds="relu"),)', "Needs: module_kinds must be one of linear, .* but got 'relu'"),
        ('needs = (Needs(statistics="men"),)', r"Needs: statistics must be one of .* but got 'men' \(did you mean"),
        (
            'needs = (Needs(observations="nobody"),)',
            "Needs: observations must be one of .* but got 'nobody'",
        ),
        ('needs = (Needs(raw="maybe"),)', "Needs: raw must be true or false but got 'maybe'"),
        ("needs = (Needs(optional=None),)", "Needs: optional must be true or false but got None"),
        ("needs = (Needs(why=5),)", "Needs: why must be text but got 5"),
        ("needs = (Needs(name_regex=5),)", "Needs: name_regex must be text or none but got 5"),
        ("needs = (Needs(collection=()),)", r"Needs: collection must be text or none but got \(\)"),
        ('needs = (Needs(name_regex="("),)', r"a regex must be a regular expression but got '\('"),
        ("needs = (Needs(max_interval=0),)", "Needs: max_interval must be >= 1 but got 0"),
        (
            "calibrations = 5",
            "calibrations of .*:Mine must be tables of its parameters, or rules of its name, by default .*, but is 5",
        ),
        ('calibrations = {"sagemaker": {"limit": 1}}', "calibrations of .*:Mine must be tables of its parameters"),
        ('calibrations = {"sagemakr": {}}', r"calibrations of .* but is \{'sagemakr': \{\}\}"),
        ('limit: bool = "maybe"', "Mine: limit must be true or false but got 'maybe'"),
        ('compares = "other_run"', "compares of .*:Mine must be a tuple of names of its parameters but is 'other_run'"),
        ('compares = ("other",)', r"compares of .*:Mine must be a tuple of names of .* but is \('other',\)"),
        ("def __post_init__(self):\n        raise KeyError('mine')", "Mine cannot be built: KeyError: 'mine'"),
    ],
)
def test_what_a_rule_declares_is_checked(tmp_path: Path, body: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from watchglass import Mode, Needs, Role, Rule\nclass Mine(Rule):\n"
        f'    """Mine."""\n    {body}\n    other_run: str = ""\n    def check(self, view):\n        return ()\n'
    )
    with pytest.raises((PluginFileError, InvalidValueError), match=message):
        build_rule(RuleSpec(f"{path}:Mine"))


def test_needs_take_words_and_lists() -> None:
    given: dict[str, Any] = {"role": "gradient", "facts": ["batch"], "modes": "eval", "raw": "no", "statistics": "l2"}
    assert Needs(**given) == Needs(role=Role.GRADIENT, facts=("batch",), modes=(Mode.EVAL,), statistics=("l2",))


def test_an_edited_file_is_imported_again(tmp_path: Path) -> None:
    import os

    path = tmp_path / "mine.py"
    path.write_text(CUSTOM)
    first = find_rule(f"{path}:LossTooHigh")
    path.write_text(CUSTOM.replace("10.0", "11.0"))
    os.utime(path, ns=(1, 1))
    assert find_rule(f"{path}:LossTooHigh") is not first
    assert build_rule(RuleSpec(f"{path}:LossTooHigh")).limit == 11  # type: ignore[attr-defined]


def test_parameters_are_keyword_only() -> None:
    class Limited(Rule):
        """Has a limit."""

        limit: float = parameter(1.0, help="the limit")

        def check(self, view):
            return ()

    assert Limited(limit=2).limit == 2.0
    with pytest.raises(TypeError):
        Limited(2)


OWN_ALGORITHM = """
from watchglass import Rule

def documented():
    class Mine(Rule):
        level: float = 2.0

        def check(self, view):
            return ()
    return Mine

class Mine(Rule):
    calibrations = {"sagemaker": documented()}
    limit: float = 1.0

    def check(self, view):
        return ()
"""


def test_a_calibration_may_have_its_own_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN_ALGORITHM)
    assert build_rule(RuleSpec(f"{path}:Mine")).limit == 1  # type: ignore[attr-defined]
    other = build_rule(RuleSpec(f"{path}:Mine", {"level": 3}), "sagemaker")
    assert (other.name, other.level) == ("Mine", 3)  # type: ignore[attr-defined]
    with pytest.raises(UnknownNameError, match='Mine has no parameter "limit"'):
        build_rule(RuleSpec(f"{path}:Mine", {"limit": 3}), "sagemaker")
