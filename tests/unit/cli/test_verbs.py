"""``show``, ``rules``, ``report``, ``--version``, and how rules are written on a command line."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

import watchglass as package
from command_line import Watchglass
from watchglass.cli.run import _end_options_at_module
from watchglass.config import RuleSpec
from watchglass.rules import parse_rules, rule_names
from watchglass.run import open_run
from watchglass.store import LocalStore, write_launch_end
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.view import size


def test_show_says_what_is_there(watchglass: Watchglass, broken: Path) -> None:
    said = watchglass("show", broken)
    assert (said.status, said.err) == (0, "")
    for expected in ("train.py", "120 steps", "worker_0", "finished", "gradient/fc.weight", "learning_rate", "NaN"):
        assert expected in said.out
    assert f"not evaluated yet: watchglass check {broken}" in said.out


def test_show_names_an_unfinished_run(watchglass: Watchglass, killed: Path) -> None:
    said = watchglass("show", killed)
    assert "failed: its process ended" in said.out
    assert "the cost of watching is unknown: the process ended without a report" in said.out
    assert "yet" not in said.out.split("Capture")[1].split("Rules")[0]


def test_show_lists_the_newest_runs_of_a_folder_and_counts_the_others(
    watchglass: Watchglass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchglass.cli.show._MOST_RUNS", 2)
    for name in ("oldest", "older", "newer", "newest"):
        build_run(tmp_path / "runs" / name, [Step({"loss": 1.0})])
    (tmp_path / "runs/older/run.json").write_text("nonsense")
    said = watchglass("show", tmp_path / "runs")
    lines = said.out.splitlines()
    assert said.status == 0
    assert lines[0].endswith("runs: 4 runs")
    assert [line.split()[0] for line in lines[2:4]] == ["newer", "newest"]
    assert lines[4:] == [f"  … and 2 more, 1 of them unreadable; every run: watchglass show {tmp_path / 'runs'} --all"]
    every = [line.split()[0] for line in watchglass("show", tmp_path / "runs", "--all").out.splitlines()[2:]]
    assert [word for word in every if word in ("oldest", "older", "newer", "newest", "…")] == [
        "older", "oldest", "newer", "newest",
    ]  # fmt: skip


def test_show_says_which_signal_ended_a_process_that_left_no_reason(watchglass: Watchglass, killed: Path) -> None:
    write_launch_end(LocalStore(killed), 0, rank=0, world_size=1, exit_status=143, pid=os.getpid())
    assert "failed: ended by SIGTERM" in watchglass("show", killed).out


def test_show_says_of_which_worker_values_are(watchglass: Watchglass, tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "pool", workers=2, alone=True) as builder:
        for number in range(5):
            builder.step(Step({"loss": 1.0}, workers=(0, 1) if number < 2 else (1,)))
        builder.leave()
    said = watchglass("show", tmp_path / "pool").out
    assert [line.split() for line in said.splitlines() if " TRAIN  " in line and "steps" in line] == [
        ["worker_0", "TRAIN", "2", "steps", "0", "to", "1"], ["worker_1", "TRAIN", "5", "steps", "0", "to", "4"],
    ]  # fmt: skip
    assert "Last values of worker_0\n" in said
    assert "Tensors of worker_0\n" in said
    assert repr(open_run(tmp_path / "pool")).endswith("2 workers, 7 TRAIN steps, 1 tensor, finished)")
    listed = watchglass("show", tmp_path).out.splitlines()[2].split()
    assert (listed[4], *listed[-3:]) == ("7", "2", "not", "evaluated")


def test_show_says_nothing_of_workers_where_there_is_one(watchglass: Watchglass, broken: Path) -> None:
    assert "Last values\n" in watchglass("show", broken).out


def test_rules_lists_every_rule_in_a_line(watchglass: Watchglass) -> None:
    said = watchglass("rules")
    assert said.status == 0
    lines = said.out.splitlines()
    listed = [line for line in lines[: lines.index("")] if not line.startswith(" ")]  # the others continue a summary
    assert [line.split()[0] for line in listed] == rule_names()


@pytest.mark.parametrize("name", rule_names())
def test_each_rule_is_documented(watchglass: Watchglass, name: str) -> None:
    said = watchglass("rules", name)
    assert said.status == 0
    for section in ("Looks at", "Fires when", "Usual causes", "What to try", "Source"):
        assert f"\n{section}\n" in said.out
    assert ("\nParameters\n" in said.out) is not ("\nNo parameters\n" in said.out)
    assert f"watchglass run --rules {name}" in said.out


def test_parameters_are_listed_with_default_limits_and_unit(watchglass: Watchglass) -> None:
    assert "window  a whole number, default 8, >= 1, in captures" in watchglass("rules", "DeadRelu").out


def test_items_of_a_list_are_lines_and_code_keeps_its_case(watchglass: Watchglass) -> None:
    lines = watchglass("rules", "LossGraph").out.splitlines()
    assert any(line.startswith("  * A clamp limits logits") for line in lines)
    assert any(line.startswith("  dim=0 in place of dim=1") for line in lines)
    assert any(line.startswith("  Use cross_entropy on raw outputs") for line in lines)


def test_a_report_is_written_and_not_overwritten(watchglass: Watchglass, broken: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "report.html"
    said = watchglass("report", broken, "-o", target)
    assert (said.status, said.err) == (0, "")
    assert said.out == f"{target} ({size(target.stat().st_size)})\n"
    assert "ExplodingTensor" in target.read_text()
    assert "--force" in watchglass("report", broken, "-o", target).error
    assert watchglass("report", broken, "-o", target, "--force").status == 0
    assert watchglass("report", broken).out.startswith("broken.html (")


def test_a_trace_is_written_and_not_overwritten(watchglass: Watchglass, broken: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "trace.json"
    said = watchglass("trace", broken, "-o", target)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(f"{target} (")
    document = json.loads(target.read_text())
    marks = [event["name"] for event in document["traceEvents"] if event["ph"] == "i"]
    assert "ExplodingTensor (error)" in marks
    assert "--force" in watchglass("trace", broken, "-o", target).error
    assert watchglass("trace", broken, "-o", target, "--force", "--steps", "2:4").status == 0
    document = json.loads(target.read_text())
    shown = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert shown == ["step 2", "step 3"]


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        ("5", "--steps must be START:STOP with START below STOP, such as 100:200, but got '5'"),
        ("7:7", "--steps must be START:STOP with START below STOP, such as 100:200, but got '7:7'"),
        ("7000:7001", "has no training step of 7000:7001; it has 0 to"),
    ],
)
def test_steps_of_a_trace_are_checked(
    watchglass: Watchglass, healthy: Path, tmp_path: Path, steps: str, line: str
) -> None:
    said = watchglass("trace", healthy, "-o", tmp_path / "trace.json", "--steps", steps)
    assert said.status == 2
    assert line in said.error
    assert not (tmp_path / "trace.json").exists()


def test_version(watchglass: Watchglass) -> None:
    assert watchglass("--version") == (0, f"watchglass {package.__version__}\n", "")


@pytest.mark.parametrize("verb", ["run", "check", "show", "rules", "report", "trace", "profile", "follow", "export"])
def test_every_verb_has_help(watchglass: Watchglass, verb: str) -> None:
    said = watchglass(verb, "--help")
    assert not re.search(r"(\s|^)--[a-z-]*-$", said.out, re.MULTILINE), "a name of an option is broken in two"
    assert (said.status, said.err) == (0, "")
    assert f"watchglass {verb}" in said.out


def test_the_list_of_verbs_has_their_whole_summaries(watchglass: Watchglass) -> None:
    said = watchglass("--help")
    assert (said.status, said.err) == (0, "")
    whole = "Write a run as tidy Parquet tables for pandas, polars, DuckDB or Spark, or for TensorBoard or Weights &"
    assert f"{whole} Biases." in " ".join(said.out.split())
    assert watchglass() == (2, said.out, "")


@pytest.mark.parametrize(
    ("texts", "specs"),
    [
        (["DeadRelu"], [("DeadRelu", {})]),
        (["DeadRelu,Overfit", "ExplodingTensor"], [("DeadRelu", {}), ("Overfit", {}), ("ExplodingTensor", {})]),
        (["DeadRelu:window=5,threshold_layer=0.5, Overfit:patience=2"],
         [("DeadRelu", {"window": "5", "threshold_layer": "0.5"}), ("Overfit", {"patience": "2"})]),
        (["my.py:Mine", "sub/my.py:Mine:limit=1e-3,name=a=b"],
         [("my.py:Mine", {}), ("sub/my.py:Mine", {"limit": "1e-3", "name": "a=b"})]),
        (["my.py,my.py:limit=3"], [("my.py", {}), ("my.py", {"limit": "3"})]),
        ([r"C:\rules\my.py:Mine:x=1"], [(r"C:\rules\my.py:Mine", {"x": "1"})]),
    ],
)  # fmt: skip
def test_rules_as_written_on_a_command_line(texts: list[str], specs: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_rules(texts) == tuple(RuleSpec(name, dict(parameters)) for name, parameters in specs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["--quiet", "-m", "pkg", "--run", "x"], ["--quiet", "-m", "pkg", "--", "--run", "x"]),
        (["--run", "-m", "-m", "pkg", "-m"], ["--run", "-m", "-m", "pkg", "--", "-m"]),
        (["--run=d", "-mpkg", "a"], ["--run=d", "-m", "pkg", "--", "a"]),
        (["--", "-m"], ["--", "-m"]),
        (["-m"], ["-m", "--"]),
        ([], []),
    ],
)
def test_options_end_at_the_module(words: list[str], expected: list[str]) -> None:
    assert _end_options_at_module(words, {"--run"}) == expected


def test_the_example_of_a_rule_of_ones_own_can_be_typed(watchglass: Watchglass, tmp_path: Path) -> None:
    file = tmp_path / "my rules.py"
    file.write_text(
        "from watchglass import Rule\n\n\nclass Mine(Rule):\n    factor: float = 2.0\n\n"
        "    def check(self, view):\n        return ()\n"
    )
    example = watchglass("rules", f"{file}:Mine").out.splitlines()[-1]
    assert shlex.split(example) == ["watchglass", "run", "--rules", f"{file}:Mine:factor=2.0", "train.py"]


def test_a_misspelt_set_has_its_near_name(watchglass: Watchglass) -> None:
    assert 'there is no rule "visoin" (did you mean "vision"?)' in watchglass("rules", "visoin").error
