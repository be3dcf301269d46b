"""The commands that answer questions answer programs, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Watchglass
from watchglass.control import Commit, Stop, encode
from watchglass.records import Mode
from watchglass.run import open_run
from watchglass.store import LocalStore, layout
from watchglass.testing import Step, build_run


def answer(watchglass: Watchglass, *words: str | Path) -> Any:
    said = watchglass(*words)
    assert said.status in (0, 1), said.err
    return json.loads(said.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_show_has_the_content_of_a_run(watchglass: Watchglass, tmp_path: Path) -> None:
    made = [Step({"loss": value}, statistics={"fc1.weight": [1.0, 2.0]}) for value in (2.0, float("nan"))]
    build_run(
        tmp_path / "run", made, modules={"fc1": "Linear"}, facts={"optimizer": {"type": "SGD", "groups": [{"lr": 1}]}}
    )
    found = answer(watchglass, "show", tmp_path / "run", "--json")
    assert (found["state"], found["steps"], found["workers"]) == ("finished", {"TRAIN": 2}, ["worker_0"])
    assert found["scalars"] == [
        {"name": "loss", "mode": "TRAIN", "count": 2, "first": 2.0, "last": "NaN", "last_step": 1}
    ]
    (tensor,) = found["tensors"]
    assert (tensor["name"], tensor["role"], tensor["shape"]) == ("fc1.weight", "weight", [2])
    assert found["settings"]["lr"] == "1"


def test_show_has_the_runs_of_a_folder(watchglass: Watchglass, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_run(tmp_path / name, [Step({"loss": 1.0})])
    found = answer(watchglass, "show", tmp_path, "--json")
    assert (found["count"], [each["name"] for each in found["runs"]]) == (2, ["a", "b"])
    assert found["runs"][0]["train_steps"] == len(open_run(tmp_path / "a").steps())


def test_rules_are_listed_and_documented(watchglass: Watchglass) -> None:
    every = answer(watchglass, "rules", "--json")
    assert {"name": "DeadRelu", "summary": answer(watchglass, "rules", "DeadRelu", "--json")["summary"]} in every[
        "rules"
    ]
    names = next(each["rules"] for each in every["sets"] if each["name"] == "llm")
    assert [each["name"] for each in answer(watchglass, "rules", "llm", "--format", "json")["rules"]] == names


@pytest.mark.parametrize("words", [("check",), ("explain",), ("backtest", "DeadRelu")])
def test_json_is_short_for_the_format(watchglass: Watchglass, healthy: Path, words: tuple[str, ...]) -> None:
    short, long = watchglass(*words, healthy, "--json"), watchglass(*words, healthy, "--format", "json")
    assert json.loads(short.out).keys() == json.loads(long.out).keys()
    assert watchglass(*words, healthy, "--format", "text", "--json").status in (0, 1)


def test_two_formats_are_refused(watchglass: Watchglass, healthy: Path) -> None:
    error = watchglass("check", healthy, "--json", "--format", "markdown").error
    assert error == "use either --json or --format markdown, not both"


@pytest.fixture
def series(tmp_path: Path) -> Path:
    made = [Step({"loss": float(n)}, statistics={"fc1.weight": [3.0, 4.0 * n]}) for n in range(40)]
    made.append(Step({"loss": 7.0}, mode=Mode.EVAL))
    build_run(tmp_path / "run", made, modules={"fc1": "Linear"})
    return tmp_path / "run"


def test_show_has_a_scalar_over_steps(watchglass: Watchglass, series: Path) -> None:
    found = answer(watchglass, "show", series, "--series", "loss", "--points", "8", "--json")
    assert (found["run"], found["name"], found["values"]) == (str(series), "loss", 40)
    assert len(found["points"]) <= 8
    assert (found["points"][0]["low"], found["points"][-1]["high"]) == (0.0, 39.0)
    found = answer(watchglass, "show", series, "--series", "loss", "--steps", "10:12", "--json")
    assert [(each["step"], each["last"]) for each in found["points"]] == [(10, 10.0), (11, 11.0)]
    found = answer(watchglass, "show", series, "--series", "loss", "--mode", "eval", "--json")
    assert [(each["step"], each["last"]) for each in found["points"]] == [(39, 7.0)]
    lines = watchglass("show", series, "--series", "loss", "--steps", "10:12").out.splitlines()
    assert lines[0] == f"loss of {series}, train: 2 values"
    assert lines[-1].split() == ["11", "11", "11", "11", "0"]


def test_show_has_a_number_of_a_tensor_over_steps(watchglass: Watchglass, series: Path) -> None:
    norm = answer(watchglass, "show", series, "--series", "fc1.weight", "--steps", "0:2", "--json")
    assert (norm["name"], [each["last"] for each in norm["points"]]) == ("fc1.weight l2", [3.0, 5.0])
    most = answer(watchglass, "show", series, "--series", "fc1.weight", "--statistic", "max", "--json")
    assert most["points"][-1]["last"] == 156.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--series", "los"), "has no scalar or tensor 'los' (did you mean \"loss\"?); watchglass show "),
        (("--series", "loss", "--statistic", "l2"), "loss is a scalar, which has no statistic"),
        (("--series", "loss", "--mode", "test"), 'mode must be "train" or "eval"'),
        (("--series", "loss", "--points", "0"), "--points must be a whole number"),
        (("--series", "loss", "--steps", "5"), "--steps must be START:STOP"),
        (("--points", "5"), "--points needs --series NAME"),
    ],
)
def test_a_series_that_cannot_be_is_refused_in_a_line(
    watchglass: Watchglass, series: Path, words: tuple[str, ...], expected: str
) -> None:
    said = watchglass("show", series, *words)
    assert said.status == 2
    assert expected in said.err


def test_report_has_what_its_page_shows(watchglass: Watchglass, series: Path) -> None:
    found = answer(watchglass, "report", series, "--json")
    assert found["runs"][0]["run"] == str(series)
    titles = [each["title"] for each in found["blocks"]]
    assert found["runs"][0]["headline"] == titles[0]
    assert {"Figures", "Findings", "Settings"} <= set(titles)
    figures = next(each["blocks"] for each in found["blocks"] if each["title"] == "Figures")
    (loss,) = (line for line in figures[0]["picture"]["lines"] if "TRAIN" in line["name"].upper())
    assert loss["y"][-1] == 39.0
    assert not list(series.parent.glob("*.html"))


def test_report_compares_the_runs_of_a_folder(watchglass: Watchglass, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_run(tmp_path / name, [Step({"loss": 1.0})])
    found = answer(watchglass, "report", tmp_path, "--json")
    assert [Path(each["run"]).name for each in found["runs"]] == ["a", "b"]
    assert found["blocks"]


def test_report_prints_or_writes(watchglass: Watchglass, series: Path) -> None:
    assert "omit -o and --force" in watchglass("report", series, "--json", "-o", series.parent / "r.html").err
    assert "--profiler -o FILE.json" in watchglass("report", series, "--json", "--profiler").err


def test_actions_are_listed_documented_and_sent_again(watchglass: Watchglass, series: Path) -> None:
    every = answer(watchglass, "actions", "--json")["actions"]
    found = answer(watchglass, "actions", "StopTraining", "--json")
    assert {"name": "StopTraining", "summary": found["summary"]} in every
    assert found["parameters"][0]["name"] == "grace_s"
    assert answer(watchglass, "actions", series, "--resend", "--action", "Command:command=true", "--json") == {
        "run": str(series),
        "actions": [],
    }


def test_show_says_why_a_run_was_stopped(watchglass: Watchglass, tmp_path: Path) -> None:
    path = build_run(tmp_path / "run", [Step({"loss": 1.0})], status="stopped")
    LocalStore(path).write(layout.control_commit("stop", 0, 0), encode(Commit(1, Stop("the loss is flat")), 0))
    assert answer(watchglass, "show", path, "--json")["stop_reason"] == "the loss is flat"
    assert "stopped: the reason given: the loss is flat" in watchglass("show", path).out
