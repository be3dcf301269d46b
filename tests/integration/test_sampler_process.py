"""The sampler process: one for each machine, beside a run and never in its way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from processes import Processes, ended
from waiting import PATIENCE_S, until
from watchglass.config import SamplerConfig
from watchglass.run import Run, open_run
from watchglass.store import LocalStore, create_attempt, create_run
from watchglass.supervise import CompanionProcess

pytestmark = pytest.mark.slow

#: A script that trains until a file exists.
TRAIN = """
import os, sys, time
import torch
from torch import nn
{before}
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
{watch}
while not os.path.exists("end"):
    loss = model(torch.ones(2, 4)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
{after}
"""


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.close()


def script(folder: Path, before: str = "", watch: str = "", after: str = "") -> str:
    (folder / "train.py").write_text(TRAIN.format(before=before, watch=watch, after=after))
    return "train.py"


def samplers(of: int) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if "watchglass.profile" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def read(folder: Path) -> Run | None:
    return open_run(folder / "run") if (folder / "run" / "run.json").exists() else None


def sampled(folder: Path, metric: str = "processes.memory", least: int = 3) -> Run | None:
    run = read(folder)
    rows = run.samples().to_arrow().to_pylist() if run is not None else []
    return run if any(row["metric"] == metric and row["times"] >= least for row in rows) else None


def events(run: Run) -> list[str]:
    return [row["event"] for row in run.table("notes").to_arrow().to_pylist() if row["source"] == "sampler"]


def launched(processes: Processes, folder: Path, *options: str):
    often = () if "--no-profiler" in options else ("--sample-interval", "0.1")
    command = ["-m", "watchglass", "run", "--run", "run", *often, *options, script(folder)]
    return processes.start(*command, cwd=folder)


def test_a_launch_samples_its_script_until_it_ends(processes: Processes, tmp_path: Path) -> None:
    launcher = launched(processes, tmp_path)
    until(lambda: sampled(tmp_path))
    (sampler,) = samplers(launcher.pid)
    assert os.getsid(sampler.pid) == sampler.pid, "Ctrl-C of the terminal does not reach it"
    (tmp_path / "end").touch()
    status, _, err = ended(launcher)
    assert status == 0, err
    assert not sampler.is_running()
    run = read(tmp_path)
    assert run is not None
    assert run.streams == ["system"]
    memory = run.samples("processes.memory")
    assert memory.values.max() > 50e6, "PyTorch alone takes more"
    counts = set(run.samples("processes.count").values)
    assert {1.0} <= counts <= {0.0, 1.0}, "the script until it has ended, without evaluator and sampler"
    assert run.problems == []
    shown = subprocess.run(
        [sys.executable, "-m", "watchglass", "show", "run"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"machine +processor [^;]* on average, 95th\s+percentile [^;]* %;\s+processes", shown)


def test_it_is_not_started_where_nobody_wants_it(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    status, _, err = ended(launched(processes, tmp_path, "--no-profiler"))
    assert status == 0, err
    assert not (tmp_path / "run" / "streams").exists()


def test_one_that_is_killed_is_started_again_once(processes: Processes, tmp_path: Path) -> None:
    launcher = launched(processes, tmp_path, "--evaluator", "none")
    for count in (1, 2):
        until(lambda: samplers(launcher.pid) and sampled(tmp_path))
        assert events(open_run(tmp_path / "run")) == ["restarted"] * (count - 1)
        (sampler,) = samplers(launcher.pid)
        sampler.kill()
        until(lambda pid=sampler.pid: pid not in [each.pid for each in samplers(launcher.pid)])
        if count == 1:
            until(lambda: "restarted" in events(open_run(tmp_path / "run")))
    assert launcher.stderr is not None
    assert any("for the second time; this run has no more system metrics" in line for line in launcher.stderr)
    (tmp_path / "end").touch()
    assert ended(launcher)[0] == 0
    notes = open_run(tmp_path / "run").table("notes").to_arrow().to_pylist()
    assert "was killed by SIGKILL" in next(each["message"] for each in notes if each["event"] == "restarted")


def test_it_ends_with_a_launcher_that_is_killed(processes: Processes, tmp_path: Path) -> None:
    launcher = launched(processes, tmp_path)
    until(lambda: sampled(tmp_path))
    (sampler,) = samplers(launcher.pid)
    launcher.send_signal(signal.SIGKILL)
    until(lambda: not sampler.is_running() or sampler.status() == psutil.STATUS_ZOMBIE)


def test_watch_samples_where_it_is_asked_to(processes: Processes, tmp_path: Path) -> None:
    profiler = "watchglass.ProfilerConfig(enabled=True, sample_interval_s=0.1)"
    watch = f'import watchglass; hook = watchglass.watch(model, run="run", profiler={profiler})'
    trains = processes.start(script(tmp_path, watch=watch, after="hook.close()"), cwd=tmp_path)
    run = until(lambda: sampled(tmp_path))
    assert set(run.samples("processes.count").values) == {1.0}, "the script itself"
    (sampler,) = samplers(trains.pid)
    (tmp_path / "end").touch()
    assert ended(trains)[0] == 0
    assert not sampler.is_running()


def test_watch_alone_samples_nothing(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    watch = 'import watchglass; hook = watchglass.watch(model, run="run")'
    step = "loss = model(torch.ones(2, 4)).sum(); loss.backward(); optimizer.step(); hook.close()"
    assert ended(processes.start(script(tmp_path, watch=watch, after=step), cwd=tmp_path))[0] == 0
    assert (tmp_path / "run" / "run.json").exists()
    assert not (tmp_path / "run" / "streams").exists()


def test_of_several_on_a_machine_one_writes(processes: Processes, tmp_path: Path) -> None:
    # A root without children: what other tests of this process have started does not count.
    root = processes.start("-c", "import time; time.sleep(600)", cwd=tmp_path)
    store = LocalStore(tmp_path / "run")
    create_run(store, command=[])
    create_attempt(store, "")
    config = SamplerConfig(str(tmp_path / "run"), 0, root.pid, True, interval_s=0.1)
    first = CompanionProcess(config, os.environ)
    try:
        until(lambda: sampled(tmp_path))
        second = CompanionProcess(config, os.environ)
        assert until(lambda: second.poll() is not None)
        assert second.poll() == 0
        second.let_go()
        assert first.poll() is None
    finally:
        first.let_go()
    assert first.wait(PATIENCE_S) == 0
    assert {float(value) for value in open_run(tmp_path / "run").samples("processes.count").values} == {1.0}


def test_import_of_watchglass_does_not_import_it() -> None:
    code = "import watchglass, sys; assert not any(name.startswith('watchglass.profile') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
