"""One run and one attempt for all ranks of a launch; nothing that is there is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchglass.errors import LaunchError, NotARunError, StoreError
from watchglass.launch import Job
from watchglass.launch.place import begin_attempt, launch_key
from watchglass.store import create_run, open_store, read_manifest

JOB = Job("sub/train.py", ("--lr", "1"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("TORCHELASTIC", "SLURM")) or name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name)
    return tmp_path


def elastic(monkeypatch: pytest.MonkeyPatch, rank: int = 0, restart: int = 0, local: int = 2, world: int = 2) -> None:
    for name, value in {
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": restart, "RANK": rank,
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))


def test_default_names_are_never_shared_by_two_launches() -> None:
    runs = {begin_attempt(JOB) for _ in range(3)}
    assert len(runs) == 3
    assert all(run.startswith(os.path.join("runs", "train-2")) and attempt == 0 for run, attempt in runs)


def test_runs_that_nobody_named_go_below_a_folder_of_ones_choice(folder: Path) -> None:
    run, attempt = begin_attempt(Job("train.py", runs=str(folder / "team")))
    assert run.startswith(str(folder / "team" / "train-2"))
    assert attempt == 0
    assert begin_attempt(Job("train.py", runs=f"file://{folder}/team"))[0].startswith(str(folder / "team" / "train-2"))


def test_the_command_is_kept_in_the_run() -> None:
    run, _ = begin_attempt(JOB)
    assert read_manifest(open_store(run)).command == ("sub/train.py", "--lr", "1")


def test_a_named_run_gets_a_new_attempt_and_keeps_its_identity() -> None:
    manifest = create_run(open_store("mine"), command=[])
    assert begin_attempt(Job("train.py", run="mine")) == ("mine", 0)
    assert read_manifest(open_store("mine")) == manifest


def test_a_folder_of_something_else_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter1").write_text("words")
    with pytest.raises(NotARunError, match="thesis is not empty and not a run; choose an empty or new folder"):
        begin_attempt(Job("train.py", run="thesis"))
    assert [entry.name for entry in (folder / "thesis").iterdir()] == ["chapter1"]


def test_a_place_that_cannot_be_written(folder: Path) -> None:
    with pytest.raises(StoreError, match="the path is too long; choose a shorter folder"):
        begin_attempt(Job("train.py", run="x" * 300))
    (folder / "file").write_text("")
    with pytest.raises((NotARunError, StoreError), match="file/run"):
        begin_attempt(Job("train.py", run="file/run"))


def test_all_ranks_of_a_torchrun_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    elastic(monkeypatch, rank=0)
    first = begin_attempt(JOB)
    elastic(monkeypatch, rank=1)
    assert begin_attempt(JOB) == first
    elastic(monkeypatch, rank=0, restart=1)
    assert begin_attempt(JOB) == (first[0], 1)
    elastic(monkeypatch, rank=1, restart=1)
    assert begin_attempt(JOB) == (first[0], 1)


def test_other_ranks_wait_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    elastic(monkeypatch, rank=1)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            create_run(open_store("mine"), command=[])

    assert begin_attempt(Job("train.py", run="mine"), sleep=sleep) == ("mine", 0)
    assert len(naps) == 3
    with pytest.raises(LaunchError, match="rank 1 found no run in other after 60 s"):
        begin_attempt(Job("train.py", run="other"), sleep=lambda _: None)


def test_several_machines_need_a_named_run(monkeypatch: pytest.MonkeyPatch) -> None:
    elastic(monkeypatch, rank=0, world=4)
    with pytest.raises(LaunchError, match="name it with --run"):
        begin_attempt(JOB)
    assert launch_key() == "none/0"


def test_the_launch_key_is_one_per_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = launch_key()
    assert alone == launch_key()
    elastic(monkeypatch)
    assert launch_key() != alone
