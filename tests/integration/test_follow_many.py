"""One follower for many training runs of separate processes, which know nothing of it, in a folder and in a bucket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from preloaded import Preloaded
from processes import NEVER, TRAIN, Processes, ended
from waiting import until
from watchglass import open_run
from watchglass.errors import EXIT_STOPPED, WatchglassError
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.session import rule_specs
from watchglass.store import layout, lease_holder, open_store

pytestmark = pytest.mark.slow

#: ``watchglass``, which waits only a moment, not half a minute, for a killed run to begin again, and looks at a bucket
#: as often as at a folder.
IMPATIENT = """
import sys
from functools import partial
from watchglass.cli import evaluator_options, main
from watchglass.config import EvaluatorConfig, EvaluatorTiming
evaluator_options.EvaluatorConfig = partial(
    EvaluatorConfig,
    timing=EvaluatorTiming(
        restarted_s=3.0, search_s=(0.2, 0.2), held_s=(0.5, 0.5), longest_rest_s=(1.0, 1.0), search_request_s=(0.1, 0.1),
    ),
)
sys.exit(main(sys.argv[1:]))
"""


#: All default rules would take most of the time, and followers judge by any rules alike.
RULES = "ExplodingTensor,LossNotDecreasing,DeadRelu,UnchangedTensor"


class Trainings(Processes):
    """Training runs and followers, each a separate process."""

    def __init__(self, folder: Path, preloaded: Preloaded) -> None:
        super().__init__()
        self.folder, self.preloaded = folder, preloaded
        (folder / "train.py").write_text(TRAIN)

    def watchglass(self, *words: str) -> subprocess.Popen[str]:
        return self.start("-c", IMPATIENT, *words, cwd=self.folder)

    def train(self, location: str, end: str | Path, broken_at: str | Path = NEVER) -> subprocess.Popen[str]:
        """One that the test kills has an interpreter of its own: a preloaded one's processes are not in its group."""
        python = sys.executable if (end, broken_at) == (NEVER, NEVER) else self.preloaded.python
        words = ("run", "--evaluator", "none", "--run", location, "train.py", end, broken_at, "0.02")
        return self.start("-m", "watchglass", *words, cwd=self.folder, python=python)


@pytest.fixture
def processes(tmp_path: Path, preloaded: Preloaded) -> Iterator[Trainings]:
    started = Trainings(tmp_path, preloaded)
    yield started
    started.close()


def eventually(condition: Callable[[], Any]) -> Any:
    # Each look opens a run, and takes processor time from those that it waits for.
    return until(condition, pause_s=0.5, despite=(WatchglassError,))


def test_a_sick_a_healthy_and_a_killed_training_have_one_follower(processes: Trainings, tmp_path: Path) -> None:
    assert_three_are_followed(processes, str(tmp_path / "runs"), tmp_path / "breaks")


@pytest.mark.timeout(900)  # a bucket is examined rarely, and the server may have other tests to serve
def test_they_have_one_follower_in_a_bucket_too(processes: Trainings, s3_location: str, tmp_path: Path) -> None:
    assert_three_are_followed(processes, s3_location, tmp_path / "breaks")


def assert_three_are_followed(processes: Trainings, prefix: str, breaks: Path) -> None:
    # One is there before the follower: where it found none for so long, it would end.
    killed = processes.train(f"{prefix}/team/killed", NEVER)
    eventually(lambda: open_run(f"{prefix}/team/killed"))
    follower = processes.watchglass("follow", prefix, "--rules", RULES, "--stop-on", "error", "--until-idle", "5")
    healthy = processes.train(f"{prefix}/healthy", "250")
    sick = processes.train(f"{prefix}/sick", NEVER, breaks)
    eventually(lambda: len(open_run(f"{prefix}/team/killed").steps()) > 5)

    # Anybody may look on, from a process of his own, while it goes on.
    statuses = eventually(lambda: open_run(f"{prefix}/team/killed").journal.statuses)
    assert Status.IN_PROGRESS in {status.status for status in statuses}
    status, out, err = ended(processes.watchglass("show", f"{prefix}/team/killed"))
    assert status == 0, err
    assert re.search(rf"evaluated by +process {follower.pid} on ", out)
    assert "InProgress" in out
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()

    eventually(lambda: open_run(f"{prefix}/sick").journal.statuses)
    breaks.touch()
    status, _, err = ended(sick)
    assert status == EXIT_STOPPED, err
    assert ended(healthy)[0] == 0

    status, out, err = ended(follower)
    assert status == 1, err
    for name, how in (("healthy", "finished"), ("sick", "stopped"), ("team/killed", "lost")):
        assert f"watchglass: [{name}] the run has ended: {how}" in err.splitlines()
        store = open_store(f"{prefix}/{name}")
        assert lease_holder(store) is None
        assert store.size(layout.JUDGED)
        run = open_run(store.location)
        expected = {finding.id: finding.to_json() for finding in replay(store.location, rule_specs([RULES])).findings}
        assert {finding.id: finding.to_json() for finding in run.journal.findings} == expected
    assert any(line.startswith("watchglass: [sick] error: ") and "ExplodingTensor" in line for line in err.splitlines())
    table = out[out.index(f"{prefix}: 3 runs") :].splitlines()[2:]
    rows = {line.split()[0]: line.split()[1] for line in table if line[:1].strip()}  # the others are wrapped cells
    assert (rows["healthy"], rows["sick"], rows["team/killed"]) == ("finished", "stopped", "lost")
    assert [name for name in ("healthy", "team/killed") if open_store(f"{prefix}/{name}").list("control/stop")] == []

    again = processes.watchglass("follow", prefix, "--rules", RULES, "--until-idle", "0.5")
    status, out, _ = ended(again)
    assert (status, out) == (0, f"{prefix}: 0 runs, and 3 that had ended and were evaluated before\n")


def test_a_follower_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled(
    processes: Trainings, tmp_path: Path
) -> None:
    prefix, end = str(tmp_path / "runs"), tmp_path / "end"
    trainings = [processes.train(f"{prefix}/run{number}", end, "40") for number in range(2)]
    first = processes.watchglass("follow", prefix, "--rules", RULES)
    eventually(lambda: all(open_run(f"{prefix}/run{number}").journal.findings for number in range(2)))
    second = processes.watchglass("follow", prefix, "--rules", RULES, "--until-idle", "5")
    assert second.stderr is not None
    said: list[str] = []
    for line in second.stderr:
        said.append(line)
        if sum(f"is followed by process {first.pid} on " in each for each in said) == 2:
            break
    else:
        raise AssertionError("".join(said))
    first.kill()
    first.communicate()
    end.touch()
    for training in trainings:
        assert ended(training)[0] == 0
    status, _, err = ended(second)
    assert status == 1, err
    for number in range(2):
        found = open_run(f"{prefix}/run{number}").journal.findings
        assert len({finding.id for finding in found}) == len(found)
        expected = {
            finding.id: finding.to_json() for finding in replay(f"{prefix}/run{number}", rule_specs([RULES])).findings
        }
        assert {finding.id: finding.to_json() for finding in found} == expected
