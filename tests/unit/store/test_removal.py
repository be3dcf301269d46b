"""Only runs are removed, only unused ones, and only their own objects."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from stores.buckets import in_memory
from stores.compacted_runs import CrashingStore, Interrupted, small_run
from watchglass.errors import MissingFileError, NotARunError, RunExistsError
from watchglass.records import Observation
from watchglass.store import (
    JournalWriter,
    LocalStore,
    Renewal,
    SegmentWriter,
    check_idle,
    claim_worker,
    compact,
    create_attempt,
    create_run,
    encode_lifecycle,
    layout,
    pin,
    plan_removal,
    read_manifest,
    remove,
    this_process,
    write_launch_end,
)
from watchglass.store.compaction.lease import CompactionLease


def complete_run(folder: Path) -> LocalStore:
    """A run with one of everything."""
    store = small_run(folder, workers=1, steps=6)
    compact(store)
    small_run(folder, workers=2, steps=6)
    with JournalWriter(store) as journal:
        journal.write([])
    store.write(layout.control_request("stop", 1), b"{}")
    store.write(layout.control_seen("stop", 1, 0, "worker_0"), b"{}")
    store.write(layout.retention(0, "worker_0"), b"{}")
    store.write(layout.launch_end(1, 0), b"{}")
    (folder / "attempts/0001/segments/.wg-17-1-1").write_bytes(b"half")
    (folder / "attempts/0001/segments/.worker_0-17-00ff.entries").write_bytes(b"ring")
    return store


def test_nothing_of_a_run_stays(tmp_path: Path) -> None:
    store = complete_run(tmp_path / "run")
    removal = plan_removal(store)
    assert removal.foreign == ()
    assert removal.paths[-1] == layout.MANIFEST
    assert len(removal.hidden) == 2
    check_idle(store)
    remove(store, removal)
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").rglob("*"))


def test_a_fifo_in_place_of_an_object_goes_with_the_run_and_holds_it_for_nobody(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1, steps=6)
    places = (
        "journal/lease", "journal/judged", "journal/00000007", "compacted/lease", "streams/system/claim",
        "attempts/0000/workers/worker_9.json", "control/stop/0000/0000/commit",
    )  # fmt: skip
    for place in places:
        path = tmp_path / "run" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    os.mkfifo(tmp_path / "run/pipe")
    removal = plan_removal(store)
    assert removal.foreign == ("pipe",), "it could be anybody's"
    check_idle(store)
    remove(store, removal)
    assert [path.name for path in (tmp_path / "run").rglob("*")] == ["pipe"]


def test_files_of_others_stay(tmp_path: Path) -> None:
    store = complete_run(tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    mine = ["notes.txt", "attempts/0000/notes.txt", "attempts/0000/segments/checkpoint.pt", "journal/.hidden"]
    for name in mine:
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("mine")
    os.symlink(outside, tmp_path / "run/attempts/0007")
    os.symlink(outside / "precious", tmp_path / "run/journal/00000009")
    removal = plan_removal(store)
    links = ["attempts/0007", "journal/00000009"]
    assert sorted(removal.foreign) == sorted([*(name for name in mine if "hidden" not in name), *links])
    remove(store, removal)
    left = sorted(
        str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if not path.is_dir()
    )
    assert left == sorted([*mine, "journal/00000009"])
    assert (outside / "precious").read_text() == "mine"
    assert (tmp_path / "run/attempts/0007").is_symlink()


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        plan_removal(LocalStore(tmp_path / "none"))
    (tmp_path / "some").mkdir()
    (tmp_path / "some/run.json").write_text("{}")
    with pytest.raises(NotARunError):
        plan_removal(LocalStore(tmp_path / "some"))
    assert (tmp_path / "some/run.json").exists()


def test_a_run_in_use_is_refused(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1, steps=1)
    check_idle(store)
    here = rf"process {this_process().pid}, which is running"
    with pin(store), pytest.raises(RunExistsError, match=f"a process reads it.*{here}"):
        check_idle(store)
    with JournalWriter(store), pytest.raises(RunExistsError, match=f"a process evaluates it.*{here}"):
        check_idle(store)
    with CompactionLease(store), pytest.raises(RunExistsError, match=f"a process compacts it.*{here}"):
        check_idle(store)
    check_idle(store)
    claim_worker(store, 0, "worker_0", replace(this_process(), host="elsewhere"))
    with pytest.raises(RunExistsError, match=r"worker_0 writes it .*on elsewhere.*--force"):
        check_idle(store)
    check_idle(store, even_if_unseen=True)
    _end_launch(store, time.time_ns())
    check_idle(store)
    claim_worker(store, 0, "worker_1")
    with pytest.raises(RunExistsError, match=f"worker_1 writes it.*{here}"):
        check_idle(store, even_if_unseen=True)


def _end_launch(store: LocalStore, wall_ns: int) -> None:
    end = {"world_size": 1, "exit_status": 0, "wall_ns": wall_ns}
    store.write(layout.launch_end(0, 0), json.dumps(end).encode(), replace=True)


def test_the_end_of_an_earlier_launch_says_nothing_of_a_worker_that_was_started_again(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1, steps=1)
    _end_launch(store, time.time_ns())
    claim_worker(store, 0, "worker_0", replace(this_process(), host="elsewhere"))
    with pytest.raises(RunExistsError, match=r"worker_0 writes it .*on elsewhere.*--force"):
        check_idle(store)
    with pytest.raises(RunExistsError, match="is not visible from this machine"):
        compact(store, must=True)
    _end_launch(store, time.time_ns())
    check_idle(store)
    assert compact(store).written


def test_a_claim_that_cannot_be_read_may_be_of_a_process_that_lives(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1, steps=1)
    store.write(layout.worker_claim(0, "worker_1"), b"{half")
    with pytest.raises(RunExistsError, match=r"the claim of worker_1 in attempt 0 cannot be read.*--force"):
        check_idle(store)
    check_idle(store, even_if_unseen=True)


def test_a_removal_that_was_interrupted_can_be_done_again(tmp_path: Path) -> None:
    complete_run(tmp_path / "template")
    operations = 0
    while True:
        operations += 1
        folder = tmp_path / str(operations)
        shutil.copytree(tmp_path / "template", folder)
        store = CrashingStore(folder, operations, done=True)
        try:
            remove(store, plan_removal(store))
        except Interrupted:
            if not (folder / "run.json").exists():
                break
            remove(LocalStore(folder), plan_removal(LocalStore(folder)))
        assert not list(folder.rglob("*"))
    assert operations == len(plan_removal(LocalStore(tmp_path / "template")).paths)


def test_a_run_in_an_object_store(tmp_path: Path) -> None:
    local = small_run(tmp_path / "run", workers=1, steps=3)
    remote = in_memory("runs/demo")
    try:
        for entry in local.list():
            remote.write(entry.path, local.read(entry.path))
        remote.write("notes.txt", b"mine")
        removal = plan_removal(remote)
        check_idle(remote)
        remove(remote, removal)
        assert [entry.path for entry in remote.list()] == ["notes.txt"]
    finally:
        remote.close()


def test_a_run_whose_prefix_begins_another_ones(tmp_path: Path) -> None:
    local = complete_run(tmp_path / "run")
    bucket = MemoryStore()
    stores = [in_memory("runs/demo", bucket), in_memory("runs/demo2", bucket)]
    try:
        for remote in stores:
            for entry in local.list():
                remote.write(entry.path, local.read(entry.path))
        removal = plan_removal(stores[0])
        assert removal.foreign == ()
        remove(stores[0], removal)
        assert stores[0].list() == []
        assert stores[1].list() == local.list()
    finally:
        for remote in stores:
            remote.close()


def test_a_whole_bucket_is_no_run_although_it_holds_some(tmp_path: Path) -> None:
    bucket = MemoryStore()
    remote, above = in_memory("runs/a", bucket), in_memory("", bucket)
    try:
        for entry in complete_run(tmp_path / "run").list():
            remote.write(entry.path, LocalStore(tmp_path / "run").read(entry.path))
        with pytest.raises(NotARunError):
            plan_removal(above)
    finally:
        remote.close()
        above.close()


@pytest.mark.parametrize("step", ["append", "next segment", "journal", "renewal", "launch end"])
def test_nothing_grows_where_a_run_was_removed_under_its_writers(tmp_path, step):
    """A remnant without run.json would keep the next run from beginning there."""
    store = LocalStore(tmp_path / "run")
    create_run(store, command=["train.py"])
    create_attempt(store, "")
    writer = SegmentWriter(store, 0, "worker_0", rotate_bytes=1 if step == "next segment" else 8 << 20)
    writer.write([encode_lifecycle({"event": "joined"})])
    journal = JournalWriter(store)
    journal.write([Observation("a", 0)])
    shutil.rmtree(store.root)
    with suppress(MissingFileError):
        if step in ("append", "next segment"):
            writer.write([encode_lifecycle({"event": "left"})])
        elif step == "journal":
            journal.write([Observation("b", 0)])
        elif step == "renewal":
            Renewal(store).tick()
        else:
            write_launch_end(LocalStore(store.root), 0, rank=0, world_size=1, exit_status=0)
    journal.close()
    assert not store.root.exists()
    create_run(store, command=["train.py"])
    assert read_manifest(store)


def test_what_is_no_file_stays_and_is_said(tmp_path):
    """It keeps the next run from beginning there, so the user who removes one must be notified."""
    store = LocalStore(tmp_path / "run")
    create_run(store, command=["train.py"])
    os.mkfifo(store.root / "pipe")
    (store.root / "link").symlink_to("pipe")
    removal = plan_removal(store)
    assert sorted(removal.foreign) == ["link", "pipe"]
    remove(store, removal)
    assert sorted(os.listdir(store.root)) == ["link", "pipe"]
