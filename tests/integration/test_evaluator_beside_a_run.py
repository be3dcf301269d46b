"""The evaluator process: writes the journal, asks for the stop, and ends with the training whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from waiting import PATIENCE_S, until
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.diagnose import diagnose, verdict
from watchglass.errors import MissingFileError
from watchglass.evaluate import replay
from watchglass.records import Severity, Status, Verdict, from_json
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import JournalWriter, LocalStore, layout
from watchglass.testing import RunBuilder, Step, build_run

pytestmark = pytest.mark.slow

NAN = float("nan")
BROKEN = [2.3, 30.0, 4e3, 5e6, NAN, NAN, NAN, NAN]


def config(run: Path, **options) -> str:
    return EvaluatorConfig(str(run), 0, options.pop("rules", default_rules()), poll_s=0.02, **options).to_line()


@contextmanager
def evaluator(argument: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "watchglass.evaluate"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.write(argument + "\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def close_lifeline(process: subprocess.Popen[str]) -> None:
    """Closes the lifeline, as the end of the starting process does."""
    process.stdin.close()
    process.stdin = None


def read_json(store: LocalStore, path: str) -> dict | None:
    try:
        return json.loads(store.read(path))
    except (MissingFileError, ValueError):
        return None


def test_live_findings_are_written_and_equal_replayed_ones(run_path: Path) -> None:
    with RunBuilder(run_path) as builder, evaluator(config(run_path)) as process:
        for loss in BROKEN:
            builder.step(scalars={"loss": loss, "learning_rate": 5.0})
            time.sleep(0.01)
        until(lambda: open_run(run_path).journal.findings)
        builder.leave("failed")
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    run = open_run(run_path)
    evaluation = replay(run_path)
    assert sorted(f.to_json()["id"] for f in run.journal.findings) == sorted(f.id for f in evaluation.findings)
    assert {f.id: f.to_json() for f in run.journal.findings} == {f.id: f.to_json() for f in evaluation.findings}
    assert tuple(run.journal.statuses) == evaluation.statuses
    assert diagnose(run.journal.findings)[0].causes[0].cause.id == "learning_rate_too_high"
    assert "watchglass: error: the loss became NaN at step 4 (ExplodingTensor)" in errors
    assert verdict(run).diagnoses == verdict(run, evaluation).diagnoses


def test_it_stays_while_the_training_lives_and_ends_after(run_path: Path) -> None:
    with RunBuilder(run_path) as builder, evaluator(config(run_path, quiet=True)) as process:
        builder.step(scalars={"loss": NAN})
        until(lambda: open_run(run_path).journal.findings)
        close_lifeline(process)  # the worker is this process, and lives
        time.sleep(0.3)
        assert process.poll() is None
        builder.step(scalars={"loss": NAN})
        builder.leave()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""
    (finding,) = open_run(run_path).journal.findings
    assert finding.count == 2


def test_it_ends_when_the_training_was_killed(run_path: Path) -> None:
    build_run(run_path, [Step(scalars={"loss": 1.0})] * 3, status=None)
    with evaluator(config(run_path)) as process:
        process.communicate(timeout=PATIENCE_S)  # closes its standard input: the lifeline
    assert process.returncode == 0
    run = open_run(run_path)
    assert [observation.kind for observation in run.journal.observations] == ["worker_joined", "worker_lost"]
    assert {status.rule: status.status for status in run.journal.statuses}["ExplodingTensor"] is Status.NO_ISSUES_FOUND
    JournalWriter(LocalStore(run_path)).close()  # the lease was given back


def test_it_ends_when_no_worker_ever_joined(run_path: Path) -> None:
    build_run(run_path, workers=0)
    with evaluator(config(run_path)) as process:
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(run_path: Path, number: int) -> None:
    with RunBuilder(run_path) as builder, evaluator(config(run_path)) as process:
        builder.step(scalars={"loss": NAN})
        until(lambda: open_run(run_path).journal.findings)
        os.kill(process.pid, number)
        if number == signal.SIGINT:
            time.sleep(0.3)
            assert process.poll() is None, "Ctrl-C is for the training"
        else:
            assert process.wait(PATIENCE_S) == 0
            statuses = {status.rule: status.status for status in open_run(run_path).journal.statuses}
            assert statuses["LossNotDecreasing"] is Status.IN_PROGRESS
        builder.leave()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_training_run_is_stopped_on_request(run_path: Path) -> None:
    with RunBuilder(run_path) as builder, evaluator(config(run_path, stop_on=Severity.ERROR)) as process:
        store = builder.store
        for loss in BROKEN[:5]:
            builder.step(scalars={"loss": loss})
        request = until(lambda: read_json(store, layout.control_request("stop", 0)))
        until(lambda: request["finding"] in {finding.id for finding in open_run(run_path).journal.findings})
        store.write(layout.control_seen("stop", 0, 0, "worker_0"), json.dumps({"train_step": 4, "wall_ns": 1}).encode())
        commit = until(lambda: read_json(store, layout.control_commit("stop", 0)))
        assert commit["at_step"] == 5
        builder.leave("stopped")
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    run = open_run(run_path)
    observed = [observation.kind for observation in run.journal.observations]
    assert observed == ["worker_joined", "stop_requested", "stop_committed"]
    assert verdict(run).status == "stopped"


def test_two_ranks_are_stopped_at_one_step(run_path: Path) -> None:
    with RunBuilder(run_path, workers=2) as builder, evaluator(config(run_path, stop_on=Severity.ERROR)) as process:
        store = builder.store
        for loss in BROKEN[:5]:
            builder.step(scalars={"loss": loss}, seconds=0.2)
        until(lambda: read_json(store, layout.control_request("stop", 0)))
        for rank, step in enumerate((4, 6)):
            assert read_json(store, layout.control_commit("stop", 0)) is None
            seen = json.dumps({"train_step": step, "wall_ns": 1}).encode()
            store.write(layout.control_seen("stop", 0, 0, f"worker_{rank}"), seen)
        commit = until(lambda: read_json(store, layout.control_commit("stop", 0)))
        assert commit["at_step"] >= 8
        builder.leave("stopped")
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_lost_rank_does_not_hold_up_the_others(run_path: Path) -> None:
    with RunBuilder(run_path, workers=2, alive=False) as builder, evaluator(config(run_path)) as process:
        builder.step(scalars={"loss": 1.0})
        for _ in range(3):
            builder.step(Step(scalars={"loss": NAN}, workers=[0]))
        builder.leave(ranks=[0])
        process.communicate(timeout=PATIENCE_S)
    (finding,) = open_run(run_path).journal.findings
    assert (finding.worker, finding.step, finding.count) == ("worker_0", 1, 3)
    assert [f.to_json() for f in replay(run_path).findings] == [finding.to_json()]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ((RuleSpec("DeadReLU"),), 'there is no rule "DeadReLU" (did you mean "DeadRelu"?)'),
        ((RuleSpec("DeadRelu", {"window": "x"}),), "DeadRelu: window must be a whole number but got 'x'"),
    ],
)
def test_mistakes_are_one_line(run_path: Path, rules: tuple[RuleSpec, ...], message: str) -> None:
    build_run(run_path)
    with evaluator(config(run_path, rules=rules)) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert errors.startswith(f"watchglass: {message}")
    assert errors.count("\n") == 1


def test_a_journal_that_another_writes_is_refused(run_path: Path) -> None:
    build_run(run_path)
    with JournalWriter(LocalStore(run_path)), evaluator(config(run_path)) as process:
        close_lifeline(process)
        assert process.wait(PATIENCE_S) == 2
        assert "is held by process" in process.stderr.read()


def test_a_rule_that_raises_is_observed(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from watchglass.rules import Rule\nclass Bad(Rule):\n    'Bad.'\n    def check(self, view):\n        1 / 0\n"
    )
    build_run(run_path, [Step(scalars={"loss": 1.0})], status=None)
    with evaluator(config(run_path, rules=(RuleSpec(f"{tmp_path}/mine.py:Bad"),))) as process:
        process.communicate(timeout=PATIENCE_S)
    run = open_run(run_path)
    assert run.journal.statuses[0].status is Status.ERROR
    error = next(observation for observation in run.journal.observations if observation.kind == "rule_error")
    assert "ZeroDivisionError" in error.data["traceback"]


def test_the_signal_to_end_is_no_error_of_a_rule(run_path: Path, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\nfrom watchglass.rules import Rule\nclass Slow(Rule):\n    'Slow.'\n"
        f"    def check(self, view):\n        Path({str(begun)!r}).touch()\n"
        f"        while not Path({str(go_on)!r}).exists():\n            time.sleep(0.01)\n"
    )
    with RunBuilder(run_path) as builder:
        for _ in range(10):
            builder.step(scalars={"loss": 1.0}, flush=False)
        builder.flush()
        settings = config(run_path, rules=(RuleSpec(f"{tmp_path}/slow.py:Slow"),), rule_timeout_s=PATIENCE_S)
        with evaluator(settings) as process:
            until(begun.exists)
            process.terminate()
            go_on.touch()
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        journal = open_run(run_path).journal
        assert journal.observations == []
        assert [status.status for status in journal.statuses] == [Status.IN_PROGRESS]
        JournalWriter(LocalStore(run_path)).close()


def test_a_signal_of_another_process_ends_one_wait_and_not_all_that_follow() -> None:
    """A rule that is timed out is woken by one."""
    code = """
import os, signal, time
from watchglass.supervise import Lifeline
ours, theirs = os.pipe()
lifeline = Lifeline(ours)
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)
assert lifeline.wait(600.0)
begun_s = time.monotonic()
assert lifeline.wait(0.3) and time.monotonic() - begun_s >= 0.3
os.kill(os.getpid(), signal.SIGTERM)
assert not lifeline.wait(600.0) and lifeline.terminated
assert not lifeline.wait(600.0), "no wait is long any more"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_starts_without_heavy_imports() -> None:
    code = "import sys, watchglass.evaluate; print(sorted({'pyarrow', 'plotly', 'typer', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_verdict_goes_into_the_file_that_waits_for_it_and_nothing_that_a_rule_prints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    build_run(run, [Step(scalars={"loss": 2.0 - 0.1 * step}) for step in range(8)])
    (tmp_path / "mine.py").write_text(
        "from watchglass import Needs, Rule\n"
        "class Loud(Rule):\n    needs = (Needs(scalars=('loss',)),)\n"
        "    def check(self, view):\n        print('loud')\n        return ()\n"
    )
    settings = config(run, rules=(RuleSpec(f"{tmp_path / 'mine.py'}:Loud"), RuleSpec("LossNotDecreasing")))
    with (tmp_path / "answer").open("w+b") as answer:
        process = subprocess.run(
            [sys.executable, "-m", "watchglass.evaluate"],
            input=settings.encode() + b"\n", stdout=answer, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        answer.seek(0)
        assert from_json(Verdict, json.loads(answer.read())) == verdict(open_run(run))
