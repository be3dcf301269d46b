"""``watchglass explain``: why a run is judged so, and all that is known of a finding."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from command_line import Watchglass
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.rules import built_in_knowledge
from watchglass.testing import RunBuilder, Step, build_run

RATE = {"learning_rate": 0.5, "optimizer": "SGD", "update_ratio": 10**-0.3}


def found(id_: str, rule: str, step: int, *symptoms: str, **more: object) -> Finding:
    evidence = {"symptoms": list(symptoms), "subject": "", **RATE}
    values = {"severity": Severity.WARNING, "message": f"{rule} says so", "value": 1234.5, "limit": 70.0, **more}
    return Finding(
        id=id_, rule=rule, step=step, last_step=step + 2, count=3, mode=Mode.TRAIN, worker="worker_0",
        tensors=("gradient/fc.weight",), global_step=step, evidence=evidence, **values,
    )  # fmt: skip


JOURNAL = [
    found("aaa111111111", "WeightUpdateRatio", 1, "update_ratio_extreme"),
    found("aab222222222", "ExplodingGradient", 2, "gradient_growth"),
    found(
        "ccc333333333", "ExplodingTensor", 4, "nonfinite_forward", "rose_before", severity=Severity.ERROR,
        value=float("nan"), limit=None,
    ),
    found("ddd444444444", "WeightUpdateRatio", 50, severity=Severity.INFO),
    found("eee555555555", "MyRule", 3, "cup_is_cold"),
    *(RuleStatus(rule, Status.ISSUES_FOUND) for rule in ("WeightUpdateRatio", "ExplodingGradient", "ExplodingTensor")),
    RuleStatus("DeadRelu", Status.NOT_APPLICABLE, "the model has no ReLU"),
    RuleStatus("MyRule", Status.ISSUES_FOUND),
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    steps = [Step(scalars={"loss": 1.0})] * 60
    plan = {"planned_steps": {"steps": 36_060, "source": "--planned-steps"}}
    return Path(build_run(tmp_path / "run", steps, status="stopped", journal=JOURNAL, facts=plan))


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_diagnoses_are_reported_in_full(watchglass: Watchglass, run: Path) -> None:
    said = watchglass("explain", run)
    text = flat(said.out)
    assert (said.status, said.err) == (0, "")
    for expected in (
        "stopped: 1 error, 3 warnings, 1 info",
        "1. The learning rate is too high: ExplodingTensor says so",
        "first in gradient/fc.weight since step 1",
        "cause 1 the learning rate is too high: over 99 % first at step 1",
        "for it step 1: WeightUpdateRatio says so (WeightUpdateRatio) step 2: ExplodingGradient says so",
        "step 4: the loss rose in the steps before (ExplodingTensor)",
        "source Goodfellow et al., Deep Learning, 11.4.1",
        "a computation inside the model overflows: 31 % first at step 4",
        "against step 4: the loss rose in the steps before (ExplodingTensor)",
        "if so Guard the computation in that module",
        "chain step 1: WeightUpdateRatio: WeightUpdateRatio says so (3 times until step 3) [aaa111111111]",
        "try Learning rate 0.5 with SGD: try 0.001; the update ratio was 10^-0.3, healthy is 10^-3",
        "2. MyRule has found something: MyRule says so",
        "36,000 steps not run, about 1 h saved",
    ):
        assert expected in text


@pytest.mark.parametrize("name", ["aab222222222", "aab", "AAB2", "ExplodingGradient", "explodinggradient"])
def test_a_finding_is_named_by_id_prefix_or_rule(watchglass: Watchglass, run: Path, name: str) -> None:
    said = watchglass("explain", run, name)
    text = flat(said.out)
    assert said.status == 0
    for expected in (
        "aab222222222 ExplodingGradient, warning: ExplodingGradient says so",
        "seen steps 2 to 4 of TRAIN on worker_0, 3 times",
        "in gradient/fc.weight measured 1234 limit 70",
        "looks at the total gradient norm (or the norms of all captured gradients), and the loss.",
        "fires if the norm is more than `growth` times the median of the first steps",
        "evidence learning_rate: 0.5 optimizer: SGD update_ratio: 0.5012",
        "symptom gradient_growth: the norm of the gradient grew far beyond its earlier size",
        "for the learning rate is too high (0.7) the initial weights have the wrong scale (0.2)",
        "part of 1. The learning rate is too high: ExplodingTensor says so",
        "try Learning rate 0.5 with SGD: try 0.001",
    ):
        assert expected in text
    assert "aaa111111111" not in text


def test_what_speaks_against_causes_is_reported(watchglass: Watchglass, run: Path) -> None:
    text = flat(watchglass("explain", run, "ccc").out)
    assert "symptom rose_before: the loss rose in the steps before for the learning rate is too high (0.9)" in text
    assert "against the data hold NaN or infinite values (-0.6)" in text
    assert "measured NaN" in text
    assert "limit" not in text.split("looks at")[0]


def test_all_findings_of_a_rule_and_one_that_is_part_of_nothing(watchglass: Watchglass, run: Path) -> None:
    text = flat(watchglass("explain", run, "WeightUpdateRatio").out)
    assert text.index("aaa111111111") < text.index("ddd444444444")
    assert text.count("part of 1. The learning rate is too high") == 1
    # It came after the values had become NaN, but only states what is so.
    assert text.count("part of no diagnosis: findings of severity info have none") == 1


def test_a_rule_that_found_nothing_says_why(watchglass: Watchglass, run: Path) -> None:
    said = watchglass("explain", run, "DeadRelu")
    assert (said.status, said.out) == (
        0, "DeadRelu found nothing: NotApplicable: the model has no ReLU\n"
    )  # fmt: skip


def test_a_rule_whose_file_is_not_at_hand_is_explained_without_it(watchglass: Watchglass, run: Path) -> None:
    text = flat(watchglass("explain", run, "MyRule").out)
    assert "eee555555555 MyRule, warning: MyRule says so" in text
    assert "symptom cup_is_cold, which no file of causes knows" in text
    assert "looks at" not in text


def test_no_file_that_a_run_names_is_executed(watchglass: Watchglass, tmp_path: Path) -> None:
    file, ran = tmp_path / "planted.py", tmp_path / "ran"
    file.write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    journal = [RuleStatus(f"{file}:Planted", Status.NO_ISSUES_FOUND), RuleStatus("gone.py:Gone", Status.IN_PROGRESS)]
    for number, status in enumerate(journal):
        run = build_run(tmp_path / f"run-{number}", [Step(scalars={"loss": 1.0})] * 9, journal=[status])
        assert watchglass("explain", run).status == 0
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aa", '2 findings have an id that begins with "aa": aaa111111111 (WeightUpdateRatio), aab222222222 (Expl'),
        ("aab222222223", 'no finding or rule of this run is called "aab222222223" (did you mean "aab222222222"?)'),
        ("ExplodingTensors", 'is called "ExplodingTensors" (did you mean "ExplodingTensor"?)'),
        ("zzz", 'is called "zzz"; there are ccc333333333 (ExplodingTensor), aaa111111111 (WeightUpdateRatio)'),
        ("", 'no finding or rule of this run is called ""'),
    ],
)
def test_an_unknown_finding_is_one_line_with_near_ones(
    watchglass: Watchglass, run: Path, name: str, message: str
) -> None:
    said = watchglass("explain", run, name)
    (line,) = said.err.splitlines()
    assert (said.status, said.out) == (2, "")
    assert message in line


def test_json_for_programs(watchglass: Watchglass, run: Path) -> None:
    whole = json.loads(watchglass("explain", run, "--format", "json").out, parse_constant=pytest.fail)
    assert list(whole) == ["run", "status", "headline", "diagnoses"]
    first = whole["diagnoses"][0]
    assert first["causes"][0]["id"] == "learning_rate_too_high"
    assert first["causes"][0]["evidence"][0] == "step 1: WeightUpdateRatio says so (WeightUpdateRatio)"
    assert first["causes"][1]["against"] == ["step 4: the loss rose in the steps before (ExplodingTensor)"]
    assert first["sources"][0].startswith("Goodfellow")
    (one,) = json.loads(watchglass("explain", run, "ccc", "--format", "json").out, parse_constant=pytest.fail)[
        "findings"
    ]
    assert (one["id"], one["value"]) == ("ccc333333333", "NaN")
    assert one["symptoms"][1]["causes"]["learning_rate_too_high"] == 0.9
    assert one["symptoms"][1]["causes"]["bad_data"] == -0.6
    assert one["diagnosis"]["findings"] == first["findings"]
    assert one["evidence"]["optimizer"] == "SGD"


def test_causes_of_users_and_rules_that_are_evaluated_again(
    watchglass: Watchglass, run: Path, broken: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[causes.cold_coffee]\ntitle = "the coffee is cold"\nexplanation = "Nobody looks."\n'
        'what_to_try = ["Make new coffee"]\n[symptoms.cup_is_cold]\nmeans = "the cup is cold"\n'
        "[links]\ncup_is_cold = { cold_coffee = 0.8 }\n"
    )
    text = flat(watchglass("explain", run, "--causes", mine).out)
    assert "2. The coffee is cold: MyRule says so" in text
    assert "cause 1 the coffee is cold: 80 %" in text
    text = flat(watchglass("explain", run, "MyRule", "--causes", mine).out)
    assert "symptom cup_is_cold: the cup is cold for the coffee is cold (0.8)" in text
    mine.write_text("[links]\nloss_flat = { coffee = 0.8 }\n")
    (line,) = watchglass("explain", run, "--causes", mine).err.splitlines()
    assert f'{mine}: links.loss_flat names "coffee", which is not a known cause' in line
    text = watchglass("explain", broken, "--rules", "ExplodingTensor").out
    assert "ExplodingTensor" in text
    assert "LossNotDecreasing" not in text


def test_a_run_without_findings(watchglass: Watchglass, healthy: Path) -> None:
    assert watchglass("explain", healthy).out.startswith("no issues found\n")
    (line,) = watchglass("explain", healthy, "abc").err.splitlines()
    assert line.endswith('is called "abc"; nothing was found')


def test_the_causes_that_are_known_are_listed(watchglass: Watchglass) -> None:
    said = watchglass("explain", "--list-causes")
    assert said.status == 0
    for cause in built_in_knowledge().causes:
        assert re.search(rf"^{cause}$", said.out, re.MULTILINE)
    assert "0.97  nonfinite_input: the input data already held NaN or infinite values" in said.out
    assert "-0.60  rose_before: the loss rose in the steps before" in said.out
    listed = json.loads(watchglass("explain", "--list-causes", "--format", "json").out)["causes"]
    assert [row["id"] for row in listed] == list(built_in_knowledge().causes)
    (dying,) = [row for row in listed if row["id"] == "dying_relu"]
    assert dying["seen_by"] == ["DeadRelu"]
    assert "   seen by  DeadRelu" in said.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "RUN is missing; usage: watchglass explain RUN [FINDING]"),
        (["somewhere", "--list-causes"], "--list-causes takes no RUN"),
        (["somewhere", "--format", "xml"], "--format must be one of text, json but got 'xml'"),
        (["no-such-run"], "no-such-run"),
    ],
)
def test_mistakes_are_one_line(watchglass: Watchglass, words: list[str], message: str) -> None:
    said = watchglass("explain", *words)
    (line,) = said.err.splitlines()
    assert (said.status, said.out) == (2, "")
    assert message in line


# ---------------------------------------------------------------- the price of what was saved

SAVED = "36,000 steps not run, about 1 h and 32.77 saved (at 32.77 per hour)"


@pytest.mark.parametrize("verb", ["check", "explain", "report"])
def test_what_was_saved_has_a_price(watchglass: Watchglass, run: Path, verb: str) -> None:
    def said(*more: str, **env: str) -> str:
        words = ("-o", "report.html", "--force") if verb == "report" else ()
        text = watchglass(verb, run, *words, *more, env={"COLUMNS": "200", **env}).out
        return flat(Path("report.html").read_text() if verb == "report" else text)

    assert SAVED in said("--price-per-hour", "32.77")
    assert "36,000 steps not run, about 1 h saved" in said()
    assert SAVED in said(WATCHGLASS_PRICE_PER_HOUR="32.77")
    assert "and 2.00 saved (at 2.00 per hour)" in said("--price-per-hour", "2", WATCHGLASS_PRICE_PER_HOUR="32.77")


@pytest.mark.parametrize("verb", ["check", "explain", "report", "follow", "run"])
@pytest.mark.parametrize("price", ["-1", "nan", "inf", "1e999", "much", "3,50", ""])
def test_a_price_that_cannot_be_is_one_line(
    watchglass: Watchglass, run: Path, verb: str, price: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('must not run')")
    place = {"run": [tmp_path / "train.py"], "report": [run, "-o", "r.html"]}.get(verb, [run])
    for given, source in (([f"--price-per-hour={price}"], "--price-per-hour"), ([], "WATCHGLASS_PRICE_PER_HOUR")):
        if not given and not price:
            continue  # an empty variable is as good as none
        said = watchglass(verb, *given, *place, env={"WATCHGLASS_PRICE_PER_HOUR": "1" if given else price})
        assert said.status == 2
        (line,) = said.err.splitlines()
        assert line == (f"watchglass: error: {source} must be a finite number >= 0, such as 32.77, but got {price!r}")


def test_evidence_that_is_empty_is_left_out(watchglass: Watchglass, tmp_path: Path) -> None:
    finding = found("aaa111111111", "ExplodingTensor", 1)
    finding.evidence.update(module="", optimizer="SGD")
    journal = [finding, RuleStatus("ExplodingTensor", Status.ISSUES_FOUND)]
    run = build_run(tmp_path / "run", [Step(scalars={"loss": 1.0})] * 4, journal=journal)
    text = watchglass("explain", run, "aaa").out
    assert "optimizer: SGD" in text
    assert "module:" not in text


def test_an_attempt_that_was_not_evaluated_is_evaluated_now(watchglass: Watchglass, tmp_path: Path) -> None:
    """What the evaluator of the attempt before said is not about this one."""
    path = tmp_path / "resumed"
    healthy = [Step(scalars={"loss": 1.0})] * 40
    build_run(path, healthy, journal=[RuleStatus("ExplodingTensor", Status.NO_ISSUES_FOUND)])
    with RunBuilder(path, resumed={"start_step": 40, "source": "optimizer"}) as builder:
        for _ in range(8):
            builder.step(scalars={"loss": float("nan")}, flush=False)
        builder.leave()
    assert "the loss became NaN" in watchglass("explain", path).out
    (path / "journal" / "judged").write_text('{"attempt": 0, "ended": "finished"}')
    assert "the loss became NaN" in watchglass("explain", path).out
    (path / "journal" / "judged").write_text('{"attempt": 1, "ended": "finished"}')
    assert "the loss became NaN" not in watchglass("explain", path).out
