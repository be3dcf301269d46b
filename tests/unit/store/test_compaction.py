"""Compaction keeps every bit, loses nothing when it is interrupted, and takes nothing from readers."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores.buckets import in_memory
from stores.compacted_runs import CrashingStore, Interrupted, content, small_run
from watchglass.config import Timing
from watchglass.errors import DamagedDataError, NotARunError, RunExistsError, StoreError
from watchglass.records import STATISTIC_FIELDS, Mode, StepEnd
from watchglass.store import (
    FrameKind,
    LocalStore,
    MemoryBudget,
    RunReader,
    SegmentWriter,
    StatisticsBatch,
    Store,
    claim_worker,
    compact,
    compacted_file,
    encode_frame,
    encode_statistics,
    encode_step_ends,
    layout,
    memory_budget,
    newest_generation,
    pin,
    release_worker,
    this_process,
)
from watchglass.store.compaction import pins
from watchglass.store.compaction.lease import CompactionLease
from watchglass.testing import RunBuilder


def segments(store: Store, attempt: int = 0) -> list[str]:
    return [entry.path for entry in store.list(layout.segments(attempt))]


def change_holders(store: Store, prefix: str, **changes: Any) -> None:
    """Rewrite the claims and pins below a path as if another process had made them."""
    for entry in store.list(prefix.rpartition("/")[0]):
        if entry.path.startswith(prefix):
            data = json.loads(store.read(entry.path))
            data.get("holder", data).update(changes)
            store.write(entry.path, json.dumps(data).encode(), replace=True)


def test_everything_reads_as_before_and_segments_are_gone(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run")
    before = content(store)
    raw = list(store.list("attempts/0000/tensors"))
    done = compact(store)
    assert content(store) == before
    assert segments(store) == []
    assert not (tmp_path / "run/attempts/0000/segments").exists()
    assert list(store.list("attempts/0000/tensors")) == raw
    assert (done.generation, done.written, done.rows, done.kept) == (1, True, 2 * 24 * 3, [])
    assert done.after_bytes == sum(entry.size for entry in store.list(layout.generation(1)))


def test_a_run_in_an_object_store(tmp_path: Path) -> None:
    local = small_run(tmp_path / "run")
    remote = in_memory("runs/demo")
    try:
        for entry in local.list():
            remote.write(entry.path, local.read(entry.path))
        before = content(local)
        assert compact(remote).written
        assert content(remote) == before
        assert segments(remote) == []
        assert not compact(remote).written
    finally:
        remote.close()


def test_blocks_of_steps_become_files_before_the_ends_of_their_steps(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    before = content(store)
    compact(store, block_rows=20)
    assert content(store) == before  # which checks the order
    files = [frame for _, _, frame in RunReader(store).poll() if frame.kind == FrameKind.COMPACTED]
    steps = [compacted_file(frame).global_steps for frame in files]
    assert len(steps) == 3
    assert [first for first, _ in steps[1:]] == [last + 1 for _, last in steps[:-1]]
    assert RunReader(store).poll()[0][2].kind == FrameKind.HEADER


def test_compacted_again_with_a_new_attempt_one_generation_holds_all(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    compact(store)
    small_run(tmp_path / "run", workers=2, seed=1)
    before = content(store)
    assert compact(store).generation == 2
    assert content(store) == before
    assert store.list(layout.generation(1)) == []
    generation = newest_generation(store)
    assert generation is not None
    assert [(each.attempt, each.worker) for each in generation.covers] == [
        (0, "worker_0"), (1, "worker_0"), (1, "worker_1"),
    ]  # fmt: skip
    again = compact(store)
    assert (again.generation, again.written, again.deleted) == (2, False, (0, 0))


@pytest.mark.parametrize("what", ["frames without an end of a step", "a file of an earlier generation"])
def test_what_takes_more_memory_than_a_process_may_read_is_not_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = small_run(tmp_path / "run", workers=2)
    hostile = segments(store)[0]
    with open(tmp_path / "run" / hostile, "ab") as file:
        if what == "frames without an end of a step":
            for _ in range(6):
                file.write(encode_frame(FrameKind.FACTS, bytes(1 << 18), schema=77))
        else:
            named = {"path": "compacted/00000001/0000/worker_0-00000.parquet", "rows": 1, "bytes": 20 << 30,
                     "global_steps": [0, 1], "footer_crc": 0}  # fmt: skip
            file.write(encode_frame(FrameKind.COMPACTED, json.dumps(named).encode()))
    budget = MemoryBudget(1 << 20)
    monkeypatch.setattr(memory_budget, "reading_budget", lambda: budget)
    done = compact(store)
    assert [reason[:42] for reason in done.kept] == ["worker_0 of attempt 0 is not compacted: re"]
    assert "WATCHGLASS_READ_MEMORY" in done.kept[0]
    assert [each.worker for each in newest_generation(store).covers] == ["worker_1"], "the others are compacted"
    assert budget.used_bytes == 0


def test_a_training_run_that_goes_on_is_refused_and_its_earlier_attempts_are_compacted(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        with pytest.raises(RunExistsError, match=rf"worker_0 is process {this_process().pid}, which is running"):
            compact(builder.store, must=True)
        assert segments(builder.store)
        builder.leave()
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(scalars={"loss": 1.0})
        before = content(builder.store)
        done = compact(builder.store, must=True)
        assert done.written
        assert "attempt 1 is not compacted" in done.kept[0]
        assert content(builder.store) == before
        assert not segments(builder.store, 0)
        assert segments(builder.store, 1)
        builder.step(scalars={"loss": 2.0})
        assert len(content(builder.store)[1, "worker_0"]["ends"]) == 2


def test_a_process_of_another_machine_counts_as_running_until_its_record_says_otherwise(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    claim_worker(store, 0, "worker_0", replace(this_process(), host="elsewhere"))
    with pytest.raises(RunExistsError, match=r"on elsewhere, which is not visible from this machine.*--force"):
        compact(store, must=True)
    assert compact(store, even_if_unseen=True).written


def test_what_a_killed_worker_wrote_is_compacted_without_its_torn_end(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1, leave=False)
    before = content(store)
    with (tmp_path / "run" / segments(store)[-1]).open("ab") as file:
        file.write(encode_frame(FrameKind.FACTS, b"[]" * 40)[:50])
    assert compact(store).written
    assert content(store) == before


def test_what_cannot_be_kept_stays_as_it_is(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=2)
    path = tmp_path / "run" / next(path for path in segments(store) if "worker_1" in path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    done = compact(store)
    assert done.written
    assert f"{path.name} is damaged at byte" in done.kept[0]
    assert path.read_bytes() == bytes(data)
    assert [path for path in segments(store) if "worker_0" in path] == []


def test_a_missing_segment_may_still_come(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    writer = SegmentWriter(store, 0, "worker_0")
    writer.write([encode_frame(FrameKind.FACTS, b"[]")])
    first, second = segments(store)
    store.write(second[:-1] + "2", store.read(second))
    store.delete(second)
    done = compact(store)
    assert not done.written
    assert "its segment 1 is missing" in done.kept[0]
    assert first in segments(store)


def test_columns_of_a_newer_release_are_not_discarded(tmp_path: Path) -> None:
    import pyarrow as pa

    store = small_run(tmp_path / "run", workers=1)
    payload = encode_statistics(_row())[16:]
    with pa.ipc.open_stream(payload) as stream:
        table = stream.read_all().append_column("kurtosis", pa.array([3.0]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.STATISTICS, sink.getvalue().to_pybytes())])
    done = compact(store)
    assert not done.written
    assert "newer watchglass" in done.kept[0]
    assert "kurtosis" in done.kept[0]


def test_of_rows_that_were_written_twice_the_last_is_kept(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    writer = SegmentWriter(store, 0, "worker_0")
    writer.write([encode_statistics(_row(step=100, total=1.0)), encode_statistics(_row(step=100, total=2.0))])
    writer.write([encode_statistics(_row(step=100, total=3.0, origin=1))])
    before = content(store)
    compact(store)
    assert content(store) == before


def test_a_worker_goes_on_behind_its_compacted_segments(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    compact(store)
    claim_worker(store, 0, "worker_0")
    SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.FACTS, b"[]")])
    release_worker(store, 0, "worker_0")
    (path,) = segments(store)
    assert path.endswith("worker_0-00000001")
    assert content(store)[0, "worker_0"]["others"][-1] == (FrameKind.FACTS, b"[]")
    before = content(store)
    assert compact(store).generation == 2
    assert content(store) == before
    assert segments(store) == []


def test_neighbouring_rows_share_a_frame(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    compact(store)
    kinds = [frame.kind for _, _, frame in RunReader(store).poll()]
    assert (kinds.count(FrameKind.SCALARS), kinds.count(FrameKind.STEP_ENDS)) == (1, 1)
    assert kinds[-2:] == [FrameKind.STEP_ENDS, FrameKind.LIFECYCLE]  # a worker leaves behind its last step


def test_rows_of_two_segments_share_none(tmp_path: Path) -> None:
    """A header pairs the clocks of the steps behind it."""
    store = small_run(tmp_path / "run", workers=1)
    more = SegmentWriter(store, 0, "worker_0")
    more.write([encode_step_ends([StepEnd(100, Mode.TRAIN, 100, 100, 0, 1)])])
    compact(store)
    kinds = [frame.kind for _, _, frame in RunReader(store).poll()]
    assert kinds.count(FrameKind.STEP_ENDS) == kinds.count(FrameKind.HEADER) == 2
    assert kinds[-2:] == [FrameKind.HEADER, FrameKind.STEP_ENDS]


def test_it_must_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotARunError):
        compact(LocalStore(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Others at the same time


def test_one_process_compacts_at_a_time(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run")
    before = content(store)
    with CompactionLease(store):
        with pytest.raises(RunExistsError, match="is held by process"):
            compact(store)
        assert content(store) == before
    assert compact(store).written


def test_a_lease_ends_with_its_process_and_elsewhere_with_its_renewals(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run")
    dead = replace(this_process(), process_start=1)
    store.write(layout.COMPACTION_LEASE, json.dumps(dead.to_json()).encode())
    with CompactionLease(store):
        pass
    # Two claims are there now: taken and given back.
    elsewhere = replace(this_process(), host="elsewhere")
    store.write(f"{layout.COMPACTION_LEASE}.3", json.dumps(elsewhere.to_json()).encode())
    with pytest.raises(RunExistsError, match=r"process [0-9]+ on elsewhere; wait"):
        CompactionLease(store)
    store.delete(f"{layout.COMPACTION_LEASE}.3")
    old = replace(elsewhere, wall_ns=time.time_ns() - 3_600_000_000_000)
    store.write(f"{layout.COMPACTION_LEASE}.3", json.dumps(old.to_json()).encode())
    renewed: dict[str, Any] = {"wall_ns": old.wall_ns}
    store.write(layout.COMPACTION_RENEWED, json.dumps(renewed).encode(), replace=True)
    with CompactionLease(store) as lease:
        lease.check()


def test_a_process_that_lost_its_lease_stops_before_it_makes_anything_valid(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run")
    before = content(store)
    taken = [0]

    def take_over() -> None:
        if not taken[0]:
            taken[0] = 1
            other = replace(this_process(), host="elsewhere")
            store.write(f"{layout.COMPACTION_LEASE}.1", json.dumps(other.to_json()).encode())

    with pytest.raises(RunExistsError, match="another process compacts"):
        compact(store, tick=take_over)
    assert newest_generation(store) is None
    assert content(store) == before


def test_a_process_that_slept_while_another_compacted_removes_nothing(tmp_path: Path) -> None:
    """Both have chosen the same number: the first had written nothing yet when it fell asleep."""
    store = small_run(tmp_path / "run", workers=1)
    for _ in range(3):
        SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.FACTS, b"[]")])
    before = content(store)
    others: list[int] = []

    def other_compacts() -> None:
        if not others:
            others.append(0)
            change_holders(store, layout.COMPACTION_LEASE, process_start=1)
            others.append(compact(store).generation)

    with pytest.raises((RunExistsError, StoreError)):
        compact(store, tick=other_compacts)
    assert others == [0, 1]
    assert content(store) == before


def test_the_lease_is_renewed_within_an_object_of_many_frames(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    compact(store)
    small_run(tmp_path / "run", workers=1, seed=1, steps=1)
    frames = len([frame for attempt, _, frame in RunReader(store).poll(full=True) if attempt == 0])
    ticks = [0]

    def tick() -> None:
        ticks[0] += 1

    compact(store, tick=tick)
    assert ticks[0] > frames > 10


def test_a_writer_that_looks_dead_from_here_is_known_by_what_it_writes(tmp_path: Path) -> None:
    """It may be in another container, or on another machine that has the same name."""
    store = small_run(tmp_path / "run", workers=1)
    path = segments(store)[-1]
    size = store.size(path)
    before = content(store)

    def write() -> None:
        if store.size(path) == size:
            store.append(path, encode_frame(FrameKind.FACTS, b"[1]"))

    with pytest.raises(RunExistsError, match=r"worker_0 of attempt 0 of .* is still being written"):
        compact(store, tick=write)
    assert newest_generation(store) is None
    assert not [entry.path for entry in store.list(layout.COMPACTED) if entry.path.endswith((".frames", ".parquet"))]
    others = content(store)[0, "worker_0"]["others"]
    assert others[: len(before[0, "worker_0"]["others"])] == before[0, "worker_0"]["others"]
    assert others[-1] == (FrameKind.FACTS, b"[1]")


@pytest.mark.parametrize("ending", [".frames", ".parquet"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_segments_stay_where_what_stands_in_their_place_was_damaged_before_they_went(
    tmp_path: Path, how: str, ending: str
) -> None:
    store = small_run(tmp_path / "run", workers=1)
    with pin(store):
        assert compact(store).written
    there = segments(store)
    (name,) = (entry.path for entry in store.list(layout.generation(1)) if entry.path.endswith(ending))
    data = bytearray(store.read(name))
    store.delete(name)
    if how == "damaged":
        data[-100] ^= 1
        store.write(name, bytes(data))
    for _ in range(2):
        with pytest.raises(DamagedDataError, match="deleted"):
            compact(store)
    assert segments(store) == there


def test_it_is_said_that_what_was_compacted_before_cannot_be_compacted_again(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    compact(store)
    (name,) = (entry.path for entry in store.list(layout.generation(1)) if entry.path.endswith(".parquet"))
    data = bytearray(store.read(name))
    data[-100] ^= 1
    store.write(name, bytes(data), replace=True)
    small_run(tmp_path / "run", workers=1, seed=1)
    done = compact(store)
    assert not done.written
    assert "earlier compacted data cannot be compacted again" in done.kept[0]
    assert segments(store, 1)
    assert store.list(layout.generation(2)) == []


def test_numbers_of_compacted_segments_are_never_used_again(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    for _ in range(2):
        SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.FACTS, b"[]")])
    with pin(store):
        compact(store)
    for path in segments(store)[1:]:
        store.delete(path)
    SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.FACTS, b"[3]")])
    assert segments(store)[-1].endswith("worker_0-00000003")
    assert content(store)[0, "worker_0"]["others"][-1] == (FrameKind.FACTS, b"[3]")


def test_a_pinned_reader_keeps_what_it_reads(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    for _ in range(2):
        SegmentWriter(store, 0, "worker_0").write([encode_frame(FrameKind.FACTS, b"[%s]" % (b" " * 200_000))])
    before, paths = content(store), segments(store)
    reader = RunReader(store)
    with pin(store) as held:
        assert held.generation == 0
        first = reader.poll(max_bytes=1)
        done = compact(store)
        assert done.written
        assert "reads them" in done.kept[0]
        assert segments(store) == paths
        rest: list[Any] = []
        while found := reader.poll(full=True):
            rest += found
        assert first
        assert rest
        assert not reader.problems
        assert content(store) == before
    done = compact(store)
    assert not done.written
    assert done.deleted[0] == len(paths)
    assert segments(store) == []
    assert content(store) == before


def test_a_reader_of_the_newest_generation_blocks_no_other(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    compact(store)
    with pin(store) as held:
        assert held.generation == 1
        assert compact(store).kept == []


def test_pins_end_with_their_process_or_when_they_are_not_renewed(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    pin(store, Timing(pin_expiry_s=-100.0))
    change_holders(store, layout.PINS, host="elsewhere")
    pin(store)
    (path,) = (each.path for each in pins.pins(store) if each.holder.host != "elsewhere")
    change_holders(store, path, process_start=1)
    assert len(store.list(layout.PINS)) == 2
    assert compact(store).kept == []
    assert segments(store) == []
    assert store.list(layout.PINS) == []


def test_a_pin_is_renewed(tmp_path: Path) -> None:
    store = small_run(tmp_path / "run", workers=1)
    with pin(store) as held:
        assert not held.tick()
    with pin(store, Timing(pin_renewal_s=0.0)) as held:
        before = pins.pins(store)[0].expires_ns
        assert held.tick()
        assert pins.pins(store)[0].expires_ns > before


# Crashes


@pytest.mark.parametrize("done", [False, True])
def test_after_a_crash_at_any_operation_everything_is_there_and_the_next_compaction_finishes(
    tmp_path: Path, done: bool
) -> None:
    template = tmp_path / "template"
    small_run(template, workers=1, steps=12)
    compact(LocalStore(template))
    small_run(template, workers=2, steps=12, seed=1)
    before = content(LocalStore(template))
    operations = 0
    while True:
        operations += 1
        folder = tmp_path / str(operations)
        shutil.copytree(template, folder)
        store = CrashingStore(folder, operations, done=done)
        try:
            compact(store, block_rows=30)
        except Interrupted:
            finished = False
        else:
            finished = True
        after = LocalStore(folder)
        # This process is alive; the holder of the lease counts as dead.
        change_holders(after, layout.COMPACTION_LEASE, process_start=1)
        assert content(after) == before
        compact(after, block_rows=30)
        assert content(after) == before
        assert segments(after, 0) == segments(after, 1) == []
        generation = newest_generation(after)
        assert generation is not None
        kept = {entry.path.split("/")[1] for entry in after.list(layout.COMPACTED) if entry.path.endswith(".frames")}
        assert kept == {f"{generation.number:08}"}
        shutil.rmtree(folder)
        if finished:
            break
    assert operations > 12


def _row(step: int = 200, total: float = 0.0, origin: int = 0) -> StatisticsBatch:
    values = np.zeros((1, len(STATISTIC_FIELDS)))
    values[0, STATISTIC_FIELDS.index("sum")] = total
    return StatisticsBatch(
        np.array([step], np.uint64), np.array([1], np.uint32), np.array([1], np.uint32), values,
        np.array([origin], np.uint8), np.array([False]),
    )  # fmt: skip
