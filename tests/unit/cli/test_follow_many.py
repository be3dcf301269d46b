"""``watchglass follow PREFIX``: its output, its exit status, and how it ends."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from command_line import Watchglass, interrupted_once, training
from watchglass.cli.follow_output import conclude
from watchglass.config import EvaluatorConfig, EvaluatorTiming, Timing
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.run import open_run
from watchglass.store import JournalWriter, LocalStore, lease_holder
from watchglass.testing import RunBuilder, build_run


@pytest.fixture
def watchglass(watchglass: Watchglass) -> Watchglass:
    """No launcher will start these runs again, so there is nothing to wait for."""
    return partial(watchglass, timing=Timing(evaluator=EvaluatorTiming(settled_s=0.0, restarted_s=0.1)))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    build_run(tmp_path / "runs" / "healthy", training(), modules={"fc": "Linear"})
    build_run(tmp_path / "runs" / "team" / "broken", training(broken_at=80), modules={"fc": "Linear"})
    return tmp_path / "runs"


def test_each_line_names_its_run_and_a_table_ends_it(watchglass: Watchglass, runs: Path) -> None:
    said = watchglass("follow", runs, "--until-idle", "0.2")
    assert said.status == 1
    lines = said.err.splitlines()
    assert lines[:2] == [f"watchglass: waiting for {runs}", f"watchglass: following the runs below {runs}"]
    assert f"watchglass: [team/broken] following {runs / 'team' / 'broken'}" in lines
    assert any(line.startswith("watchglass: [team/broken] error: ") for line in lines)
    assert "watchglass: [healthy] the run has ended: finished" in lines
    assert "[healthy]\nno issues found in 120 steps (120 examined): " in said.out
    assert "[team/broken]\n1 error" in said.out
    table = said.out[said.out.index(f"{runs}: 2 runs") :].splitlines()
    assert table[1].split() == ["run", "state", "steps", "findings", "worst"]
    assert table[2].split() == ["healthy", "finished", "120", "none"]
    assert " ".join(table[3].split()).startswith("team/broken finished 120 1 error step 80: the loss became NaN")


def test_the_verdicts_are_those_of_check(watchglass: Watchglass, runs: Path) -> None:
    followed = watchglass("follow", runs, "--until-idle", "0.2").out
    for name in ("healthy", "team/broken"):
        assert watchglass("check", runs / name).out in followed


def test_runs_that_were_judged_before_are_counted_and_nothing_else(watchglass: Watchglass, runs: Path) -> None:
    watchglass("follow", runs, "--until-idle", "0.2", "--quiet")
    said = watchglass("follow", runs, "--until-idle", "0.2")
    assert said.status == 0
    assert said.out == f"{runs}: 0 runs, and 2 that had ended and were evaluated before\n"


@pytest.mark.parametrize(
    ("options", "status"),
    [((), 1), (("--fail-on", "never"), 2), (("--fail-on", "error"), 1), (("--rules", "Overfit"), 2)],
)
def test_a_finding_is_a_finding_whatever_else_could_not_be_judged(
    watchglass: Watchglass, runs: Path, options: tuple[str, ...], status: int
) -> None:
    (runs / "odd").mkdir()
    (runs / "odd" / "run.json").write_text("{")
    said = watchglass("follow", runs, "--until-idle", "0.2", *options)
    assert said.status == status
    assert said.err.count("watchglass: warning: [odd] skipped: ") == 1
    assert "its run.json is not JSON" in said.err


def test_healthy_runs_exit_0_and_a_quiet_follower_says_nothing(watchglass: Watchglass, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_run(tmp_path / "runs" / name, training(), modules={"fc": "Linear"})
    said = watchglass("follow", tmp_path / "runs", "--until-idle", "0.2", "--quiet")
    assert (said.status, said.out, said.err) == (0, "", "")
    assert open_run(tmp_path / "runs" / "a").journal.statuses


def test_ctrl_c_ends_all_of_them_in_order(watchglass: Watchglass, runs: Path) -> None:
    with RunBuilder(runs / "goes-on") as builder:
        for step in training(20, broken_at=10):
            builder.step(step)
        with interrupted_once(lambda: open_run(runs / "goes-on").journal.findings):
            said = watchglass("follow", runs)
        assert said.status == 130
        assert said.err.splitlines()[-1] == "watchglass: stopped following: interrupted"
        assert lease_holder(LocalStore(runs / "goes-on")) is None
        (row,) = [line for line in said.out.splitlines() if line.startswith("goes-on")]
        assert row.split()[:4] == ["goes-on", "running", "20", "1"]
        statuses = {status.status for status in open_run(runs / "goes-on").journal.statuses}
        assert statuses >= {Status.ISSUES_FOUND, Status.IN_PROGRESS}
        JournalWriter(LocalStore(runs / "goes-on")).close()


def test_training_runs_that_go_on_when_the_time_is_over_have_no_clean_answer(
    watchglass: Watchglass, runs: Path
) -> None:
    watchglass("follow", runs, "--until-idle", "0.2", "--quiet")
    with RunBuilder(runs / "goes-on") as builder:
        for step in training(20):
            builder.step(step)
        said = watchglass("follow", runs, "--timeout", "3")
    assert said.status == 2
    assert "stopped following: --timeout of 3 s reached" in said.err


def test_where_nothing_ever_comes_one_line_says_so(watchglass: Watchglass, tmp_path: Path) -> None:
    said = watchglass("follow", tmp_path / "nothing", "--wait", "0.2")
    assert said.status == 2
    assert said.err.splitlines()[1].startswith(f"watchglass: error: no run at or below {tmp_path / 'nothing'};")


def test_a_run_that_begins_later_is_followed_as_a_run(watchglass: Watchglass, tmp_path: Path) -> None:
    timer = threading.Timer(0.3, build_run, (tmp_path / "run", training()))
    timer.start()
    said = watchglass("follow", tmp_path / "run")
    timer.join()
    assert said.status == 0
    assert f"watchglass: following {tmp_path / 'run'}" in said.err.splitlines()


def test_findings_count_also_where_the_store_is_unreachable_when_the_verdict_is_asked_for(
    broken: Path, healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, status in ((broken, 1), (healthy, 2)):
        evaluation = replay(run)
        run.rename(run.with_name("unreachable"))
        assert conclude(EvaluatorConfig(str(run), None, ()), evaluation, "warning", ended=True) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"watchglass: error: no verdict, only the findings above: {run} does not exist")
        run.with_name("unreachable").rename(run.with_name(f"{run.name}-unreachable"))


def test_a_run_and_its_evaluator_can_be_inspected_meanwhile(watchglass: Watchglass, run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        for step in training(20):
            builder.step(step)
        assert "evaluated by" not in watchglass("show", run_path).out
        with JournalWriter(LocalStore(run_path)):
            assert f"evaluated by  process {os.getpid()} on " in watchglass("show", run_path).out
