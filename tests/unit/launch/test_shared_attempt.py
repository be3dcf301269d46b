"""One run and one attempt for all ranks of a launch; nothing that is there is touched."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from watchglass.errors import LaunchError, NotARunError, StoreError
from watchglass.launch import Job
from watchglass.launch.shared_attempt import begin_attempt, launch_key
from watchglass.store import (
    Claim,
    Store,
    claim_worker,
    create_attempt,
    create_run,
    open_store,
    read_manifest,
    this_process,
    write_launch_end,
)

JOB = Job("sub/train.py", ("--lr", "1"))


#: Attempts of a process that no launcher of ranks started.
begin_alone = partial(begin_attempt, environ={})


@pytest.fixture(autouse=True)
def folder(in_tmp_path: Path) -> Path:
    return in_tmp_path


def elastic(rank: int = 0, restart: int = 0, local: int = 2, world: int = 2) -> dict[str, str]:
    """The environment that torchrun gives a rank."""
    return texts({
        "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": restart, "RANK": rank,
        "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": local,
    })  # fmt: skip


def texts(environ: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in environ.items()}


def test_default_names_are_never_shared_by_two_launches() -> None:
    runs = {begin_alone(JOB) for _ in range(3)}
    assert len(runs) == 3
    assert all(run.startswith(os.path.join("runs", "train-2")) and attempt == 0 for run, attempt in runs)


def test_unnamed_runs_go_below_a_folder_of_ones_choice(folder: Path) -> None:
    run, attempt = begin_alone(Job("train.py", runs=str(folder / "team")))
    assert run.startswith(str(folder / "team" / "train-2"))
    assert attempt == 0
    assert begin_alone(Job("train.py", runs=f"file://{folder}/team"))[0].startswith(str(folder / "team" / "train-2"))


def test_the_command_is_kept_in_the_run() -> None:
    run, _ = begin_alone(JOB)
    assert read_manifest(open_store(run)).command == ("sub/train.py", "--lr", "1")


def test_a_named_run_gets_a_new_attempt_and_keeps_its_identity() -> None:
    manifest = create_run(open_store("mine"), command=[])
    assert begin_alone(Job("train.py", run="mine")) == ("mine", 0)
    assert read_manifest(open_store("mine")) == manifest


def test_a_folder_of_something_else_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter1").write_text("words")
    with pytest.raises(NotARunError, match="thesis is not empty and not a run; choose an empty or new folder"):
        begin_alone(Job("train.py", run="thesis"))
    assert [entry.name for entry in (folder / "thesis").iterdir()] == ["chapter1"]


def test_a_place_that_cannot_be_written(folder: Path) -> None:
    with pytest.raises(StoreError, match="the path is too long; choose a shorter folder"):
        begin_alone(Job("train.py", run="x" * 300))
    (folder / "file").write_text("")
    with pytest.raises((NotARunError, StoreError), match="file/run"):
        begin_alone(Job("train.py", run="file/run"))


def test_all_ranks_of_a_torchrun_meet() -> None:
    first = begin_attempt(JOB, environ=elastic(rank=0))
    assert begin_attempt(JOB, environ=elastic(rank=1)) == first
    for rank in (0, 1):
        assert begin_attempt(JOB, environ=elastic(rank, restart=1)) == (first[0], 1)


def test_other_ranks_wait_for_the_first() -> None:
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            create_run(open_store("mine"), command=[])

    assert begin_attempt(Job("train.py", run="mine"), environ=elastic(rank=1), sleep=sleep) == ("mine", 0)
    assert len(naps) == 3
    with pytest.raises(LaunchError, match="rank 1 found no run at other after 60 s"):
        begin_attempt(Job("train.py", run="other"), environ=elastic(rank=1), sleep=lambda _: None)


def test_several_machines_need_a_named_run() -> None:
    environ = elastic(rank=0, world=4)
    with pytest.raises(LaunchError, match="name it with --run"):
        begin_attempt(JOB, environ=environ)
    assert launch_key(environ) == "none/0"


def test_the_launch_key_is_one_per_launch() -> None:
    alone = launch_key({})
    assert alone == launch_key({})
    assert launch_key(elastic()) != alone


# -- an attempt beside another -------------------------------------------------------------------------------------


#: Another process that lives, and the number of none.
OTHER, NONE = os.getppid(), 2**22 + 7


def claim_of_other(pid: int = OTHER, **change: Any) -> Claim:
    start = Path(f"/proc/{OTHER}/stat").read_text().rpartition(")")[2].split()[19]
    return replace(this_process(), pid=pid, process_start=int(start), **change)


def launched_by(claim: Claim) -> Store:
    store = open_store("mine")
    create_run(store, command=[])
    create_attempt(store, "other", launcher=claim)
    return store


def test_a_run_that_is_being_trained_is_refused() -> None:
    store = launched_by(claim_of_other())
    before = {entry.path: store.read(entry.path) for entry in store.list()}
    with pytest.raises(LaunchError, match=rf"mine is being written by process {OTHER}.*\(attempt 0\); wait for it"):
        begin_alone(Job("train.py", run="mine"))
    assert {entry.path: store.read(entry.path) for entry in store.list()} == before


def test_a_launcher_that_only_waits_for_its_evaluator_blocks_no_other() -> None:
    store = launched_by(claim_of_other())
    write_launch_end(store, 0, rank=0, world_size=1, exit_status=0)
    assert begin_alone(Job("train.py", run="mine")) == ("mine", 1)


def test_a_launcher_that_was_killed_blocks_no_other() -> None:
    launched_by(claim_of_other(pid=NONE))
    assert begin_alone(Job("train.py", run="mine")) == ("mine", 1)


def test_a_worker_that_survived_its_launcher_is_waited_for_and_then_refused(folder: Path) -> None:
    store = launched_by(claim_of_other(pid=NONE))
    claim_worker(store, 0, "worker_3", claim_of_other())
    naps: list[float] = []
    with pytest.raises(LaunchError, match=f"process {OTHER}"):
        begin_alone(Job("train.py", run="mine"), sleep=naps.append)
    assert 1 <= sum(naps) <= 5

    def dies(seconds: float) -> None:
        (path,) = folder.rglob("*worker_3*")
        path.write_text(path.read_text().replace(str(OTHER), str(NONE)))

    assert begin_alone(Job("train.py", run="mine"), sleep=dies) == ("mine", 1)


def test_one_that_cannot_be_seen_is_mentioned() -> None:
    launched_by(claim_of_other(host="node7"))
    said: list[str] = []
    assert begin_alone(Job("train.py", run="mine"), report=said.append) == ("mine", 1)
    assert said == [
        "attempt 0 of mine was launched on node7 and has recorded no end; if "
        "it still runs, its steps and those of this attempt will mix"
    ]


JOBS = {
    "slurm": lambda rank: {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_NTASKS": 4},
    "mpi": lambda rank: {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 4, "OMPI_COMM_WORLD_LOCAL_SIZE": 4, "PMIX_NAMESPACE": "9"
    },
    "deepspeed": lambda rank: {"RANK": rank, "WORLD_SIZE": 4, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500},
    "manual": lambda rank: {"RANK": rank, "WORLD_SIZE": 4},
}  # fmt: skip


@pytest.mark.parametrize("kind", JOBS)
def test_launchers_of_one_job_meet(kind: str) -> None:
    job = Job("train.py", run="mine")
    for attempt in (0, 1):
        for rank in range(4):
            assert begin_attempt(job, environ=texts(JOBS[kind](rank))) == ("mine", attempt)
        for rank in range(4):  # started again with the same key it is another attempt
            write_launch_end(open_store("mine"), attempt, rank=rank, world_size=4, exit_status=0)


def test_two_programs_of_one_batch_script_are_no_job() -> None:
    assert "slurm" not in launch_key({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
