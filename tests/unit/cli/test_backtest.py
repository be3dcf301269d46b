"""``watchglass backtest``: where a rule would have fired on stored runs, and how good that is."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Watchglass
from watchglass.cli.sweep_option import parse_sweeps
from watchglass.config import RuleSpec, Timing
from watchglass.errors import InvalidValueError, WatchglassError
from watchglass.testing import Step, build_run

RULE = '''
import signal

from watchglass import Needs, Rule, Severity
from watchglass.rules import parameter, state

class High(Rule):
    """The loss is above a limit."""

    needs = (Needs(scalars=("loss",)),)
    limit: float = parameter(5.0, help="highest loss that is fine", gt=0)
    patience: int = parameter(1, help="steps in a row", ge=1)
    names: tuple[str, ...] = parameter((), help="names")
    warn: bool = parameter(False, help="a warning only")
    above: int = state(int)

    def check(self, view):
        loss = view.scalar("loss")
        self.above = self.above + 1 if loss is not None and loss > self.limit else 0
        if self.above >= self.patience:
            severity = Severity.WARNING if self.warn else Severity.ERROR
            yield self.finding(view, severity=severity, message=f"the loss is {loss:g}", subject="loss", value=loss)

class Interrupts(Rule):
    """Ctrl-C in run b."""

    needs = (Needs(scalars=("loss",)),)

    def check(self, view):
        if view.scalar("loss") == 4:
            signal.raise_signal(signal.SIGINT)
        return ()

class Fails(Rule):
    """Raises."""
    def check(self, view):
        raise ZeroDivisionError("my mistake")
'''


def run_of(path: Path, losses: list[float]) -> None:
    build_run(path, [Step(scalars={"loss": loss}) for loss in losses])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three sick runs, with a peak at 5, at 8 and none; two healthy ones, of which one has a small peak at 3."""
    (tmp_path / "rules.py").write_text(RULE)
    quiet = [1.0] * 10
    run_of(tmp_path / "runs" / "a", [*quiet[:5], 10, 10, 1, 1, 1])
    run_of(tmp_path / "runs" / "b", [*quiet[:3], 4, *quiet[4:8], 10, 10])
    run_of(tmp_path / "runs" / "c", quiet)
    run_of(tmp_path / "runs" / "d", quiet)
    run_of(tmp_path / "runs" / "e", [*quiet[:3], 6, *quiet[4:]])
    run_of(tmp_path / "runs" / "f", [9, *quiet])
    labels = (
        "run,sick,since_step,until_step,cause\na,true,5,,spike\nb,true,6,,late\nc,yes,2,,\nd,false,,,\nruns/e,no,,,\n"
    )
    (tmp_path / "labels.csv").write_text(labels)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_where_a_rule_would_have_fired(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High", "runs")
    assert (said.status, said.err) == (0, "")
    assert rows(said.out) == [
        ["run", "first", "last", "count", "found"],
        ["runs/a", "5", "6", "2", "error"],
        ["runs/b", "8", "9", "2", "error"],
        ["runs/c", "-", "-", "-", "nothing"],
        ["runs/d", "-", "-", "-", "nothing"],
        ["runs/e", "3", "3", "1", "error"],
        ["runs/f", "0", "0", "1", "error"],
    ]


def test_the_worker_is_named_where_it_is_not_always_the_first(watchglass: Watchglass, place: Path) -> None:
    steps = [Step(scalars={"loss": 1.0}), Step(scalars={"loss": 9.0}, workers=[1])]
    build_run(place / "two", steps, workers=2)
    said = watchglass("backtest", "rules.py:High", "two", "runs/a")
    assert [row[-2:] for row in rows(said.out)] == [["found", "worker"], ["error", "worker_1"], ["error", "worker_0"]]


def test_tables_fit_a_terminal_of_80_columns(watchglass: Watchglass, place: Path) -> None:
    words = ("backtest", "rules.py:High", "runs", "--labels", "labels.csv")
    for more in ((), ("--sweep", "limit=5,8", "--sweep", "patience=1,2")):
        table, _, _ = watchglass(*words, *more).out.partition("\n\n")
        assert max(map(len, table.splitlines())) <= 80


def test_parameters_runs_and_patterns(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High:limit=8,patience=2", "runs/[ab]", "runs/e", "runs/a")
    assert [row[:2] for row in rows(said.out)[1:]] == [["runs/a", "6"], ["runs/b", "9"], ["runs/e", "-"]]
    built_in = watchglass("backtest", "LossNotDecreasing:patience=2", "runs/a")
    assert built_in.status == 0


def test_beside_labels(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High", "runs", "--labels", "labels.csv")
    assert said.status == 0
    table, sentences = said.out.split("\n\n")
    assert [line.split("  ")[0] for line in table.splitlines()] == ["run", *(f"runs/{name}" for name in "abcdef")]
    outcomes = [" ".join(row.split()[1:6]) for row in table.splitlines()[1:]]
    assert outcomes == [
        "sick since 5 found 0", "sick since 6 found 2", "sick since 2 missed -", "healthy quiet - - -",
        "healthy false alarm - 3", "- - - 0 0",
    ]  # fmt: skip
    assert sentences.splitlines() == [
        "recall        66.7 % (2/3) of sick runs",
        "false alarms  50 % (1/2) of healthy runs",
        "precision     66.7 %",
        "delay         median 1 step, worst 2",
        "not counted   1 without a label",
    ]


def test_a_finding_before_the_sickness_is_no_success(watchglass: Watchglass, place: Path) -> None:
    words = ("backtest", "rules.py:High:limit=3", "runs/a", "runs/b", "--labels", "two.csv", "--format", "json")
    (place / "two.csv").write_text("run,sick,since_step\na,true,5\nb,true,6\n")
    (found,) = json.loads(watchglass(*words).out)["combinations"]
    assert [(run["outcome"], run["delay"]) for run in found["runs"]] == [("found", 0), ("early", -3)]
    assert (found["recall"], found["precision"], found["early"]) == (0.5, 0.5, 1)
    (found,) = json.loads(watchglass(*words, "--tolerance", "3").out)["combinations"]
    assert [(run["outcome"], run["delay"]) for run in found["runs"]] == [("found", 0), ("found", -3)]


def test_a_finding_that_comes_after_the_harm_is_late(watchglass: Watchglass, place: Path) -> None:
    (place / "late.toml").write_text('[[runs]]\nrun = "b"\nsick = true\nsince_step = 2\nuntil_step = 7\ncause = "x"\n')
    said = watchglass("backtest", "rules.py:High", "runs/b", "--labels", "late.toml", "--format", "json")
    (found,) = json.loads(said.out)["combinations"]
    assert (found["runs"][0]["outcome"], found["runs"][0]["delay"], found["recall"]) == ("late", 6, 0.0)


def test_a_sweep_shows_recall_against_false_alarms(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High", "runs", "--labels", "labels.csv", "--sweep", "limit=0.5,5,8,20")
    assert said.status == 0
    assert [line.split() for line in said.out.splitlines()[1:5]] == [
        ["0.5", "0", "%", "(0/3)", "100", "%", "(2/2)", "0", "%", "3", "-", "-"],
        ["5", "66.7", "%", "(2/3)", "50", "%", "(1/2)", "66.7", "%", "-", "1", "2"],
        ["8", "66.7", "%", "(2/3)", "0", "%", "(0/2)", "100", "%", "-", "1", "2", "*"],
        ["20", "0", "%", "(0/3)", "0", "%", "(0/2)", "-", "-", "-", "-"],
    ]
    assert said.out.endswith(
        "3 sick runs, 2 healthy ones; not counted: 1 without a label.\n"
        "* no other combination is as good in both and better in one. Delays: median and worst, in steps.\n"
    )


def test_a_sweep_of_several_parameters_is_a_grid_and_as_good_as_one_by_one(watchglass: Watchglass, place: Path) -> None:
    words = ("backtest", "rules.py:High", "runs", "--labels", "labels.csv", "--format", "json")
    swept = json.loads(watchglass(*words, "--sweep", "limit=3,5", "--sweep", "patience=1,2").out)["combinations"]
    assert [each["parameters"] for each in swept] == [
        {"limit": limit, "patience": patience} for limit in ("3", "5") for patience in ("1", "2")
    ]
    for each in swept:
        given = ",".join(f"{name}={value}" for name, value in each["parameters"].items())
        (alone,) = json.loads(watchglass(words[0], f"rules.py:High:{given}", *words[2:]).out)["combinations"]
        assert {**alone, "pareto": None} == {**each, "pareto": None}


def test_without_labels_a_sweep_counts_runs(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High", "runs", "--sweep", "limit=5,20")
    assert rows(said.out) == [["limit", "fired", "on"], ["5", "4", "of", "6"], ["20", "0", "of", "6"]]


def test_for_programs(watchglass: Watchglass, place: Path) -> None:
    words = ("backtest", "rules.py:High", "runs", "--labels", "labels.csv", "--format", "csv")
    table = list(csv.DictReader(io.StringIO(watchglass(*words).out)))
    assert [row["outcome"] for row in table] == ["found", "found", "missed", "quiet", "false alarm", ""]
    assert table[1]["delay"] == "2"
    swept = list(csv.DictReader(io.StringIO(watchglass(*words, "--sweep", "limit=5,8").out)))
    assert [(row["limit"], row["false_alarm_rate"], row["pareto"]) for row in swept] == [
        ("5", "0.5", "false"), ("8", "0.0", "true")
    ]  # fmt: skip


def test_only_what_is_bad_enough_counts(watchglass: Watchglass, place: Path) -> None:
    words = ("backtest", "rules.py:High:warn=true", "runs/a")
    assert "warning" in watchglass(*words).out
    said = watchglass(*words, "--severity", "error")
    assert said.out.splitlines()[1].split()[1:] == ["-", "-", "-", "nothing"]


def test_a_calibration_is_where_parameters_begin(watchglass: Watchglass, tmp_path: Path) -> None:
    run_of(tmp_path / "flat", [1.0] * 60)
    words = ("backtest", "LossNotDecreasing", "flat")
    first = watchglass(*words, "--calibration", "sagemaker").out.splitlines()[1].split()[1]
    assert int(first) < 30
    assert watchglass(*words).out.splitlines()[1].split()[1] == "-"


def test_what_cannot_be_read_is_left_out_and_said(watchglass: Watchglass, place: Path) -> None:
    (place / "runs" / "c" / "run.json").write_text("{}")
    said = watchglass("backtest", "rules.py:High", "runs", "--labels", "labels.csv")
    assert said.status == 2
    assert "runs/c" not in said.out
    assert "watchglass: warning: runs/c skipped: " in said.err
    assert "recall        100 % (2/2)" in said.out


def test_a_rule_that_fails_is_said_with_what_it_raised(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:Fails", "runs/a", "runs/b")
    assert said.status == 2
    assert said.err.splitlines()[0] == ("watchglass: warning: the rule failed on runs/a: ZeroDivisionError: my mistake")


def test_a_rule_that_could_say_nothing_is_reported(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "VanishingGradient", "runs/a", "runs/b")
    assert said.status == 0
    assert [row[-1] for row in rows(said.out)[1:3]] == ["NotApplicable", "NotApplicable"]
    assert said.out.splitlines()[-2:] == [
        "The rule could not evaluate 2 of 2 runs (NotApplicable).",
        "First reason: the model has no layer with a weight matrix",
    ]


def test_ctrl_c_shows_what_there_is(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:Interrupts", "runs")
    assert said.status == 130
    assert said.err == "watchglass: interrupted after 1 of 6 runs\n"
    assert [row[0] for row in rows(said.out)] == ["run", "runs/a"]


def test_progress_is_reported_on_stderr_where_it_takes_long(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High", "runs/a", "runs/b", timing=Timing(progress_s=-1.0))
    assert "watchglass: run 2 of 2, runs/b, step 10" in said.err.splitlines()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["rules.py:Hihg", "runs"], 'has no class "Hihg" (did you mean "High"?)'),
        (["rules.py:High,Overfit", "runs"], "RULE must be one rule but got 2"),
        (["llm", "runs"], 'RULE must be one rule but got the set "llm"'),
        (["rules.py:High:limti=3", "runs"], 'High has no parameter "limti"'),
        (["rules.py:High", "nowhere"], "nowhere"),
        (["rules.py:High", "runs/z*"], "no folder matches runs/z*"),
        (["rules.py:High", "."], None),
        (["rules.py:High", "runs", "--severity", "bad"], "--severity must be one of info, warning, error"),
        (["rules.py:High", "runs", "--format", "xml"], "--format must be one of text, json, csv"),
        (["rules.py:High", "runs", "--calibration", "x"], "--calibration must be one of default, sagemaker"),
        (["rules.py:High", "runs", "--sweep", "limti=1"], '--sweep: rules.py:High has no parameter "limti" (did you'),
        (["rules.py:High", "runs", "--sweep", "limit"], "--sweep must be PARAM=VALUE,VALUE or PARAM=FROM..TO/COUNT"),
        (["rules.py:High", "runs", "--sweep", "limit=1,x"], "High: limit must be a number but got 'x'"),
        (["rules.py:High", "runs", "--sweep", "limit=1,-1"], "High: limit must be > 0 but got '-1'"),
        (["rules.py:High", "runs", "--sweep", "limit=1,,2"], "a value is empty"),
        (["rules.py:High", "runs", "--sweep", "limit=5..1"], "a range must read FROM..TO"),
        (["rules.py:High", "runs", "--sweep", "names=a,b"], "a list of text cannot be swept"),
        (["rules.py:High:limit=2", "runs", "--sweep", "limit=1"], "this parameter already has a value"),
        (["rules.py:High", "runs", "--sweep", "limit=1", "--sweep", "limit=2"], "this parameter already has a value"),
        (["rules.py:High", "runs", "--sweep", "limit=1..2/999", "--sweep", "patience=1,2"], "at most 1,000"),
        (["rules.py:High", "runs", "--labels", "no.csv"], "file of labels no.csv does not exist"),
        (["rules.py:High", "runs", "--labels", "rules.py"], "must end in .csv, .json, .toml but got '.py'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(watchglass: Watchglass, place: Path, words: list[str], error: str | None) -> None:
    said = watchglass("backtest", *words)
    if error is None:
        assert said.status == 0
    else:
        assert error in said.error


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        (
            "l.csv",
            "run,sick,sicne_step\na,true,1\n",
            'l.csv, line 1: sicne_step is unknown (did you mean "since_step"?)',
        ),
        ("l.csv", "run,since_step\na,3\n", "l.csv, line 2: sick is missing"),
        ("l.csv", "run,sick\na,perhaps\n", "l.csv, line 2: sick must be true or false but got 'perhaps'"),
        (
            "l.csv",
            "run,sick,since_step\na,true,x\n",
            "l.csv, line 2: since_step must be a whole number or none but got",
        ),
        ("l.csv", "run,sick,since_step\na,true,-1\n", "since_step must be >= 0"),
        ("l.csv", "run,sick,since_step\na,false,3\n", "a is not sick, so since_step and until_step must be empty"),
        ("l.csv", "run,sick,since_step,until_step\na,true,3,2\n", "must not be before since_step (3) but got 2"),
        ("l.csv", "run,sick\na,true,7\n", "l.csv, line 2: does not have as many columns"),
        ("l.csv", "run,sick\n", "contains no labels"),
        ("l.csv", "run,sick\nz,true\n", "no label matches a given run: the first label is of z, the first run is"),
        ("l.csv", "run,sick\na,true\nruns/a,false\n", "runs/a has two labels, a and runs/a"),
        ("l.json", "{", "l.json is not valid JSON"),
        ("l.json", "3", "must hold a list of labels"),
        ("l.json", '[{"run": "a", "sick": true, "why": 1}]', "l.json, label 1: why is unknown"),
        ("l.toml", "runs = 3", "must hold a list of labels"),
        ("l.toml", "[[runs]\n", "l.toml"),
    ],
)
def test_labels_that_cannot_be_are_one_line(
    watchglass: Watchglass, place: Path, name: str, text: str, error: str
) -> None:
    (place / name).write_text(text)
    assert error in watchglass("backtest", "rules.py:High", "runs", "--labels", name).error


def test_a_label_that_fits_several_runs_is_refused(watchglass: Watchglass, place: Path) -> None:
    run_of(place / "more" / "a", [1.0])
    (place / "l.json").write_text('{"runs": [{"run": "a", "sick": true, "since_step": null}]}')
    said = watchglass("backtest", "rules.py:High", "runs", "more", "--labels", "l.json")
    assert "the label of a matches 2 runs, runs/a and more/a; write more of its path" in said.error


def test_ranges() -> None:
    def values(text: str, rule: str = "VanishingGradient") -> list[Any]:
        (found,) = parse_sweeps([text], RuleSpec(rule)).values()
        return found

    assert values("threshold=1e-8..1e-4") == [1e-8, 1e-7, 1e-6, 1e-5, 1e-4]
    assert values("threshold=1..3/3") == [1.0, 2.0, 3.0]
    assert values("window=1..100/3", "DeadRelu") == [1, 10, 100]
    assert values("window=2..4/9", "DeadRelu") == [2, 3, 4]
    assert values("threshold=1,2,1") == ["1", "2"]
    with pytest.raises(InvalidValueError, match="COUNT from 2 to 1,000"):
        values("threshold=1..3/1")
    with pytest.raises(WatchglassError):
        values("threshold=..")


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"), ("@SUM(1)", "'@SUM(1)"), ("+x", "'+x"), ("-x", "'-x"),
     ("\tx", "'\tx"),
     ("-1e3", "-1e3"), (-1.5, -1.5), ("runs/a", "runs/a"), (None, ""), (True, "true"), ("-inf", "-inf")],
)  # fmt: skip
def test_no_cell_begins_a_formula(value: object, cell: object) -> None:
    from watchglass.cli.backtest import _plain

    assert _plain(value) == cell


def test_one_file_of_labels_serves_calls_on_some_of_its_runs(watchglass: Watchglass, place: Path) -> None:
    said = watchglass("backtest", "rules.py:High", "runs/a", "--labels", "labels.csv")
    assert said.status == 0
    others = len((place / "labels.csv").read_text().splitlines()) - 2
    assert f"watchglass: {others} labels for runs that are not among RUNS: " in said.err
    (alone,) = [line for line in said.out.splitlines() if line.startswith("runs/")]
    assert alone.split()[:4] == ["runs/a", "sick", "since", "5"]
