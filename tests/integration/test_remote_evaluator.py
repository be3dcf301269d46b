"""A training here, its evaluator elsewhere, and nothing between them but an object store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from servers.fixtures import S3Server
from servers.proxy import Proxy
from watchglass import Mode, open_run
from watchglass.errors import EXIT_STOPPED, MissingFileError
from watchglass.launch import Job
from watchglass.launch.place import begin_attempt
from watchglass.records import Finding
from watchglass.run import Run
from watchglass.store import layout, lease_holder, open_store

pytestmark = pytest.mark.slow

TRAIN = """
    import os, sys, time
    import torch
    from torch import nn
    import torch.nn.functional as F

    steps, broken_at, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rank = int(os.environ.get("RANK", 0))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = -1
    try:
        for step in range(steps):
            inputs = torch.randn(16, 8)
            loss = F.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
            optimizer.zero_grad()
            (loss * float("nan") if step == broken_at else loss).backward()
            optimizer.step()
            time.sleep(pause)
    finally:
        print("rank", rank, "ended at", step, flush=True)
        os.environ.get("WORLD_SIZE") and os._exit(86 if step < steps - 1 else 0)
"""

Words = tuple[str | Path, ...]


class Processes:
    """The training's side and the evaluator's, each with an environment, a home and a temporary folder of its own."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        self.folder, self.server = folder, server
        self.started: list[subprocess.Popen[str]] = []
        self.script = folder / "train.py"
        self.script.write_text(textwrap.dedent(TRAIN))

    def start(self, side: str, *words: str | Path, url: str = "", **more: str) -> subprocess.Popen[str]:
        """Start a script, or ``python -m words``, on a side; credentials come from here and from nowhere else."""
        home = self.folder / side
        home.mkdir(exist_ok=True)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        environ = {
            **inherited, "HOME": str(home), "TMPDIR": str(home), "OMP_NUM_THREADS": "1",
            **self.server.environment(url), **more,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, *(() if words[0] == self.script else ("-m",)), *map(str, words)],
            cwd=home, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def train(self, location: str, *words: str | int | float, options: Words = ("--evaluator", "none")) -> Any:
        command = ("watchglass", "run", "--run", location, "--save-interval", "1", *options, self.script)
        return self.start("training", *command, *map(str, words), WATCHGLASS_STRICT="1")

    def follow(self, location: str, *options: str | Path, url: str = "") -> subprocess.Popen[str]:
        return self.start("evaluator", "watchglass", "follow", location, *options, url=url)

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path, s3_server: S3Server) -> Iterator[Processes]:
    started = Processes(tmp_path, s3_server)
    yield started
    started.close()


def ended(process: subprocess.Popen[str], timeout_s: float = 120.0) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except MissingFileError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"did not happen within {seconds:g} s")


def said_by(process: subprocess.Popen[str], words: str) -> None:
    """Reads a process's stderr until a line holds these words."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return
    raise AssertionError(f"{words!r} was not said: {''.join(lines)}")


def facts(findings: list[Finding]) -> list[dict[str, Any]]:
    """Findings without what names the run."""
    return sorted(({**finding.to_json(), "id": ""} for finding in findings), key=str)


def last_step(run: Run, worker: str) -> int:
    return max(end.mode_step for end in run.worker(worker).tables.steps.values() if end.mode is Mode.TRAIN)


def test_it_finds_what_a_local_one_finds_and_what_check_finds(
    processes: Processes, s3_location: str, tmp_path: Path
) -> None:
    follower = processes.follow(s3_location)
    training = processes.train(s3_location, 80, 40, 0.01)
    status, _, err = ended(training)
    assert status == 0
    assert f"follow it with: watchglass follow {s3_location}" in err
    assert f"for the verdict: watchglass check {s3_location}" in err
    status, out, err = ended(follower)
    assert status == 1
    assert "watchglass: the training has ended: finished" in err
    assert "ExplodingTensor" in out

    local = tmp_path / "local"
    assert ended(processes.train(str(local), 80, 40, 0.01, options=()))[0] == 0
    remote = open_run(s3_location)
    assert facts(remote.journal.findings) == facts(open_run(local).journal.findings)
    assert remote.journal.findings[0].step == 40
    assert remote.journal.statuses == open_run(local).journal.statuses

    status, out, err = ended(processes.start("evaluator", "watchglass", "check", s3_location, "--format", "json"))
    assert status == 1, err
    checked = json.loads(out)["findings"]
    assert sorted(row["id"] for row in checked) == sorted(finding.id for finding in remote.journal.findings)
    assert {row["id"]: (row["step"], row["count"]) for row in checked} == {
        finding.id: (finding.step, finding.count) for finding in remote.journal.findings
    }


def test_it_stops_the_training_and_nothing_secret_is_left_behind(
    processes: Processes, s3_location: str, s3_server: S3Server
) -> None:
    follower = processes.follow(s3_location, "--stop-on", "error")
    status, out, err = ended(processes.train(s3_location, 100_000, 40, 0.01))
    assert status == EXIT_STOPPED
    assert "stopped by request" in err
    at = int(re.findall(r"ended at (\d+)", out)[0])
    status, out, follower_err = ended(follower)
    assert status == 1
    assert "the training has ended: stopped" in follower_err
    assert out.startswith("stopped: ")
    run = open_run(s3_location)
    assert last_step(run, "worker_0") == at - 1, "it was stopped before that one"
    assert [seen.kind for seen in run.journal.observations] == ["stop_requested", "stop_committed"]
    store = open_store(s3_location)
    told = b"".join(store.read(entry.path) for entry in store.list()) + (err + follower_err + out).encode()
    assert s3_server.secret_key.encode() not in told


def test_two_ranks_stop_at_one_step(processes: Processes, s3_location: str) -> None:
    follower = processes.follow(s3_location, "--stop-on", "error")
    training = processes.start(
        "training", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29741", "-m", "watchglass",
        "run", "--evaluator", "none", "--run-dir", s3_location, "--save-interval", "8", processes.script,
        "100000", "40", "0.01",
    )  # fmt: skip
    _, out, _ = ended(training)
    ends = dict(re.findall(r"rank (\d) ended at (\d+)", out))
    assert len(ends) == 2
    assert ends["0"] == ends["1"]
    status, out, err = ended(follower)
    assert status == 1, err
    run = open_run(s3_location)
    assert last_step(run, "worker_0") == last_step(run, "worker_1")


def test_it_survives_a_store_that_is_away_for_it_alone(
    processes: Processes, s3_proxy: Proxy, s3_location: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = processes.train(s3_location, 400, 200, 0.05)
    follower = processes.follow(s3_location, url=s3_proxy.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    store = open_store(s3_location)
    wait_for(lambda: any(layout.parse_journal(entry.path) is not None for entry in store.list(layout.JOURNAL)))
    s3_proxy.cut()
    said_by(follower, "the store does not answer and is asked again")
    time.sleep(3)
    s3_proxy.restore()
    assert ended(training)[0] == 0
    status, _, err = ended(follower)
    assert status == 1
    assert "the store answers again" in err
    assert [(f.rule, f.step) for f in open_run(s3_location).journal.findings if f.rule == "ExplodingTensor"] == [
        ("ExplodingTensor", 200)
    ]


def test_a_killed_follower_is_replaced_without_losing_or_doubling_anything(
    processes: Processes, s3_location: str
) -> None:
    training = processes.train(s3_location, 400, 40, 0.05)
    first = processes.follow(s3_location)
    wait_for(lambda: open_run(s3_location).journal.findings)
    second = processes.follow(s3_location)
    status, out, err = ended(second)
    assert (status, out) == (2, "")
    assert "is held by process" in err.splitlines()[-1]
    first.kill()
    third = processes.follow(s3_location)
    assert ended(training)[0] == 0
    assert ended(third)[0] == 1
    run = open_run(s3_location)
    assert len({finding.id for finding in run.journal.findings}) == len(run.journal.findings)
    assert run.journal.findings[0].step == 40
    ended(processes.follow(s3_location))
    assert [f.to_json() for f in open_run(s3_location).journal.findings] == [f.to_json() for f in run.journal.findings]


def test_ctrl_c_ends_following_and_not_the_training(processes: Processes, s3_location: str) -> None:
    training = processes.train(s3_location, 300, 10, 0.05)
    follower = processes.follow(s3_location)
    wait_for(lambda: open_run(s3_location).journal.findings)
    follower.send_signal(signal.SIGINT)
    status, out, err = ended(follower, 30)
    assert status == 130
    assert "following ended before the training: interrupted" in err
    assert "ExplodingTensor" in out
    assert training.poll() is None
    again = processes.follow(s3_location)  # the lease was given back
    assert ended(training)[0] == 0
    assert ended(again)[0] == 1


def test_a_run_that_never_starts_and_one_without_steps_are_told(processes: Processes, s3_location: str) -> None:
    status, out, err = ended(processes.follow(f"{s3_location}/none", "--wait", "2"))
    assert (status, out) == (2, "")
    assert f"no run has begun at {s3_location}/none" in err

    processes.script.write_text("print('nothing to train')")
    follower = processes.follow(f"{s3_location}/empty")
    assert ended(processes.train(f"{s3_location}/empty"))[0] == 0
    status, _, err = ended(follower)
    assert status == 2
    assert "the training has ended: ended before its first training step" in err
    assert "no training step was recorded" in err


def test_runs_below_a_prefix_get_a_path_each(processes: Processes, s3_location: str) -> None:
    runs = []
    for _ in range(2):
        processes.script.write_text("print('nothing to train')")
        words = ("watchglass", "run", "--evaluator", "none", processes.script)
        runs.append(processes.start("training", *words, WATCHGLASS_RUNS=f"{s3_location}/runs"))
    told = [re.findall(r"run directory (\S+);", ended(each)[2])[0] for each in runs]
    assert len(set(told)) == 2
    for location in told:
        assert re.fullmatch(re.escape(s3_location) + r"/runs/train-\d{8}-\d{6}(-\d)?", location)
        assert open_store(location).size(layout.MANIFEST)


def test_two_launches_in_one_second_get_a_run_each(s3_location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchglass.launch.place.time.time", lambda: 1.7e9)
    job = Job("train.py", runs=f"{s3_location}/runs")
    with ThreadPoolExecutor(4) as pool:
        placed = list(pool.map(lambda _: begin_attempt(job), range(4)))
    assert len({run for run, _ in placed}) == 4
    assert {attempt for _, attempt in placed} == {0}


WATCHED = """
    import torch
    import watchglass
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    hook = watchglass.watch(model, runs={runs!r}, rules="default", stop_on="error", strict=True)
    print(hook.config.run, flush=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(100_000):
        inputs = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        (loss * float("nan") if step == 40 else loss).backward()
        optimizer.step()
        import time; time.sleep(0.01)
"""


def test_a_training_watched_from_its_script_is_judged_and_stopped_there_too(
    processes: Processes, s3_location: str
) -> None:
    processes.script.write_text(textwrap.dedent(WATCHED.format(runs=f"{s3_location}/team")))
    status, out, err = ended(processes.start("training", processes.script))
    assert status == EXIT_STOPPED, err
    location = out.split()[0]
    assert location.startswith(f"{s3_location}/team/train-")
    assert "ExplodingTensor" in {finding.rule for finding in open_run(location).journal.findings}


def test_an_evaluator_beside_the_training_works_through_the_store_as_well(
    processes: Processes, s3_location: str
) -> None:
    status, _, err = ended(processes.train(s3_location, 100_000, 40, 0.01, options=("--stop-on", "error")))
    assert status == EXIT_STOPPED
    assert f"verdict on {s3_location}\nstopped: " in err
    assert lease_holder(open_store(s3_location)) is None
