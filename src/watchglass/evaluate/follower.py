"""From frames to complete steps: what the engine sees, in an order that does not depend on arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from watchglass.errors import CompactedError
from watchglass.records import Fact, StepEnd
from watchglass.run import Catalog, History, StatisticsRows, StepRecords, StepView, WorkerTables
from watchglass.store import Frame, FrameKind, Problem, RunReader, Store, layout, read_manifest

Order = tuple[int, int, int]

#: Steps after which what was evaluated is dropped from memory.
_FORGET_EVERY = 64
#: Ended steps of a worker that are known again when they come twice.
_SEEN = 1024


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
    _seen: dict[int, None] = field(default_factory=dict)
    _waiting: list[Fact] = field(default_factory=list)
    _events: int = 0
    _since_forget: int = 0
    _fetched: tuple[int, StatisticsRows] | None = None
    _over: bool = False

    @property
    def active(self) -> bool:
        """Whether more may come from it."""
        return self.joined and self.left is None and not self.lost

    def ingest(self, frame: Frame) -> None:
        """Takes in one frame; a step is queued with the catalog and facts as they are now, in stream order.

        Raises:
            CompactedError: A step of an attempt that was let go of: reading must begin again.
        """
        if self._over and frame.kind == FrameKind.STEP_ENDS:
            raise CompactedError(f"steps of {self.worker} came long after attempt {self.attempt} was over")
        added = self.tables.ingest(frame)
        # Facts of the run, and facts of steps that have already ended, go to the next step that ends.
        self._waiting += [fact for fact in added.facts if fact.global_step < 0 or fact.global_step in self._seen]
        for end in added.ends:
            if end.global_step not in self._seen:
                self._end(end)
        if frame.kind == FrameKind.HEADER:
            del self.tables.headers[:-1]  # there is one for every flush, and nobody asks for those of a live run
        if frame.kind == FrameKind.LIFECYCLE:
            for event in self.tables.lifecycle[self._events :]:
                # A restarted process joins again under the same name.
                self.joined, self.left = True, event if event["event"] == "left" else None
                self.lost = self.lost and event["event"] != "joined"
            self._events = len(self.tables.lifecycle)

    def let_go(self) -> None:
        """Keeps nothing of what was recorded; for a worker of an attempt that is over."""
        if not self._over:
            self.tables.forget(max(self._seen, default=-1) + 1)
            self.history, self.view, self._over = History(), None, True

    def fetch(self, *, closely: bool = False) -> None:
        """Reads what the view of the next queued step needs and is still in the store; no step is lost if it refuses.

        Args:
            closely: Also what is else read only when somebody looks.

        Raises:
            StoreError, CompactedError: See :meth:`RunReader.poll`.
        """
        number = self.queue[0].end.global_step
        if self._fetched is None or self._fetched[0] != number:
            self._fetched = number, self.tables.statistics(number)
        if closely and self._fetched[1].histograms is not None:
            self._fetched[1].histograms.get()

    def next_view(self, run_id: str) -> StepView:
        """The view of the next queued step; moves the history on."""
        self.fetch()
        assert self._fetched is not None
        (number, rows), self._fetched = self._fetched, None
        ended = self.queue.popleft()
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
        if not catalog.knows(rows.ids):
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
        self._seen[end.global_step] = None
        if len(self._seen) > _SEEN:
            del self._seen[next(iter(self._seen))]
        self.reached = end.order if self.reached is None else max(self.reached, end.order)
        facts = (*self._waiting, *self.tables.facts(end.global_step))
        self._waiting = []
        self.queue.append(_Ended(end, self.tables.catalog.snapshot(), facts))


class Follower:
    """Follows a run and gives its complete steps, live and in replay alike. For one thread; holds no open file.

    Steps come in the order of attempt, then :attr:`StepEnd.order`, then worker, as far as workers are in step: a step
    waits until every active worker of its attempt has ended it or is past it. Within a worker the order is always
    that of the worker itself. What a worker has written and nobody could read yet is waited for like a step that it
    may still end: a segment that is missing between others is late, never the end.
    """

    def __init__(self, store: Store, *, attempt: int | None = None, workers: Collection[str] | None = None) -> None:
        """Begins with the first step of a run.

        Args:
            store: The store of the run.
            attempt: Follow only this attempt; all if None.
            workers: Follow only these; all if None. What is given of a worker is the same, whoever else is followed.

        Raises:
            NotARunError: The store holds no run.
        """
        self.run_id = read_manifest(store).run_id
        self.workers: dict[tuple[int, str], FollowedWorker] = {}
        #: Frames read so far; tells whether anything is new.
        self.frames = 0
        #: Whether rules look at what is fetched only when somebody does: then it is fetched before they are asked.
        self.looks_closer: Callable[[], bool] = lambda: False
        #: Whether views are without statistics: for who only has to know how far the workers are.
        self.course_only = False
        self._store = store
        self._reader = RunReader(store, leave=(FrameKind.STATISTICS,), attempt=attempt, workers=workers)

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

    @property
    def over(self) -> int:
        """The attempt before which everything was given that is there; those attempts have ended."""
        newest = max((worker.attempt for worker in self.workers.values() if worker.view is not None), default=0)
        waiting = {attempt for attempt, _ in self._reader.waiting}
        waiting.update(worker.attempt for worker in self.workers.values() if worker.queue)
        return min([newest, *waiting])

    def let_go(self, before: int) -> None:
        """Keeps nothing of the attempts before this one but who their workers were."""
        for worker in self.workers.values():
            if worker.attempt < before:
                worker.let_go()

    def poll(self, *, full: bool = False, max_bytes: int = 16 << 20) -> Iterator[list[StepView]]:
        """Reads what is new and gives every step that is complete by now: one list per step, a view per worker.

        A view is valid until the next one of its worker is made, so use each list before asking for the next.

        Args:
            full: Look for late segments everywhere; before concluding that nothing more comes.
            max_bytes: Read at most about so much; call again for the rest.
        """
        for attempt, worker, frame in self._reader.poll(max_bytes, full=full):
            self.frames += 1
            if self.course_only and frame.kind == FrameKind.STATISTICS:
                continue
            key = (attempt, worker)
            if key not in self.workers:
                self.workers[key] = FollowedWorker(attempt, worker, WorkerTables(self._store))
            self.workers[key].ingest(frame)
        yield from self._release(final=False)

    def drain(self) -> Iterator[list[StepView]]:
        """Gives the steps that still wait for workers which will not come: at the end of a run."""
        yield from self._release(final=True)

    def _release(self, *, final: bool) -> Iterator[list[StepView]]:
        unread = set() if final else self._reader.waiting
        newest = max((attempt for attempt, _ in {*self.workers, *unread}), default=0)
        for attempt in range(newest + 1):
            team = sorted(
                (worker for worker in self.workers.values() if worker.attempt == attempt),
                key=lambda worker: layout.worker_order(worker.worker),
            )
            # An attempt that has a successor is over, whatever its workers failed to say.
            over = final or attempt < newest
            behind = {worker for number, worker in unread if number == attempt}
            # One that nothing was read of yet may begin with any step.
            unmet = bool(behind.difference(worker.worker for worker in team))
            while group := _next_group(team, behind, over=over, unmet=unmet):
                for worker in group:
                    worker.fetch(closely=self.looks_closer())
                yield [worker.next_view(self.run_id) for worker in group]
            if not over and any(worker.queue for worker in team):
                return


def _next_group(
    team: list[FollowedWorker], behind: set[str], *, over: bool, unmet: bool = False
) -> list[FollowedWorker]:
    """The workers whose next step comes first; none while a worker may still end an earlier step.

    Args:
        team: All workers of an attempt that something was read of.
        behind: Names of those that have more than was read.
        over: Nothing more is waited for.
        unmet: There are workers that nothing was read of.
    """
    waiting = [worker for worker in team if worker.queue]
    if not waiting or (unmet and not over):
        return []
    first = min(worker.queue[0].end.order for worker in waiting)
    if not over:
        for worker in team:
            coming = worker.active or (worker.worker in behind and not worker.lost)
            if coming and not worker.queue and (worker.reached is None or worker.reached < first):
                return []
    return [worker for worker in waiting if worker.queue[0].end.order == first]


def _known_rows(records: StepRecords) -> StepRecords:
    """``records`` without the statistics of tensors that the catalog does not know."""
    if records.ids is None or records.statistics is None:
        return records
    keep = records.catalog.mask(records.ids)
    return replace(
        records,
        ids=records.ids[keep],
        statistics=records.statistics[keep],
        calls=records.calls[keep] if records.calls is not None else None,
        sampled=records.sampled[keep] if records.sampled is not None else None,
        histograms=records.histograms.take(keep) if records.histograms is not None else None,
    )
