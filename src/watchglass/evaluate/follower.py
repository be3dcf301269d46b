"""From frames to complete steps: what the engine sees, in an order that does not depend on arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from watchglass.errors import DamagedDataError
from watchglass.records import Fact, StepEnd
from watchglass.run import Catalog, History, StepRecords, StepView, WorkerTables
from watchglass.store import Frame, FrameKind, Problem, RunReader, Store, decode_facts, layout, read_manifest

Order = tuple[int, int, int]

#: Steps after which what was evaluated is dropped from memory.
_FORGET_EVERY = 64


@dataclass(frozen=True)
class _Ended:
    """A step whose records are all there, with what must not depend on what arrives later."""

    end: StepEnd
    catalog: Catalog
    facts: tuple[Fact, ...]


@dataclass
class FollowedWorker:
    """One worker of one attempt, as far as it was read.

    Attributes:
        attempt: Attempt of the run.
        worker: Its name.
        tables: What it recorded and was not evaluated yet.
        reached: Order of the last step that it ended; None for none.
        joined: Whether it announced itself.
        left: The ``left`` event, or None while it has not left.
        lost: Whether it was found dead without having left.
    """

    attempt: int
    worker: str
    tables: WorkerTables = field(default_factory=WorkerTables)
    reached: Order | None = None
    joined: bool = False
    left: dict[str, Any] | None = None
    lost: bool = False
    queue: deque[_Ended] = field(default_factory=deque)
    history: History = field(default_factory=History)
    view: StepView | None = None
    _seen: deque[int] = field(default_factory=lambda: deque(maxlen=1024))
    _waiting: list[Fact] = field(default_factory=list)
    _events: int = 0
    _since_forget: int = 0

    @property
    def active(self) -> bool:
        """Whether more may come from it."""
        return self.joined and self.left is None and not self.lost

    def ingest(self, frame: Frame) -> None:
        """Takes in one frame; a step is queued with the catalog and facts as they are now, in stream order."""
        known = set(self.tables.steps) if frame.kind == FrameKind.STEP_ENDS else set()
        self.tables.ingest(frame)
        if frame.kind == FrameKind.FACTS:
            self._hold_back(frame)
        elif frame.kind == FrameKind.STEP_ENDS:
            for global_step, end in list(self.tables.steps.items()):
                if global_step not in known and global_step not in self._seen:
                    self._end(end)
        elif frame.kind == FrameKind.LIFECYCLE:
            for event in self.tables.lifecycle[self._events :]:
                # A restarted process joins again under the same name.
                self.joined, self.left = True, event if event["event"] == "left" else None
                self.lost = self.lost and event["event"] != "joined"
            self._events = len(self.tables.lifecycle)

    def next_view(self, run_id: str) -> StepView:
        """The view of the next queued step; moves the history on."""
        ended = self.queue.popleft()
        number = ended.end.global_step
        rows = self.tables.statistics(number)
        scalars = {row[0]: row for row in self.tables.scalars(number)}
        catalog = ended.catalog
        records = StepRecords(
            end=ended.end,
            catalog=catalog,
            scalars=[(catalog[i], value, weight) for i, value, weight in scalars.values() if i in catalog],
            ids=rows.ids,
            statistics=rows.values,
            calls=rows.calls,
            sampled=rows.sampled,
            units=[(catalog[i], kind, bits) for i, kind, bits in self.tables.units(number) if i in catalog],
            facts=ended.facts,
            histograms=rows.histograms,
            reductions=self.tables.reductions(number),
        )
        if not all(i in catalog for i in rows.ids.tolist()):
            # A row whose meaning was lost with a damaged segment says nothing to any rule.
            records = _known_rows(records)
        self.view = StepView.after(
            self.history, records, run_id=run_id, attempt=self.attempt, worker=self.worker, previous=self.view
        )
        self._since_forget += 1
        if self._since_forget >= _FORGET_EVERY:
            self._since_forget = 0
            self.tables.forget(number)
        return self.view

    def _end(self, end: StepEnd) -> None:
        self._seen.append(end.global_step)
        self.reached = end.order if self.reached is None else max(self.reached, end.order)
        facts = (*self._waiting, *self.tables.facts(end.global_step))
        self._waiting = []
        self.queue.append(_Ended(end, self.tables.catalog.snapshot(), facts))

    def _hold_back(self, frame: Frame) -> None:
        """Facts of the run, and facts of steps that have already ended, go to the next step that ends."""
        try:
            facts = decode_facts(frame.payload)
        except DamagedDataError:
            return  # WorkerTables has noted the problem
        self._waiting += [fact for fact in facts if fact.global_step < 0 or fact.global_step in self._seen]


class Follower:
    """Follows a run and gives its complete steps, live and in replay alike. For one thread; holds no open file.

    Steps come in the order of attempt, then :attr:`StepEnd.order`, then worker, as far as workers are in step: a step
    waits until every active worker of its attempt has ended it or is past it. Within a worker the order is always
    that of the worker itself.
    """

    def __init__(self, store: Store, *, attempt: int | None = None) -> None:
        """Begins with the first step of a run.

        Args:
            store: The store of the run.
            attempt: Follow only this attempt; all if None.

        Raises:
            NotARunError: The store holds no run.
        """
        self.run_id = read_manifest(store).run_id
        self.workers: dict[tuple[int, str], FollowedWorker] = {}
        #: Frames read so far; tells whether anything is new.
        self.frames = 0
        self._reader = RunReader(store)
        self._attempt = attempt

    @property
    def problems(self) -> list[Problem]:
        """What could not be read."""
        found = self._reader.problems
        for worker in self.workers.values():
            found += worker.tables.problems
        return found

    @property
    def active(self) -> list[FollowedWorker]:
        """Workers that have joined and neither left nor been lost."""
        return [worker for worker in self.workers.values() if worker.active]

    def poll(self, *, full: bool = False, max_bytes: int = 16 << 20) -> Iterator[list[StepView]]:
        """Reads what is new and gives every step that is complete by now: one list per step, a view per worker.

        A view is valid until the next one of its worker is made, so use each list before asking for the next.

        Args:
            full: Look for late segments everywhere; before concluding that nothing more comes.
            max_bytes: Read at most about so much; call again for the rest.
        """
        for attempt, worker, frame in self._reader.poll(max_bytes, full=full):
            self.frames += 1
            if self._attempt is None or attempt == self._attempt:
                key = (attempt, worker)
                if key not in self.workers:
                    self.workers[key] = FollowedWorker(attempt, worker)
                self.workers[key].ingest(frame)
        yield from self._release(final=False)

    def drain(self) -> Iterator[list[StepView]]:
        """Gives the steps that still wait for workers which will not come: at the end of a run."""
        yield from self._release(final=True)

    def _release(self, *, final: bool) -> Iterator[list[StepView]]:
        newest = max((attempt for attempt, _ in self.workers), default=0)
        for attempt in sorted({attempt for attempt, _ in self.workers}):
            team = sorted(
                (worker for worker in self.workers.values() if worker.attempt == attempt),
                key=lambda worker: layout.worker_order(worker.worker),
            )
            # An attempt that has a successor is over, whatever its workers failed to say.
            over = final or attempt < newest
            while group := _next_group(team, over=over):
                yield [worker.next_view(self.run_id) for worker in group]
            if not over and any(worker.queue for worker in team):
                return


def _next_group(team: list[FollowedWorker], *, over: bool) -> list[FollowedWorker]:
    """The workers whose next step comes first; none while an active worker may still end an earlier step."""
    waiting = [worker for worker in team if worker.queue]
    if not waiting:
        return []
    first = min(worker.queue[0].end.order for worker in waiting)
    if not over:
        for worker in team:
            if worker.active and not worker.queue and (worker.reached is None or worker.reached < first):
                return []
    return [worker for worker in waiting if worker.queue[0].end.order == first]


def _known_rows(records: StepRecords) -> StepRecords:
    """``records`` without the statistics of tensors that the catalog does not know."""
    if records.ids is None or records.statistics is None:
        return records
    keep = [i in records.catalog for i in records.ids.tolist()]
    return replace(
        records,
        ids=records.ids[keep],
        statistics=records.statistics[keep],
        calls=records.calls[keep] if records.calls is not None else None,
        sampled=records.sampled[keep] if records.sampled is not None else None,
        histograms=records.histograms.take(np.array(keep, bool)) if records.histograms is not None else None,
    )
