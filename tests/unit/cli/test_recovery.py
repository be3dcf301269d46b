"""Verbs that show a run recover what killed processes recorded last, once, and say what they cannot reach."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from command_line import Watchglass
from stores.dead_workers import TENSORS, DeadWorker
from watchglass import open_run
from watchglass.errors import StoreError
from watchglass.store import LocalStore, claims_of_worker


@pytest.fixture
def killed(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run whose process has flushed 5 of 12 steps and died, with its launcher and evaluator."""

    def made(name: str = "killed", **how: object) -> Path:
        worker = DeadWorker(tmp_path / name, **how)  # type: ignore[arg-type]
        worker.flush(worker.train(range(5)), TENSORS)
        worker.train(range(5, 12))
        worker.die()
        return tmp_path / name

    return made


@pytest.mark.parametrize("verb", [("check",), ("show",), ("report", "-o", "r.html"), ("explain",)])
def test_they_recover_once(watchglass: Watchglass, killed: Callable[..., Path], verb: tuple[str, ...]) -> None:
    run = killed()
    said = watchglass(verb[0], run, *verb[1:])
    assert f"watchglass: {run}: recovered the last 7 steps of worker_0, which was killed\n" in said.err
    steps, losses = open_run(run).scalars("loss")
    assert steps.tolist() == list(range(12))
    assert losses.tolist() == [1.0 / (number + 1) for number in range(12)]
    again = watchglass("check", run)
    assert "recovered the last 7 steps of" not in again.err
    assert "12 training steps" in again.out


def test_every_run_of_a_folder_is_recovered(
    watchglass: Watchglass, killed: Callable[..., Path], tmp_path: Path
) -> None:
    for name in ("runs/a", "runs/b"):
        killed(name)
    said = watchglass("check", tmp_path / "runs")
    assert said.err.count("recovered the last 7 steps") == 2
    assert said.out.count("failed after 12 training steps") == 2


def test_one_step_is_one_step(watchglass: Watchglass, tmp_path: Path) -> None:
    worker = DeadWorker(tmp_path / "killed")
    worker.train(range(1))
    worker.die()
    assert "recovered the last 1 step of worker_0" in watchglass("show", tmp_path / "killed").err


def test_a_process_that_lives_is_left_alone(watchglass: Watchglass, killed: Callable[..., Path]) -> None:
    run = killed(pid=os.getppid())
    for verb in ("check", "show"):
        assert "recovered" not in watchglass(verb, run).err
    assert len(open_run(run).steps()) == 5
    assert len(claims_of_worker(LocalStore(run), 0, "worker_0")) == 1


def test_one_that_looks_dead_and_still_writes_is_left_alone(
    watchglass: Watchglass, killed: Callable[..., Path], tmp_path: Path
) -> None:
    """As of a container, whose processes cannot be seen: the lock of its rings can."""
    run = killed()
    whole = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with ExitStack() as files:
        for ring in [*tmp_path.rglob("*.rows"), *tmp_path.rglob("*.entries")]:
            # A lock of the open file, which this process cannot take a second time, unlike its own record lock.
            fcntl.fcntl(files.enter_context(ring.open("r+b")), fcntl.F_OFD_SETLK, whole)
        assert "recovered" not in watchglass("check", run).err
        assert len(claims_of_worker(LocalStore(run), 0, "worker_0")) == 1
    assert "recovered" in watchglass("check", run).err


def test_a_run_that_cannot_be_written_is_judged_as_it_is(
    watchglass: Watchglass, killed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalStore, path: str, data: object, **_: object) -> None:
        raise StoreError(f"{path} cannot be written: Read-only file system")

    run = killed()
    monkeypatch.setattr(LocalStore, "write", refuse)
    said = watchglass("check", run)
    assert f"watchglass: warning: {run}: could not recover the last steps of a killed process: " in said.err
    assert "Read-only file system" in said.err
    assert "5 training steps" in said.out


def test_what_lies_on_another_machine_is_mentioned(watchglass: Watchglass, killed: Callable[..., Path]) -> None:
    run = killed(host="node7")
    for verb in ("check", "show"):
        said = watchglass(verb, run)
        assert (
            f"watchglass: {run}: worker_0 did not exit cleanly; its last records may be on node7; to recover "
            "them, run watchglass check there after its process has ended"
        ) in said.err
        assert "recovered the last" not in said.err


def test_what_belongs_to_another_user_is_mentioned(
    watchglass: Watchglass, killed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    said = watchglass("check", run)
    assert "worker_0 did not exit cleanly; its last records belong to user" in said.err
    assert len(claims_of_worker(LocalStore(run), 0, "worker_0")) == 1


def test_a_run_that_ended_in_order_is_not_spoken_of(watchglass: Watchglass, healthy: Path) -> None:
    for verb in ("check", "show"):
        assert watchglass(verb, healthy).err == ""
