"""``watchglass follow``: its output, its exit status, and how it ends."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from command_line import Watchglass, interrupted_once, training
from watchglass.cli.app import application
from watchglass.config import EvaluatorTiming, Timing
from watchglass.launch import Job
from watchglass.records import Severity, Status
from watchglass.run import open_run
from watchglass.store import JournalWriter, LocalStore, lease_holder
from watchglass.testing import RunBuilder


@pytest.fixture
def watchglass(watchglass: Watchglass) -> Watchglass:
    """No launcher will start these runs again, so there is nothing to wait for."""
    return partial(watchglass, timing=Timing(evaluator=EvaluatorTiming(settled_s=0.0, restarted_s=0.1)))


def test_a_healthy_run_exits_0_and_is_judged_in_its_journal(watchglass: Watchglass, healthy: Path) -> None:
    said = watchglass("follow", healthy)
    assert said.status == 0
    assert said.out.startswith("no issues found in 120 steps (120 examined): ")
    assert said.err.splitlines() == [
        f"watchglass: waiting for {healthy}",
        f"watchglass: following {healthy}",
        "watchglass: the run has ended: finished",
    ]
    assert {status.status for status in open_run(healthy).journal.statuses} <= {
        Status.NO_ISSUES_FOUND, Status.NOT_APPLICABLE, Status.STARVED,
    }  # fmt: skip
    assert lease_holder(LocalStore(healthy)) is None


def test_a_broken_run_exits_1_with_the_verdict_of_check(watchglass: Watchglass, broken: Path) -> None:
    checked = watchglass("check", broken)
    said = watchglass("follow", broken)
    assert (said.status, said.out) == (1, checked.out)
    assert any(line.startswith("watchglass: error: ") and "(ExplodingTensor)" in line for line in said.err.splitlines())
    assert watchglass("follow", broken, "--fail-on", "never").status == 0


def test_a_training_run_that_died_is_reported(watchglass: Watchglass, killed: Path) -> None:
    said = watchglass("follow", killed)
    assert said.status == 2
    assert "watchglass: the run has ended: lost" in said.err
    assert "the run failed: its process ended without reporting why" in said.err


def test_a_file_is_refused_at_once(watchglass: Watchglass, tmp_path: Path) -> None:
    file = tmp_path / "losses.csv"
    file.write_text("0.5")
    said = watchglass("follow", file, "--wait", "5")
    assert said.status == 2
    assert said.err == (
        f"watchglass: error: {file} is not a run: it holds no run.json; "
        "give the folder that holds a watchglass run.json\n"
    )


def test_quiet_says_nothing_but_what_is_wrong(watchglass: Watchglass, broken: Path) -> None:
    said = watchglass("follow", broken, "--quiet")
    assert (said.status, said.out, said.err) == (1, "", "")
    assert any(finding.severity is Severity.ERROR for finding in open_run(broken).journal.findings)


def test_only_the_rules_that_were_asked_for(watchglass: Watchglass, broken: Path) -> None:
    said = watchglass("follow", broken, "--rules", "Overfit")
    assert said.status == 0
    assert [status.rule for status in open_run(broken).journal.statuses] == ["Overfit"]


def test_a_training_run_that_goes_on_is_left_when_the_time_is_over(watchglass: Watchglass, run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        for step in training(20):
            builder.step(step)
        said = watchglass("follow", run_path, "--timeout", "2")
        assert said.status == 2
        assert "stopped following before the end of the run: --timeout of 2 s reached" in said.err
        assert Status.IN_PROGRESS in {status.status for status in open_run(run_path).journal.statuses}
        JournalWriter(LocalStore(run_path)).close()


def test_ctrl_c_ends_it_in_order(watchglass: Watchglass, run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        for step in training(20, broken_at=10):
            builder.step(step)
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        with interrupted_once(lambda: open_run(run_path).journal.findings):
            said = watchglass("follow", run_path)
        assert said.status == 130
        assert "stopped following before the end of the run: interrupted" in said.err
        assert "ExplodingTensor" in said.out
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        JournalWriter(LocalStore(run_path)).close()


def test_what_can_never_come_is_not_waited_for(watchglass: Watchglass) -> None:
    assert "s3://" in watchglass("follow", "s3://").error


def test_it_is_a_verb(watchglass: Watchglass) -> None:
    assert "follow" in {command.name or command.callback.__name__ for command in application().registered_commands}
    assert "watchglass follow" in watchglass("follow", "--help").out


def test_runs_go_below_what_the_environment_or_the_option_says(watchglass: Watchglass, jobs: list[Job]) -> None:
    watchglass("run", "train.py")
    watchglass("run", "train.py", env={"WATCHGLASS_RUNS": "s3://bucket/team"})
    watchglass("run", "--runs", "mine", "--evaluator", "none", "train.py")
    assert [job.runs for job in jobs] == ["runs", "s3://bucket/team", "mine"]
    assert [job.evaluator is not None for job in jobs] == [True, True, False]


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--metrics-port", "99999", "must be 0 to 65535 but got 99999; 0 selects a free port"),
        ("--metrics-port", "-1", "must be 0 to 65535 but got -1; 0 selects a free port"),
        ("--wait", "-1", "must be a number of seconds >= 0 but got -1"),
        ("--timeout", "nan", "must be a number of seconds >= 0 but got nan"),
        ("--until-idle", "-0.5", "must be a number of seconds >= 0 but got -0.5"),
        ("--lost-after", "0.5", "must be a number of seconds >= 1 but got 0.5"),
    ],
)
def test_a_number_that_is_not_allowed_is_named(
    watchglass: Watchglass, option: str, value: str, rule: str, tmp_path: Path
) -> None:
    said = watchglass("follow", tmp_path / "run", option, value)
    assert (said.status, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert line.startswith(f"watchglass: error: {option} {rule}")


def test_a_live_run_is_not_spread_over_a_cluster(watchglass: Watchglass, healthy: Path) -> None:
    said = watchglass("follow", healthy, "--engine", "ray")
    assert (said.status, said.out) == (2, "")
    *_, line = said.err.splitlines()
    assert f"--engine ray needs a folder or prefix of runs, but {healthy} is one run; omit --engine" in line
