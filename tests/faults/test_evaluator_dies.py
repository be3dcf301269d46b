"""An evaluator that dies beside a training run is noticed at once, and its successor continues from the journal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import NEVER, TRAIN, Processes, ended
from waiting import PATIENCE_S, until
from watchglass import open_run
from watchglass.errors import EXIT_STOPPED, WatchglassError
from watchglass.store import is_alive, lease_holder, open_store

pytestmark = pytest.mark.usefixtures("preloaded_python")


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()


class Said:
    """What a process prints on stderr, while it runs."""

    def __init__(self, stream: object) -> None:
        self._stream, self._lines = stream, []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self._lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def join(self) -> str:
        self._thread.join(PATIENCE_S)
        return self.text


def evaluator_of(run: Path, other_than: int = 0) -> int:
    """Process id of the evaluator that has the journal, once it has written something."""

    def found() -> int | None:
        holder = lease_holder(open_store(str(run)))
        if holder is None or holder.pid == other_than or not is_alive(holder) or not open_run(run).journal.statuses:
            return None
        return holder.pid

    return until(found, despite=(WatchglassError,))


@pytest.mark.slow
def test_one_that_is_killed_is_replaced_and_still_stops_the_training(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    process = processes.start(
        "-m", "watchglass", "run", "--run", "here", "--stop-on", "error", "train.py", NEVER, "breaks", "0.01",
        cwd=tmp_path,
    )  # fmt: skip
    said = Said(process.stderr)
    first = evaluator_of(tmp_path / "here")
    os.kill(first, signal.SIGKILL)
    until(lambda: "was killed by SIGKILL" in said.text)
    assert "restarting (1 of 3), continuing from the journal" in said.text
    second = evaluator_of(tmp_path / "here", other_than=first)
    os.kill(second, signal.SIGTERM)  # a signal that its launcher blocks, and it does not
    until(lambda: "ended before the run did" in said.text)
    until(lambda: "restarting in 5 s (2 of 3)" in said.text)
    third = evaluator_of(tmp_path / "here", other_than=second)
    assert third not in (first, second)
    (tmp_path / "breaks").touch()
    assert process.wait(PATIENCE_S) == EXIT_STOPPED
    text = said.join()
    assert text.count("the loss became NaN") >= 1
    assert "stopped" in text
    assert "watchglass check" not in text.partition("verdict on")[0]


def test_the_successor_repeats_no_line(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    process = processes.start(
        "-m", "watchglass", "run", "--run", "here", "train.py", "end", "0", "0.01", cwd=tmp_path
    )  # fmt: skip
    said = Said(process.stderr)
    until(lambda: "watchglass: error: the loss became NaN" in said.text)
    first = evaluator_of(tmp_path / "here")
    os.kill(first, signal.SIGKILL)
    evaluator_of(tmp_path / "here", other_than=first)
    (tmp_path / "end").touch()
    assert process.wait(PATIENCE_S) == 0
    assert said.join().count("watchglass: error: the loss became NaN") == 1


def test_one_that_dies_at_its_start_is_reported_and_given_up(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    # As if its packages were broken: it ends before it has done anything.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'watchglass.evaluate' in sys.orig_argv:\n    os._exit(7)\n"
    )
    process = processes.start(
        "-m", "watchglass", "run", "--run", "here", "train.py", "30", NEVER, "0",
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    status, _, err = ended(process)
    assert status == 0
    assert err.count("the evaluator ended with exit status 7; restarting") == 3
    assert ", 4 times in all; this run is no longer evaluated; to evaluate it later: watchglass check here" in err
    assert len(open_run(tmp_path / "here").steps()) == 30


WATCHED = TRAIN.replace(
    "step, broken = -1, False",
    "import watchglass\nwatchglass.watch(model, run='here', stop_on='error')\nstep, broken = -1, False",
)


def test_one_that_a_script_has_started_is_replaced_too(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WATCHED)
    process = processes.start("train.py", NEVER, "breaks", "0.01", cwd=tmp_path)
    said = Said(process.stderr)
    first = evaluator_of(tmp_path / "here")
    os.kill(first, signal.SIGKILL)
    until(lambda: "watchglass: the evaluator was killed by SIGKILL" in said.text)
    evaluator_of(tmp_path / "here", other_than=first)
    (tmp_path / "breaks").touch()
    assert process.wait(PATIENCE_S) == EXIT_STOPPED
    assert said.join().count("watchglass: error: the loss became NaN") == 1


def test_one_that_hangs_is_replaced(processes: Processes, tmp_path: Path) -> None:
    """Stopped by a signal it does nothing, however long it is waited for; the wait is short here."""
    (tmp_path / "train.py").write_text(TRAIN)
    body = (
        "from watchglass.cli import main; from watchglass.config import EvaluatorTiming, Timing; "
        "raise SystemExit(main(timing=Timing(evaluator=EvaluatorTiming(hung_s=3.0, hung_rules=0))))"
    )
    process = processes.start(
        "-c", body, "run", "--run", "here", "--stop-on", "error", "train.py", NEVER, "breaks", "0.01", cwd=tmp_path
    )  # fmt: skip
    said = Said(process.stderr)
    first = evaluator_of(tmp_path / "here")
    os.kill(first, signal.SIGSTOP)
    until(lambda: "did not respond for" in said.text)
    evaluator_of(tmp_path / "here", other_than=first)
    (tmp_path / "breaks").touch()
    assert process.wait(PATIENCE_S) == EXIT_STOPPED


def test_a_script_that_watches_itself_hears_where_the_run_is_and_the_verdict(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(WATCHED.replace(", stop_on='error'", ", rules='default'"))
    status, out, err = ended(processes.start("train.py", "40", NEVER, "0.005", cwd=tmp_path))
    assert (status, out) == (0, "rank 0 ended at 39\n")
    first, second, *rest = err.splitlines()
    assert first == f"watchglass: run directory {tmp_path / 'here'}"
    assert second == f"watchglass: verdict on {tmp_path / 'here'}"
    assert rest[0].startswith("no issues found in 40 steps")
