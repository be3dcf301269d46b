"""A harvest adds exactly what the segments lack, once, and only for a worker that is gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores.dead_workers import DEAD, TENSORS, DeadWorker, dead, step
from watchglass import open_run
from watchglass.errors import StoreError
from watchglass.record import harvest, recovered_steps
from watchglass.record.flight_recorder import FlightRecorder
from watchglass.record.steady_rows import SteadyRow
from watchglass.records import SCALARS, UNITS, Mode, Role
from watchglass.run import Run
from watchglass.stats import of_array
from watchglass.store import (
    Content,
    LocalStore,
    Rings,
    SegmentWriter,
    claim_worker,
    read_claims,
    rings_exist,
    scan,
)


def assert_whole(path: Path, numbers: range, *, captured: range | None = None) -> Run:
    """Every record of the steps is there, and once."""
    run = open_run(path)
    assert run.steps() == list(numbers)
    steps, losses = run.scalars("loss")
    assert steps.tolist() == list(numbers)
    assert losses.tolist() == [1.0 / (number + 1) for number in numbers]
    tables = run.worker().tables
    assert [
        row["seen"] for row in ({f.kind: f.data["number"] for f in tables.facts(n)} for n in captured or numbers)
    ] == [*(captured or numbers)]
    for number in captured or numbers:
        assert len(tables.facts(number)) == 1
        assert len(tables.rows(UNITS, number)) == 1
        assert len(tables.rows(SCALARS, number)) == 2
        array = np.random.default_rng(number).normal(size=10)
        assert tables.statistics.at(number).values[0].tolist() == of_array(array).tolist()
        assert tables.steps[number].captures == 1
    assert [problem for problem in run.problems if "ends within a frame" not in problem.what] == []
    return run


def test_unflushed_steps_are_added_with_everything_of_them(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    worker.flush(worker.train(range(5)), TENSORS)
    worker.train(range(5, 12))
    worker.die()
    (found,) = harvest(worker.store, by="test")
    assert (found.attempt, found.worker, found.steps) == (0, "worker_0", 7)
    run = assert_whole(run_path, range(12))
    event = run.worker().lifecycle[-1]
    assert (event["event"], event["steps"], event["train_step"], event["by"]) == ("harvested", 7, 11, "test")
    assert recovered_steps(run.worker().lifecycle) == 7
    assert not run.finished
    assert run.lost == ["worker_0"]
    assert not rings_exist(worker.store, worker.rings.names)
    assert harvest(worker.store, by="test") == []


def test_steps_that_were_not_copied_yet_come_back_as_rows(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    worker.train(range(6))
    worker.train(range(6, 9), kept=False)
    worker.die()
    assert [found.steps for found in harvest(worker.store, by="test")] == [9]
    run = assert_whole(run_path, range(9), captured=range(6))
    assert run.scalars("learning_rate")[1].tolist() == [0.1] * 9
    end = run.worker().tables.steps[8]
    assert (end.mode, end.mode_step, end.train_step, end.start_ns, end.end_ns, end.captures) == (
        Mode.TRAIN, 8, 8, 8010, 8900, 0
    )  # fmt: skip


def test_nothing_is_added_where_everything_was_flushed(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    worker.flush(worker.train(range(5)), TENSORS)
    worker.die()
    before = worker.store.list("attempts/0000/segments")
    assert harvest(worker.store, by="test") == []
    assert worker.store.list("attempts/0000/segments") == before
    assert not rings_exist(worker.store, worker.rings.names)
    assert open_run(run_path).worker().lifecycle[-1]["event"] == "joined"


def flush_that_is_cut_off(path: Path) -> tuple[DeadWorker, Path, int, bytes]:
    worker = DeadWorker(path)
    worker.flush(worker.train(range(4)), TENSORS[:2])
    segment = path / worker.store.list("attempts/0000/segments")[0].path
    before = segment.stat().st_size
    worker.flush(worker.train(range(4, 7)), TENSORS[2:])
    worker.die()
    return worker, segment, before, segment.read_bytes()


def test_a_flush_that_was_cut_off_anywhere_is_completed_and_nothing_counts_twice(tmp_path: Path) -> None:
    _, _, before, data = flush_that_is_cut_off(tmp_path / "once")
    frames = scan(data, before).frames
    assert len(frames) >= 7
    cuts = {before, len(data) - 1} | {end for frame in frames for end in (frame.offset, frame.offset + 9)}
    for cut in sorted(cuts):
        worker, segment, _, data = flush_that_is_cut_off(tmp_path / str(cut))
        segment.write_bytes(data[:cut])
        assert [found.steps for found in harvest(worker.store, by="test")] == [3]
        assert_whole(tmp_path / str(cut), range(7))


class StoreOfSegments(LocalStore):
    """A folder that does something before or after a segment is written, and notes what is read."""

    def __init__(self, root: Path, before: Callable[[], None] = int, after: Callable[[], None] = int) -> None:
        super().__init__(root)
        self.before, self.after = before, after
        self.asked: list[str] = []

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        segment = "segments" in path
        if segment:
            self.before()
        super().write(path, data, replace=replace)
        if segment:
            self.after()

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        self.asked.append(path)
        return super().read(path, start, end)


def test_a_harvest_that_was_interrupted_is_done_again_without_doubles(run_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    worker = DeadWorker(run_path)
    worker.train(range(5))
    worker.die()
    with pytest.raises(KeyboardInterrupt):
        harvest(StoreOfSegments(run_path, after=interrupt), by="test")
    assert rings_exist(worker.store, worker.rings.names)
    assert harvest(worker.store, by="test") == []
    assert_whole(run_path, range(5))
    assert not rings_exist(worker.store, worker.rings.names)


def test_a_store_that_is_full_keeps_the_rings_for_another_time(run_path: Path) -> None:
    def full() -> None:
        raise StoreError("full")

    worker = DeadWorker(run_path)
    worker.train(range(5))
    worker.die()
    with pytest.raises(StoreError):
        harvest(StoreOfSegments(run_path, before=full), by="test")
    assert read_claims(worker.store, 0)["worker_0"].released
    assert [found.steps for found in harvest(worker.store, by="test")] == [5]
    assert_whole(run_path, range(5))


def test_steps_of_all_segments_since_the_oldest_kept_one_are_known(run_path: Path) -> None:
    worker = DeadWorker(run_path, rotate_bytes=1)  # each flush begins a segment, as on an object store
    worker.flush(worker.train(range(3)), TENSORS)
    for begin in range(3, 30, 3):
        worker.flush(worker.train(range(begin, begin + 3)), [])
    worker.train(range(30, 32))
    worker.die()
    assert [found.steps for found in harvest(worker.store, by="test")] == [2]
    assert_whole(run_path, range(32))


def test_old_segments_are_not_read(run_path: Path) -> None:
    """A long run is not read as a whole for the sake of its last steps."""
    worker = DeadWorker(run_path, rotate_bytes=1)
    for number in range(40):
        worker.clock.now = step(number).end_ns + 50
        worker.flush([step(number)], TENSORS)
    worker.train(range(40, 42))
    worker.die()
    store = StoreOfSegments(run_path)
    assert [found.steps for found in harvest(store, by="test")] == [2]
    assert 1 <= sum("segments" in path for path in store.asked) <= 3


@pytest.mark.parametrize("where", [{"pid": os.getpid()}, {"host": "elsewhere"}])
def test_a_worker_that_lives_or_cannot_be_seen_is_left_alone(run_path: Path, where: dict[str, Any]) -> None:
    worker = DeadWorker(run_path, **where)
    worker.train(range(3))
    assert harvest(worker.store, by="test") == []
    assert rings_exist(worker.store, worker.rings.names)
    worker.rings.close(discard=True)


def test_two_dead_owners_of_one_place_are_harvested_in_their_order(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    worker.train(range(3))
    worker.die()
    rings = Rings(worker.store, worker.label, worker.memory)
    claim_worker(worker.store, 0, "worker_0", dead(rings, DEAD + 1))
    worker.flight = FlightRecorder()
    for tensor in TENSORS:
        worker.flight.name_tensor(tensor)
    worker.flight.open(rings)
    worker.train(range(3, 5))
    worker.die()
    assert [found.steps for found in harvest(worker.store, by="test")] == [5]
    assert_whole(run_path, range(5))


def test_evaluation_steps_are_recovered_in_the_order_of_steps(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    train = worker.train(range(2), kept=False)
    evaluation = step(2, Mode.EVAL)
    worker.flight.keep([evaluation, *train], [])
    worker.die()
    harvest(worker.store, by="test")
    run = open_run(run_path)
    assert run.steps(Mode.GLOBAL) == [0, 1, 2]
    assert run.steps(Mode.EVAL) == [2]


def test_losses_of_rows_have_their_names_although_nothing_else_was_written(run_path: Path) -> None:
    """A worker that dies in its first moments: its thread has copied and flushed nothing yet."""
    worker = DeadWorker(run_path, named=False)
    worker.train(range(3), kept=False)
    worker.die()
    (found,) = harvest(worker.store, by="test")
    assert found.steps == 3
    run = open_run(run_path)
    steps, losses = run.scalars("loss")
    assert (steps.tolist(), losses.tolist()) == ([0, 1, 2], [1.0, 1 / 2, 1 / 3])
    assert run.scalars("learning_rate")[1].tolist() == [0.1] * 3
    assert run.tensor_names(role=Role.LOSS) == ["loss"]


def test_names_that_stand_in_an_old_segment_are_not_written_again(run_path: Path) -> None:
    worker = DeadWorker(run_path, named=False)
    named = [replace(TENSORS[0], dtype="float32"), *TENSORS[1:]]
    worker.flush(worker.train(range(5), kept=False), named)
    worker.writer.close()
    worker.writer = SegmentWriter(worker.store, 0, "worker_0", clock=worker.clock)
    worker.flush(worker.train(range(5, 2060), kept=False)[:100], [])
    worker.die()
    assert harvest(worker.store, by="test")
    assert open_run(run_path).tensor("loss").info.dtype == "float32"


def test_rows_keep_their_numbers_where_there_is_no_memory_for_a_ring(run_path: Path, tmp_path: Path) -> None:
    """As on macOS, which has no file system in memory."""
    worker = DeadWorker(run_path, memory=tmp_path / "nowhere")
    assert worker.rings.rows is None
    worker.flight.keep([SteadyRow(n, n, 1000 * n + 10, 1000 * n + 900, 1.0 / (n + 1), 0.1, 4.0) for n in range(5)], [])
    worker.die()
    assert harvest(worker.store, by="test")
    run = open_run(run_path)
    assert run.scalars("loss")[1].tolist() == [1.0 / (n + 1) for n in range(5)]
    assert run.scalars("learning_rate")[1].tolist() == [0.1] * 5


def test_a_step_of_another_model_stays_one(run_path: Path) -> None:
    worker = DeadWorker(run_path)
    made = step(0)
    made.model = 2
    made.records.rows[SCALARS] = []
    worker.flight.finished(made)
    worker.die()
    assert harvest(worker.store, by="test")
    (end,) = open_run(run_path).worker().tables.steps.values()
    assert (end.model, end.mode_step) == (2, 0)
