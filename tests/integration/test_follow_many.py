"""One follower for many trainings of processes of their own, which know nothing of it, in a folder and in a bucket."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from watchglass import open_run
from watchglass.errors import EXIT_STOPPED, WatchglassError
from watchglass.evaluate import replay
from watchglass.records import Status
from watchglass.store import layout, lease_holder, open_store

pytestmark = pytest.mark.slow

TRAIN = """
    import sys, time
    import torch
    import torch.nn.functional as F
    from torch import nn

    steps, broken_at = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        inputs = torch.randn(16, 8)
        loss = F.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        (loss * float("nan") if step == broken_at else loss).backward()
        optimizer.step()
        time.sleep(0.02)
"""


class Processes:
    """Trainings and followers, each a process of its own; none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(textwrap.dedent(TRAIN))
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "watchglass", *map(str, words)],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def train(self, location: str, steps: int, broken_at: int = -1) -> subprocess.Popen[str]:
        return self.start("run", "--evaluator", "none", "--run", location, self.script, str(steps), str(broken_at))

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.close()


def ended(process: subprocess.Popen[str], timeout_s: float = 240.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def wait_for(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except WatchglassError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"did not happen within {seconds:g} s")


def test_a_sick_a_healthy_and_a_killed_training_have_one_follower(processes: Processes, tmp_path: Path) -> None:
    _follow_three(processes, str(tmp_path / "runs"))


@pytest.mark.timeout(900)  # a bucket is looked at rarely, and the server may have other tests to serve
def test_they_have_one_follower_in_a_bucket_too(processes: Processes, s3_location: str) -> None:
    _follow_three(processes, s3_location)


def _follow_three(processes: Processes, prefix: str) -> None:
    follower = processes.start("follow", prefix, "--stop-on", "error", "--until-idle", "5")
    healthy = processes.train(f"{prefix}/healthy", 250)
    killed = processes.train(f"{prefix}/team/killed", 100_000)
    wait_for(lambda: len(open_run(f"{prefix}/team/killed").steps()) > 5)

    # Anybody may look on, from a process of his own, while it goes on.
    statuses = wait_for(lambda: open_run(f"{prefix}/team/killed").journal.statuses)
    assert Status.IN_PROGRESS in {status.status for status in statuses}
    status, out, err = ended(processes.start("show", f"{prefix}/team/killed"))
    assert status == 0, err
    assert re.search(rf"evaluated by +process {follower.pid} on ", out)
    assert "InProgress" in out
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()

    sick = processes.train(f"{prefix}/sick", 100_000, 40)
    status, _, err = ended(sick)
    assert status == EXIT_STOPPED, err
    assert ended(healthy)[0] == 0

    status, out, err = ended(follower)
    assert status == 1, err
    for name, how in (("healthy", "finished"), ("sick", "stopped"), ("team/killed", "lost")):
        assert f"watchglass: [{name}] the training has ended: {how}" in err.splitlines()
        store = open_store(f"{prefix}/{name}")
        assert lease_holder(store) is None
        assert store.size(layout.JUDGED)
        run = open_run(store.location)
        expected = {finding.id: finding.to_json() for finding in replay(store.location).findings}
        assert {finding.id: finding.to_json() for finding in run.journal.findings} == expected
    assert any(line.startswith("watchglass: [sick] error: ") and "ExplodingTensor" in line for line in err.splitlines())
    rows = {line.split()[0]: line.split()[1] for line in out[out.index(f"{prefix}: 3 runs") :].splitlines()[2:] if line}
    assert (rows["healthy"], rows["sick"], rows["team/killed"]) == ("finished", "stopped", "lost")
    assert [name for name in ("healthy", "team/killed") if open_store(f"{prefix}/{name}").list("control/stop")] == []

    again = processes.start("follow", prefix, "--until-idle", "0.5")
    status, out, _ = ended(again)
    assert (status, out) == (0, f"{prefix}: 0 runs, and 3 that had ended and been judged before\n")


def test_a_follower_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled(
    processes: Processes, tmp_path: Path
) -> None:
    prefix = str(tmp_path / "runs")
    trainings = [processes.train(f"{prefix}/run{number}", 400, 40) for number in range(2)]
    first = processes.start("follow", prefix)
    wait_for(lambda: all(open_run(f"{prefix}/run{number}").journal.findings for number in range(2)))
    second = processes.start("follow", prefix, "--until-idle", "5")
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
    for training in trainings:
        assert ended(training)[0] == 0
    status, _, err = ended(second)
    assert status == 1, err
    for number in range(2):
        found = open_run(f"{prefix}/run{number}").journal.findings
        assert len({finding.id for finding in found}) == len(found)
        expected = {finding.id: finding.to_json() for finding in replay(f"{prefix}/run{number}").findings}
        assert {finding.id: finding.to_json() for finding in found} == expected
