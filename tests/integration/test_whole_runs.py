"""Whole training runs under ``watchglass run``: found, diagnosed, stopped, and left without a trace of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from waiting import PATIENCE_S, until
from watchglass import Mode, open_run
from watchglass.errors import EXIT_STOPPED, WatchglassError

#: The real interpreter, whose processes are children of those that start them.
PYTHON = sys.executable

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("preloaded_python")]

TRAIN = """
    import sys, time
    import torch
    from torch import nn
    import torch.nn.functional as F

    steps, learning_rate, pause = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    print("ready", flush=True)
    try:
        for step in range(steps):
            inputs = torch.randn(16, 8)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
            optimizer.step()
            time.sleep(pause)
    except Exception:
        print("an exception was swallowed", flush=True)
    finally:
        print("cleaned up after", step, flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(TRAIN))
    return path


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "watchglass", "run", *map(str, words)]
    environ = {**os.environ, "WATCHGLASS_STRICT": "1"}
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=240, check=False)


def processes_about(path: Path) -> list[str]:
    return [" ".join(p.cmdline()) for p in psutil.process_iter() if str(path) in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def wait_for_steps(path: Path, count: int) -> None:
    until(lambda: len(open_run(path).steps(Mode.TRAIN)) >= count, pause_s=0.1, despite=(WatchglassError,))


def test_a_diverging_training_is_stopped_at_a_boundary_and_the_script_may_clean_up(
    tmp_path: Path, script: Path
) -> None:
    done = run("--run", "run", "--stop-on", "error", script, "100000", "1e9", "0.002", cwd=tmp_path)
    assert done.returncode == EXIT_STOPPED, done.stderr
    assert "cleaned up after" in done.stdout
    assert "swallowed" not in done.stdout
    watched = open_run(tmp_path / "run")
    assert watched.finished
    last = int(done.stdout.split()[-1])
    assert len(watched.steps(Mode.TRAIN)) == last < 99_999
    assert any(finding.severity == "error" for finding in watched.journal.findings)
    assert not processes_about(tmp_path)


def test_nothing_is_stopped_unless_asked(tmp_path: Path, script: Path) -> None:
    done = run("--run", "run", script, "200", "1e9", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert open_run(tmp_path / "run").steps(Mode.TRAIN) == list(range(200))


def test_live_findings_equal_replayed_ones(tmp_path: Path, script: Path) -> None:
    done = run("--run", "run", script, "400", "1e9", "0.002", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    live = [finding.to_json() for finding in open_run(tmp_path / "run").journal.findings]
    assert live
    command = [sys.executable, "-m", "watchglass", "check", "run", "--format", "json"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert checked.returncode == 1, checked.stderr
    replayed = json.loads(checked.stdout)["findings"]
    keys = set(replayed[0])
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(replayed, key=key) == sorted(({k: row[k] for k in keys} for row in live), key=key)


def test_a_killed_training_leaves_a_readable_run_and_no_process(tmp_path: Path, script: Path) -> None:
    command = [PYTHON, "-m", "watchglass", "run", "--run", "run", str(script), "100000", "0.01", "0.002"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        wait_for_steps(tmp_path / "run", 50)
        training = next(
            child
            for child in psutil.Process(launcher.pid).children(recursive=True)
            if child.cmdline()[-4:-3] == [str(script)]
        )
        training.send_signal(signal.SIGKILL)
        launcher.communicate(timeout=PATIENCE_S)
    assert launcher.returncode == 128 + signal.SIGKILL
    watched = open_run(tmp_path / "run")
    steps = watched.steps(Mode.TRAIN)
    assert len(steps) >= 50
    assert steps == list(range(len(steps)))
    assert not processes_about(tmp_path)


def test_a_killed_launcher_takes_the_training_and_the_evaluator_with_it(tmp_path: Path, script: Path) -> None:
    command = [PYTHON, "-m", "watchglass", "run", "--run", "run", str(script), "100000", "0.01", "0.002"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        wait_for_steps(tmp_path / "run", 10)
        launcher.kill()
    until(lambda: not processes_about(tmp_path), pause_s=0.1)


def test_two_ranks_under_torchrun_are_one_run_with_two_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import torch, torch.distributed as dist
            import torch.nn.functional as F
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel

            dist.init_process_group("gloo")
            rank = dist.get_rank()
            torch.manual_seed(0)
            model = DistributedDataParallel(nn.Linear(8, 3))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            torch.manual_seed(rank)
            for step in range(30):
                optimizer.zero_grad()
                inputs = torch.randn(16, 8)
                F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
                optimizer.step()
            dist.destroy_process_group()
            """
        )
    )
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "watchglass", "run", "--save-interval", "1", "train.py",
    ]  # fmt: skip
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "WATCHGLASS_STRICT": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "runs").iterdir()
    watched = open_run(path)
    assert list(watched.workers) == ["worker_0", "worker_1"]
    assert watched.steps(Mode.TRAIN) == list(range(30))
    first = watched.tensor("gradient/weight")
    # Values after the all-reduce: the same on both ranks, from different data.
    for step in (0, 15, 29):
        assert first.reduction(step, "l2", worker="worker_0") == first.reduction(step, "l2", worker="worker_1")
    assert watched.scalars("loss", worker="worker_0")[1][0] != watched.scalars("loss", worker="worker_1")[1][0]
    assert not processes_about(tmp_path)


def test_two_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import os, sys, time, torch, torch.distributed as dist
            import torch.nn.functional as F
            from torch import nn
            from torch.nn.parallel import DistributedDataParallel

            dist.init_process_group("gloo")
            torch.manual_seed(0)
            model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e9)
            step = -1
            try:
                for step in range(200_000):
                    optimizer.zero_grad()
                    inputs = torch.randn(16, 8)
                    F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
                    optimizer.step()
                    time.sleep(0.002)
            finally:
                # In one write: the ranks share a pipe, and print writes in parts.
                os.write(1, f"rank {dist.get_rank()} left before step {step}\\n".encode())
            """
        )
    )
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "watchglass", "run", "--stop-on", "error", "train.py",
    ]  # fmt: skip
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    left = sorted(line.split("step ")[1] for line in done.stdout.splitlines() if "left before" in line)
    assert len(left) == 2, done.stderr
    assert left[0] == left[1]
    assert int(left[0]) < 199_999
    assert not processes_about(tmp_path)


def test_watch_in_a_script_evaluates_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import time, torch, watchglass
            import torch.nn.functional as F
            from torch import nn
            model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e9)
            watchglass.watch(model, run="run", rules="default")
            for step in range(200):
                optimizer.zero_grad()
                inputs = torch.randn(16, 8)
                F.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
                optimizer.step()
                time.sleep(0.005)
                watchglass.save_scalar("half", step / 2)
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "watchglass: error: " in done.stderr
    watched = open_run(tmp_path / "run")
    assert watched.journal.findings
    assert watched.scalars("half")[1][10] == 5.0
    assert not processes_about(tmp_path)


def test_switched_off_means_untouched(tmp_path: Path, script: Path) -> None:
    command = [sys.executable, "-m", "watchglass", "run", str(script), "5", "0.1", "0"]
    environ = {**os.environ, "WATCHGLASS": "0"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert "cleaned up after 4" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]
