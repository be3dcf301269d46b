"""A signal reaches the process that holds the record lock of a worker's ring, and no other that a claim may name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clocks import Now
from waiting import PATIENCE_S
from watchglass.actions import Stopping
from watchglass.control import WorkerProgress
from watchglass.evaluate.live.outside_stacks import outside_stacks, stacks_of_worker
from watchglass.records import Finding, Mode, Severity
from watchglass.store import Claim, LocalStore, Rings, create_attempt, create_run, signal_owner, this_process

LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}
WORKER = """
import json, sys, time
from watchglass.store import LocalStore, Rings, this_process
rings = Rings(LocalStore(sys.argv[1]), {"run": "r", "attempt": 0, "worker": "worker_0"})
print(json.dumps({**this_process().to_json(), "rings": rings.names}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def worker_of(store: LocalStore, start: Callable[..., subprocess.Popen[str]]) -> tuple[subprocess.Popen[str], Claim]:

    process = start(sys.executable, "-c", WORKER, str(store.root))
    claim = Claim.from_json(json.loads(process.stdout.readline()))
    for name in claim.rings:
        if name.startswith("/"):
            assert Path(name).exists()
    return process, claim


def test_the_process_that_holds_the_lock_gets_it(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    store = LocalStore(tmp_path)
    process, claim = worker_of(store, started)
    try:
        assert signal_owner(store, claim, {**LABEL, "worker": "worker_1"}, signal.SIGTERM)
        assert signal_owner(store, replace(claim, rings=()), LABEL, signal.SIGTERM)
        assert signal_owner(store, replace(claim, host="another machine"), LABEL, signal.SIGTERM)
        assert process.poll() is None
        assert signal_owner(store, claim, LABEL, signal.SIGTERM) == ""
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
        assert signal_owner(store, claim, LABEL, signal.SIGTERM), "it has ended"
    finally:
        for name in claim.rings:
            (tmp_path / name).unlink(missing_ok=True)


@pytest.mark.parametrize("start_known", [True, False])
def test_another_process_that_a_claim_names_gets_none(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]], start_known: bool
) -> None:
    store = LocalStore(tmp_path)
    _, claim = worker_of(store, started)
    victim = started("sleep", "600")
    start = int(Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[19])
    named = replace(claim, pid=victim.pid, process_start=start if start_known else 0, boot_id="")
    try:
        assert "no record lock" in signal_owner(store, named, LABEL, signal.SIGKILL)
        assert victim.poll() is None
    finally:
        for name in claim.rings:
            (tmp_path / name).unlink(missing_ok=True)


def test_a_stop_signals_no_process_that_only_a_claim_names(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """A run is anybody's: its claim may name any process, also without a start time and a boot."""
    store, now = LocalStore(tmp_path), Now()
    create_run(store, command=["train.py"])
    create_attempt(store, "")
    victim = started("sleep", "600")
    worker = WorkerProgress("worker_0", True, 7, 0.05, Claim(victim.pid, 0, "", this_process().host))
    stopping = Stopping(store, 0, grace_s=1.0, clock=now)
    stopping.found(
        Finding(
            id="abcdefabcdef", rule="ExplodingTensor", severity=Severity.ERROR, step=7, last_step=7, count=1,
            mode=Mode.TRAIN, worker="worker_0", tensors=("loss",), value=float("nan"), limit=None, message="NaN",
        )
    )  # fmt: skip
    seen = []
    for _ in range(4):
        now.advance(20.0)
        seen += [observation.kind for observation in stopping.tick([worker])]
    assert seen == ["stop_committed", "worker_not_signalled", "worker_not_signalled"]
    assert victim.poll() is None


@pytest.mark.parametrize("way", ["link", "second name", "fifo", "other label"])
def test_a_file_that_another_program_has_locked_is_no_ring(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]], way: str
) -> None:
    """Such a file, below the name of a ring, would make that program the worker."""
    locked = tmp_path / "database"
    locked.write_bytes(b"x" * 8192)
    if way == "second name":
        rings = Rings(LocalStore(tmp_path / "other"), LABEL)
        name = next(name for name in rings.names if name.endswith(".entries"))
        locked.write_bytes((tmp_path / "other" / name).read_bytes()[:8192])  # even with the right label
        rings.close(discard=True)
    script = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print('', flush=True); "
        "time.sleep(600)"
    )
    victim = started(sys.executable, "-c", script, str(locked))
    victim.stdout.readline()
    run = LocalStore(tmp_path / "run")
    name = "attempts/0000/.worker_0-1-ab.entries"
    planted = run.root / name
    planted.parent.mkdir(parents=True)
    {
        "link": lambda: planted.symlink_to(locked),
        "second name": lambda: os.link(locked, planted),
        "other label": lambda: locked.rename(planted),
        "fifo": lambda: os.mkfifo(planted),
    }[way]()
    claim = Claim(victim.pid, 0, "", this_process().host, rings=(name,))
    assert signal_owner(run, claim, LABEL, signal.SIGKILL)
    assert victim.poll() is None


@pytest.mark.slow
def test_the_stacks_of_a_process_that_only_a_claim_names_are_not_read(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """Whoever writes a run could read through it what other processes of its reader do."""
    store = LocalStore(tmp_path)
    process, claim = worker_of(store, started)
    victim = started(sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)")
    victim.stdout.readline()
    try:
        named = replace(claim, pid=victim.pid, process_start=0, boot_id="")
        assert outside_stacks(victim.pid), "they can be read"
        assert stacks_of_worker(store, named, LABEL) == []
        assert stacks_of_worker(store, claim, {**LABEL, "worker": "worker_1"}) == []
        assert [thread["trains"] for thread in stacks_of_worker(store, claim, LABEL)] == [True]
        process.kill()
        process.wait(PATIENCE_S)
        assert stacks_of_worker(store, claim, LABEL) == []
    finally:
        for name in claim.rings:
            (tmp_path / name).unlink(missing_ok=True)


def test_this_process_is_never_signalled_and_keeps_its_lock(tmp_path: Path) -> None:
    """Opening and closing a ring of this process would end its record lock."""
    store = LocalStore(tmp_path)
    rings = Rings(store, LABEL)
    try:
        assert signal_owner(store, replace(this_process(), rings=rings.names), LABEL, signal.SIGKILL)
        probe = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
        for name in rings.names:
            done = subprocess.run([sys.executable, "-c", probe, str(tmp_path / name)], capture_output=True, check=False)
            assert b"BlockingIOError" in done.stderr
    finally:
        rings.close(discard=True)
