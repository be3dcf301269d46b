"""A worker that writes steps of which a reader can tell whether they are whole, and what it may find of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from stores.faulty_store import FaultyStore, Killed
from watchglass.errors import CompactedError, StoreError
from watchglass.records import SCALARS, STATISTIC_FIELDS, Fact, Mode, Role, StepEnd, TensorInfo
from watchglass.store import (
    RunReader,
    SegmentWriter,
    StatisticsBatch,
    Store,
    claim_worker,
    dtype_of,
    encode_catalog,
    encode_facts,
    encode_rows,
    encode_statistics,
    encode_step_ends,
    this_process,
)
from watchglass.tables import WorkerTables

_TENSORS = [TensorInfo(0, "loss", Role.LOSS), TensorInfo(1, "fc1.weight", Role.WEIGHT)]


class Clock:
    """Times that a test sets."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1_800_000_000, 0

    def time_ns(self) -> int:
        return self.wall_s * 10**9

    def monotonic_ns(self) -> int:
        return self.passed_s * 10**9


def frames_of(numbers: Sequence[int]) -> list[bytes]:
    """Frames of some steps as the recorder writes them: what is of a step comes before its end."""
    values = np.zeros((len(numbers), len(STATISTIC_FIELDS)))
    values[:, 0] = np.asarray(numbers) + 1
    steps = np.array(numbers, "u8")
    ones = np.ones(len(numbers), "u4")
    batch = StatisticsBatch(steps, ones, ones, values, np.zeros(len(numbers), "u1"), np.zeros(len(numbers), bool))
    return [
        encode_catalog(_TENSORS),
        encode_statistics(batch),
        encode_rows(SCALARS, np.array([(n, 0, 1.0, float(n)) for n in numbers], dtype_of(SCALARS))),
        encode_facts([Fact("number", n, "test", {"n": n}) for n in numbers]),
        encode_step_ends([StepEnd(n, Mode.TRAIN, n, n, n, n + 1, 1) for n in numbers]),
    ]


@dataclass
class Writer:
    """A worker, whose process may end at any time and be followed by another.

    Attributes:
        history: Steps that were written, in order, each batch with whether it must be there (or a first part may be).
        pending: Batches of which it is not known that they arrived; the same frames are written again.
    """

    store: FaultyStore
    worker: str
    clock: Clock
    attempt: int = 0
    rotate_bytes: int = 6000
    history: list[tuple[list[int], bool]] = field(default_factory=list)
    pending: list[list[int]] = field(default_factory=list)
    _next: int = 0
    _writer: SegmentWriter | None = None

    def begin(self) -> None:
        """Claim the worker as a process that ends sooner or later without a word."""
        claim_worker(self.store, self.attempt, self.worker, replace(this_process(), process_start=1))
        self._writer = SegmentWriter(
            self.store, self.attempt, self.worker, clock=self.clock, rotate_bytes=self.rotate_bytes
        )

    @property
    def alive(self) -> bool:
        return self._writer is not None

    def flush(self, steps: int) -> None:
        """Write new steps behind those that wait."""
        assert self._writer is not None
        self.pending.append(list(range(self._next, self._next + steps)))
        self._next += steps
        try:
            self._writer.write([frame for batch in self.pending for frame in frames_of(batch)])
        except StoreError:
            return
        except Killed:
            self.end()
            return
        self.history += [(batch, True) for batch in self.pending]
        self.pending = []

    def end(self) -> None:
        """The process is gone; what waited is lost, as far as it had not arrived."""
        self.history += [(batch, False) for batch in self.pending]
        self.pending, self._writer = [], None

    def expected(self) -> Iterator[tuple[list[int], bool]]:
        """The history, with what waits."""
        yield from self.history
        yield from ((batch, False) for batch in self.pending)


def check_order(seen: Sequence[int], writer: Writer, *, whole: bool) -> None:
    """Steps that a reader saw are a prefix of what was written; all that must be there, where it read the ``whole``."""
    left = list(seen)
    for numbers, certain in writer.expected():
        found = 0
        while found < len(numbers) and found < len(left) and left[found] == numbers[found]:
            found += 1
        # Of batches that the store did not take, or that a killed process began, the first ones may be there; a batch
        # has one frame of ends, so there is all of it or nothing.
        assert found in (0, len(numbers)), (numbers, left)
        del left[:found]
        if certain and found < len(numbers):
            assert not whole, f"{numbers} of {writer.worker} were flushed and are not seen"
            break
    assert left == [], f"{left} of {writer.worker} were never written, or stand twice or in another order"


class Looker:
    """Somebody who follows a run, or opens it late."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._begin()

    def _begin(self) -> None:
        self._reader = RunReader(self.store)
        self._tables: dict[tuple[int, str], WorkerTables] = {}
        self._order: dict[tuple[int, str], list[int]] = {}

    def look(self, *, full: bool = False) -> None:
        """Read what is new; from the beginning where what was being read was compacted."""
        try:
            self._look(full)
        except CompactedError:
            self._begin()
            self._look(full)

    def _look(self, full: bool) -> None:
        for attempt, worker, frame in self._reader.poll(full=full):
            tables = self._tables.setdefault((attempt, worker), WorkerTables(self.store))
            tables.ingest(frame)
            order = self._order.setdefault((attempt, worker), [])
            order += [step for step in tables.steps if step not in set(order)]

    def look_whole(self) -> None:
        """Read everything there is."""
        self.look(full=True)
        self.look(full=True)

    def look_while_the_store_fails(self, store: Store, calls: int) -> None:
        """Look, with only so many calls going well; nothing may be lost by that."""
        assert isinstance(store, FaultyStore)
        store.fails_after = calls
        try:
            with suppress(StoreError):
                self.look(full=True)
        finally:
            store.fails_after = None

    def check(self, writers: Sequence[Writer], *, whole: bool) -> None:
        for attempt, worker in self._tables:
            assert any((w.attempt, w.worker) == (attempt, worker) for w in writers), f"no writer of {worker}"
        for writer in writers:
            key = writer.attempt, writer.worker
            check_order(self._order.get(key, []), writer, whole=whole)
            if key in self._tables:
                self._check_steps(self._tables[key])
        assert all("damaged" not in problem.what for problem in self._reader.problems), self._reader.problems

    @staticmethod
    def _check_steps(tables: WorkerTables) -> None:
        """Everything of each step is there, once."""
        for number in tables.steps:
            assert [(row.weight, row.value) for row in tables.rows(SCALARS, number)] == [(1.0, float(number))]
            assert [fact.data for fact in tables.facts(number)] == [{"n": number}]
            rows = tables.statistics.at(number)
            assert rows.ids.tolist() == [1]
            assert rows.values[0, 0] == number + 1
        for problem in tables.problems:
            raise AssertionError(str(problem))
