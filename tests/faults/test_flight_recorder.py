"""Training runs that are killed at any moment leave all their steps behind, the last one included."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import NEVER, TRAIN
from waiting import until
from watchglass import Hook, open_run
from watchglass.capture.limits import CaptureLimits
from watchglass.config import Timing
from watchglass.errors import StoreError
from watchglass.record import harvest, recovered_steps
from watchglass.run import Run
from watchglass.store import Content, LocalStore, is_alive, lease_holder, open_store, read_claims, rings_exist

#: Tells a script when its steps are safe: what was there before the worker's files were opened has been copied.
RECORDING = """
import time

def recording(hook):
    return hook.port._recorder._whole_kept > 0

def wait_until_recording(hook):
    while not recording(hook):
        time.sleep(0.001)
"""

#: A loop that says which step it has completed, for as long as somebody listens. The flush interval is long, so that
#: nothing but the flight recorder has the last steps.
LOOP = (
    RECORDING
    + """
import sys
import numpy as np
import watchglass

hook = watchglass.Hook(sys.argv[1], save_interval=int(sys.argv[2]), flush_interval_s=float(sys.argv[3]))
random = np.random.default_rng(0)
weight = random.normal(size=(16, 16))
for number in range(1_000_000):
    with hook.step("train"):
        gradient = 0.01 * random.normal(size=(16, 16))
        hook.save_scalar("loss", 1.0 / (number + 1))
        if number % int(sys.argv[2]) == 0:
            hook.save_tensor("gradient", gradient)
        weight -= gradient
    if number == 0:
        wait_until_recording(hook)
    print(number, flush=True)
"""
)

#: A training run that knows nothing of us but for one line, which kills it in the middle of a step.
TORCH = (
    RECORDING
    + """
import os, signal, sys
import torch
from torch import nn

if sys.argv[2] == "watch":
    import watchglass
    watchglass.watch(model := nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), **eval(sys.argv[3]))
else:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
torch.manual_seed(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
done = -1
while True:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,)))
    loss.backward()
    optimizer.step()
    done += 1
    if done == 0:
        from watchglass.session import current_hook
        hook = current_hook()
        first = True
    # The first step is over when the second begins; only then is there anything to be copied.
    if done == 1:
        wait_until_recording(hook)
    if done == int(sys.argv[1]):
        print(done, loss.item(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL) if "abort" not in sys.argv else os.abort()
"""
)


def losses_of(run: Run) -> list[float]:
    steps, losses = run.scalars("loss")
    assert steps.tolist() == run.steps()
    return losses.tolist()


@pytest.mark.parametrize(("interval", "flush_s"), [(1, 60.0), (4, 0.02), (1_000_000, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_a_loop_killed_at_any_moment_has_lost_no_step(run_path: Path, interval: int, flush_s: float, seed: int) -> None:
    chance = random.Random(f"{interval} {seed}")
    command = [sys.executable, "-c", LOOP, str(run_path), str(interval), str(flush_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(chance.choice([1, 30, 400]))]
        for _ in range(chance.randrange(2000)):
            pass  # somewhere within a step
        process.kill()
        said += process.stdout.readlines()
    last = int([line for line in said if line.endswith(b"\n")][-1])
    store = open_store(str(run_path))
    harvest(store, by="test")
    run = open_run(run_path)
    steps = run.steps()
    # The step after the last one it spoke of may have been completed too.
    assert steps in (list(range(last + 1)), list(range(last + 2)))
    assert losses_of(run) == [1.0 / (step + 1) for step in steps]
    assert run.worker().lifecycle[-1]["event"] in ("harvested", "joined")
    assert not rings_exist(store, read_claims(store, 0)["worker_0"].rings)
    if interval == 1:
        # Statistics are copied every twentieth of a second, whatever the flush interval.
        assert len(run.tensor("gradient").steps()) > 0
    assert harvest(store, by="test") == []
    assert open_run(run_path).steps() == steps


def trained(folder: Path, *arguments: str, launch: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TORCH)
    command = [sys.executable, *launch, "train.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.usefixtures("preloaded_python")
@pytest.mark.parametrize(
    ("how", "status", "last"),
    [("kill", 128 + signal.SIGKILL, 1), ("kill", 128 + signal.SIGKILL, 157), ("abort", 128 + signal.SIGABRT, 40)],
)
def test_the_launcher_recovers_a_training_run_that_dies_by_a_signal(
    tmp_path: Path, how: str, status: int, last: int
) -> None:
    launch = ("-m", "watchglass", "run", "--run", "here", "--evaluator=none")
    done = trained(tmp_path, str(last), "bare", how, launch=launch)
    assert done.returncode == status, done.stderr
    run = open_run(tmp_path / "here")
    assert run.steps() == list(range(last + 1))
    assert losses_of(run)[-1] == pytest.approx(float(done.stdout.split()[1]))
    assert run.scalars("learning_rate")[1].tolist() == [0.25] * (last + 1)
    assert run.worker().lifecycle[-1]["by"] == "launcher"
    assert recovered_steps(run.worker().lifecycle) > 0
    assert not run.finished
    shown = subprocess.run(
        [sys.executable, "-m", "watchglass", "show", "here"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "recovered from the flight recorder: a process ended before it had written all" in " ".join(
        shown.stdout.split()
    )


@pytest.mark.usefixtures("preloaded_python")
def test_recovered_steps_are_judged_before_the_launcher_gives_its_verdict(tmp_path: Path) -> None:
    launch = ("-m", "watchglass", "run", "--run", "here")
    done = trained(tmp_path, "60", "bare", "kill", launch=launch)
    assert done.returncode == 128 + signal.SIGKILL
    said = " ".join(done.stderr.split())
    assert "recovered from the flight recorder" in said
    assert "61 training steps" in said


@pytest.mark.usefixtures("preloaded_python")
def test_the_evaluator_recovers_a_training_run_that_has_no_launcher(tmp_path: Path) -> None:
    done = trained(tmp_path, "40", "watch", "dict(run='here', rules='default')")
    assert done.returncode == -signal.SIGKILL, done.stderr
    # The evaluator has a session of its own; it ends by itself, after the training.
    until(lambda: open_run(tmp_path / "here").worker().lifecycle[-1]["event"] == "harvested")
    run = open_run(tmp_path / "here")
    assert run.worker().lifecycle[-1]["by"] == "evaluator"
    assert run.steps() == list(range(41))
    until(lambda: any(seen.kind == "worker_lost" for seen in open_run(tmp_path / "here").journal.observations))
    until(lambda: lease_holder(open_store(str(tmp_path / "here"))) is None)


@pytest.mark.usefixtures("preloaded_python")
def test_the_next_attempt_recovers_unrecovered_steps(tmp_path: Path) -> None:
    for _ in range(2):
        done = trained(tmp_path, "25", "watch", "dict(run='here')")
        assert done.returncode == -signal.SIGKILL, done.stderr
    first = open_run(tmp_path / "here", attempt=0)
    assert first.steps() == list(range(26))
    assert first.worker().lifecycle[-1]["by"] == "next attempt"
    store = open_store(str(tmp_path / "here"))
    assert rings_exist(store, read_claims(store, 1)["worker_0"].rings)
    assert [found.attempt for found in harvest(store, by="test")] == [1]
    assert open_run(tmp_path / "here", attempt=1).steps() == list(range(26))


class FullDisk(LocalStore):
    """Takes the first record of a worker and nothing that is appended to it."""

    def append(self, path: str, data: bytes) -> None:
        raise StoreError("the disk is full")

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        if "segments" in path and b'"joined"' not in b"".join([data] if isinstance(data, bytes) else data):
            raise StoreError("the disk is full")
        super().write(path, data, replace=replace)


def test_a_disk_that_is_full_to_the_end_loses_nothing_either(run_path: Path) -> None:
    # The first flush and the first copy are at the end: what the failed flush took out of the queue is copied then.
    limits = CaptureLimits(timing=Timing(flight_copy_s=600.0, recorder_look_s=600.0))
    with Hook(run_path, flush_interval_s=600.0, limits=limits, open_store=FullDisk) as hook:
        for number in range(300):
            with hook.step("train"):
                hook.save_scalar("loss", 1.0 / (number + 1))
                hook.save_scalar("reward", float(number))
    store = open_store(str(run_path))
    assert open_run(run_path).steps() == []
    assert rings_exist(store, read_claims(store, 0)["worker_0"].rings)
    assert [found.steps for found in harvest(store, by="test")] == [300]
    run = open_run(run_path)
    assert losses_of(run) == [1.0 / (number + 1) for number in range(300)]
    assert run.scalars("reward")[1].tolist() == list(range(300))


def test_it_can_be_switched_off(run_path: Path) -> None:
    with Hook(run_path, flight_recorder=False) as hook:
        for _ in range(3):
            with hook.step("train"):
                hook.save_scalar("loss", 1.0)
    assert open_run(run_path).steps() == [0, 1, 2]
    assert read_claims(open_store(str(run_path)), 0)["worker_0"].rings == ()


@pytest.mark.usefixtures("preloaded_python")
def test_a_training_run_that_ends_in_peace_leaves_no_ring(tmp_path: Path) -> None:
    body = TORCH.replace("os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)")
    (tmp_path / "train.py").write_text(body)
    command = [sys.executable, "train.py", "30", "watch", "dict(run='here')"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    store = open_store(str(tmp_path / "here"))
    claim = read_claims(store, 0)["worker_0"]
    assert claim.released
    assert len(claim.rings) == 2
    assert not rings_exist(store, claim.rings)
    assert list((tmp_path / "here" / "attempts" / "0000").glob(".*")) == []
    assert open_run(tmp_path / "here").worker().lifecycle[-1]["event"] == "left"
    assert harvest(store, by="test") == []


@pytest.mark.usefixtures("preloaded_python")
def test_check_recovers_a_training_run_whose_launcher_was_killed_with_it(tmp_path: Path) -> None:
    """In its first moments, before anything was flushed: every step is there with the loss that the script printed."""
    (tmp_path / "train.py").write_text(
        TRAIN.replace("loss.backward()", "loss.backward(); print(loss.item(), flush=True)")
    )
    command = ["-m", "watchglass", "run", "--run", "here", "--evaluator", "none", "train.py", NEVER, NEVER, "0.002"]
    process = subprocess.Popen([sys.executable, *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(40)]
        process.kill()
        said += process.stdout.readlines()
    until(lambda: is_alive(read_claims(open_store(str(tmp_path / "here")), 0)["worker_0"]) is False)
    command = [sys.executable, "-m", "watchglass", "check", "here"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "of worker_0, which was killed" in checked.stderr
    steps, losses = open_run(tmp_path / "here").scalars("loss")
    truth = [float(line) for line in said if line.endswith("\n")]
    assert len(steps) in (len(truth), len(truth) - 1)  # the last one's update may not have been made
    assert losses.tolist() == pytest.approx(truth[: len(steps)])
