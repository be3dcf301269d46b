"""A training run here, its evaluator elsewhere, and nothing between them but an object store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

from processes import NEVER, TRAIN, Processes, ended
from servers.fixtures import S3Server
from servers.proxy import Proxy
from waiting import until
from watchglass import Mode, open_run
from watchglass.errors import EXIT_STOPPED, MissingFileError
from watchglass.launch import Job
from watchglass.launch.shared_attempt import begin_attempt
from watchglass.records import Finding
from watchglass.run import Run
from watchglass.store import layout, lease_holder, open_store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("preloaded_python")]

Words = tuple[str | Path, ...]


class Sides(Processes):
    """The training's side and the evaluator's, each with an environment, a home and a temporary folder of its own."""

    def __init__(self, folder: Path, server: S3Server) -> None:
        super().__init__()
        self.folder, self.server = folder, server
        self.script = folder / "train.py"
        self.script.write_text(TRAIN)

    def at(self, side: str, *words: str | Path, url: str = "", **more: str) -> subprocess.Popen[str]:
        """Start a script, or ``python -m words``, on a side; credentials come from here and from nowhere else."""
        home = self.folder / side
        home.mkdir(exist_ok=True)
        inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        environ = {
            **inherited, "HOME": str(home), "TMPDIR": str(home), "OMP_NUM_THREADS": "1",
            **self.server.environment(url), **more,
        }  # fmt: skip
        return self.start(*(() if words[0] == self.script else ("-m",)), *words, cwd=home, env=environ)

    def train(self, location: str, *words: str | Path, options: Words = ("--evaluator", "none")) -> Any:
        command = ("watchglass", "run", "--run", location, "--save-interval", "1", *options, self.script)
        return self.at("training", *command, *words, WATCHGLASS_STRICT="1")

    def follow(self, location: str, *options: str | Path, url: str = "") -> subprocess.Popen[str]:
        return self.at("evaluator", "watchglass", "follow", location, *options, url=url)


@pytest.fixture
def processes(tmp_path: Path, s3_server: S3Server) -> Iterator[Sides]:
    started = Sides(tmp_path, s3_server)
    yield started
    started.close()


def eventually(condition: Callable[[], Any]) -> Any:
    return until(condition, pause_s=0.1, despite=(MissingFileError,))


def said_by(output: IO[str] | None, words: str) -> str:
    """Reads what a process writes until a line holds these words; that line."""
    assert output is not None
    lines = []
    for line in output:
        lines.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was not said: {''.join(lines)}")


def facts(findings: list[Finding]) -> list[dict[str, Any]]:
    """Findings without what names the run."""
    return sorted(({**finding.to_json(), "id": ""} for finding in findings), key=str)


def last_step(run: Run, worker: str) -> int:
    return max(end.mode_step for end in run.worker(worker).tables.steps.values() if end.mode is Mode.TRAIN)


def test_it_finds_what_a_local_one_finds_and_what_check_finds(
    processes: Sides, s3_location: str, tmp_path: Path
) -> None:
    follower = processes.follow(s3_location)
    training = processes.train(s3_location, "80", "40", "0.01")
    status, _, err = ended(training)
    assert status == 0
    assert f"to evaluate it: watchglass follow {s3_location}" in err
    assert f"to get the verdict: watchglass check {s3_location}" in err
    status, out, err = ended(follower)
    assert status == 1
    assert "watchglass: the run has ended: finished" in err
    assert "ExplodingTensor" in out

    local = tmp_path / "local"
    assert ended(processes.train(str(local), "80", "40", "0.01", options=()))[0] == 0
    remote = open_run(s3_location)
    assert facts(remote.journal.findings) == facts(open_run(local).journal.findings)
    assert remote.journal.findings[0].step == 40
    assert remote.journal.statuses == open_run(local).journal.statuses

    status, out, err = ended(processes.at("evaluator", "watchglass", "check", s3_location, "--format", "json"))
    assert status == 1, err
    checked = json.loads(out)["findings"]
    assert sorted(row["id"] for row in checked) == sorted(finding.id for finding in remote.journal.findings)
    assert {row["id"]: (row["step"], row["count"]) for row in checked} == {
        finding.id: (finding.step, finding.count) for finding in remote.journal.findings
    }


def test_it_stops_the_training_and_nothing_secret_is_left_behind(
    processes: Sides, s3_location: str, s3_server: S3Server
) -> None:
    follower = processes.follow(s3_location, "--stop-on", "error")
    status, out, err = ended(processes.train(s3_location, NEVER, "40", "0.01"))
    assert status == EXIT_STOPPED
    assert "stopped by request" in err
    at = int(re.findall(r"ended at (\d+)", out)[0])
    status, out, follower_err = ended(follower)
    assert status == 1
    assert "the run has ended: stopped" in follower_err
    assert out.startswith("stopped: ")
    run = open_run(s3_location)
    assert last_step(run, "worker_0") == at - 1, "it was stopped before that one"
    assert [seen.kind for seen in run.journal.observations] == ["worker_joined", "stop_requested", "stop_committed"]
    store = open_store(s3_location)
    written = b"".join(store.read(entry.path) for entry in store.list()) + (err + follower_err + out).encode()
    assert s3_server.secret_key.encode() not in written


def test_two_ranks_stop_at_one_step(processes: Sides, s3_location: str) -> None:
    follower = processes.follow(s3_location, "--stop-on", "error")
    training = processes.at(
        "training", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "watchglass",
        "run", "--evaluator", "none", "--run-dir", s3_location, "--save-interval", "8", processes.script,
        NEVER, "40", "0.01",
    )  # fmt: skip
    _, out, _ = ended(training)
    ends = dict(re.findall(r"rank (\d) ended at (\d+)", out))
    assert len(ends) == 2
    assert ends["0"] == ends["1"]
    status, out, err = ended(follower)
    assert status == 1, err
    run = open_run(s3_location)
    assert last_step(run, "worker_0") == last_step(run, "worker_1")


def test_it_survives_a_store_that_is_unreachable_for_it_alone(
    processes: Sides, s3_proxy: Proxy, s3_location: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    end, broken = tmp_path / "end", tmp_path / "broken"
    training = processes.train(s3_location, end, broken, "0.05")
    follower = processes.follow(s3_location, url=s3_proxy.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    store = open_store(s3_location)
    eventually(
        lambda: any(
            layout.parse_numbered(layout.JOURNAL, entry.path) is not None for entry in store.list(layout.JOURNAL)
        )
    )
    s3_proxy.cut()
    said_by(follower.stderr, "store unreachable, retrying")
    broken.touch()
    at = int(said_by(training.stdout, "broken at").split()[-1])
    s3_proxy.restore()
    end.touch()
    assert ended(training)[0] == 0
    status, _, err = ended(follower)
    assert status == 1
    assert "store reachable again" in err
    assert [(f.rule, f.step) for f in open_run(s3_location).journal.findings if f.rule == "ExplodingTensor"] == [
        ("ExplodingTensor", at)
    ]


def test_a_killed_follower_is_replaced_without_losing_or_doubling_anything(
    processes: Sides, s3_location: str, tmp_path: Path
) -> None:
    training = processes.train(s3_location, tmp_path / "end", "40", "0.05")
    first = processes.follow(s3_location)
    eventually(lambda: open_run(s3_location).journal.findings)
    second = processes.follow(s3_location)
    status, out, err = ended(second)
    assert (status, out) == (2, "")
    assert "is held by process" in err.splitlines()[-1]
    first.kill()
    third = processes.follow(s3_location)
    said_by(third.stderr, "following")
    (tmp_path / "end").touch()
    assert ended(training)[0] == 0
    assert ended(third)[0] == 1
    run = open_run(s3_location)
    assert len({finding.id for finding in run.journal.findings}) == len(run.journal.findings)
    assert run.journal.findings[0].step == 40
    ended(processes.follow(s3_location))
    assert [f.to_json() for f in open_run(s3_location).journal.findings] == [f.to_json() for f in run.journal.findings]


def test_ctrl_c_ends_following_and_not_the_training(processes: Sides, s3_location: str, tmp_path: Path) -> None:
    training = processes.train(s3_location, tmp_path / "end", "10", "0.05")
    follower = processes.follow(s3_location)
    eventually(lambda: open_run(s3_location).journal.findings)
    follower.send_signal(signal.SIGINT)
    status, out, err = ended(follower)
    assert status == 130
    assert "stopped following before the end of the run: interrupted" in err
    assert "ExplodingTensor" in out
    assert training.poll() is None
    again = processes.follow(s3_location)  # the lease was given back
    (tmp_path / "end").touch()
    assert ended(training)[0] == 0
    assert ended(again)[0] == 1


def test_a_run_that_never_starts_and_one_without_steps_are_reported(processes: Sides, s3_location: str) -> None:
    status, out, err = ended(processes.follow(f"{s3_location}/none", "--wait", "2"))
    assert (status, out) == (2, "")
    assert f"no run at or below {s3_location}/none" in err

    processes.script.write_text("print('nothing to train')")
    follower = processes.follow(f"{s3_location}/empty")
    assert ended(processes.train(f"{s3_location}/empty"))[0] == 0
    status, _, err = ended(follower)
    assert status == 2
    assert "the run has ended: ended before its first training step" in err
    assert "no training step was recorded" in err


def test_runs_below_a_prefix_get_a_path_each(processes: Sides, s3_location: str) -> None:
    runs = []
    for _ in range(2):
        processes.script.write_text("print('nothing to train')")
        words = ("watchglass", "run", "--evaluator", "none", processes.script)
        runs.append(processes.at("training", *words, WATCHGLASS_RUNS=f"{s3_location}/runs"))
    locations = [re.findall(r"run directory (\S+);", ended(each)[2])[0] for each in runs]
    assert len(set(locations)) == 2
    for location in locations:
        assert re.fullmatch(re.escape(s3_location) + r"/runs/train-\d{8}-\d{6}(-\d)?", location)
        assert open_store(location).size(layout.MANIFEST)


def test_two_launches_in_one_second_get_a_run_each(s3_location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchglass.launch.shared_attempt.time.time", lambda: 1.7e9)
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
    print(hook.port.config.run, flush=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(100_000):
        inputs = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        (loss * float("nan") if step == 40 else loss).backward()
        optimizer.step()
        import time; time.sleep(0.01)
"""


def test_a_training_run_watched_from_its_script_is_judged_and_stopped_there_too(
    processes: Sides, s3_location: str
) -> None:
    processes.script.write_text(textwrap.dedent(WATCHED.format(runs=f"{s3_location}/team")))
    status, out, err = ended(processes.at("training", processes.script))
    assert status == EXIT_STOPPED, err
    location = out.split()[0]
    assert location.startswith(f"{s3_location}/team/train-")
    assert "ExplodingTensor" in {finding.rule for finding in open_run(location).journal.findings}


def test_an_evaluator_beside_the_training_works_through_the_store_as_well(processes: Sides, s3_location: str) -> None:
    status, _, err = ended(processes.train(s3_location, NEVER, "40", "0.01", options=("--stop-on", "error")))
    assert status == EXIT_STOPPED
    assert f"verdict on {s3_location}\nstopped: " in err
    assert lease_holder(open_store(s3_location)) is None
