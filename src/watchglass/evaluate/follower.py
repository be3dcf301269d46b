"""Turns frames and observations into moments for rules, in one order, live and in replay alike."""

from __future__ import annotations

import json
import math
import sys
import time
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchglass.config import Clock
from watchglass.errors import CompactedError
from watchglass.evaluate.streamed import Streamed, between
from watchglass.records import ROW_KINDS, Fact, Observation, RowKey, StepEnd
from watchglass.rules import Windows
from watchglass.store import Frame, FrameKind, Problem, RunReader, Store, facts_of, layout, read_manifest, step_ends
from watchglass.tables import (
    AttemptEnd,
    Catalog,
    JointStep,
    ModelViews,
    Moment,
    RawTensors,
    Readable,
    StatisticsRows,
    StepRecords,
    StepView,
    WorkerTables,
)

Order = tuple[int, int, int]
#: Attempt and name of a worker.
Key = tuple[int, str]

#: Steps after which what was evaluated is dropped from memory.
_FORGET_EVERY = 64
#: Steps that may begin and end during one step whose records are still kept, where a flush was read in part.
_KEPT_OPEN = 1024
#: Observations of streams. They have one order, and each has a place among the steps of every group.
_OF_STREAMS = frozenset({"watermark", "steps_shown", "streams_ended"})
#: Observations that have a place among the steps of a group.
PLACED = _OF_STREAMS | {"worker_joined", "worker_lost", "worker_returned", "tick"}
#: The most gaps in the step numbers of a worker that are kept.
_MOST_GAPS = 1024


class _Numbers:
    """Numbers of steps as ranges: most come in order, with few gaps."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number)
        return place > 0 and number < self._stops[place - 1]

    def add(self, number: int) -> None:
        """Adds one that is not there."""
        starts, stops = self._starts, self._stops
        place = bisect_right(starts, number)
        starts.insert(place, number)
        stops.insert(place, number + 1)
        for left in (place, place - 1, 0):
            touch = 0 <= left < len(starts) - 1 and stops[left] == starts[left + 1]
            if touch or (left == 0 and len(starts) > _MOST_GAPS):
                stops[left] = stops.pop(left + 1)
                del starts[left + 1]

    def first_missing(self, number: int) -> int:
        """The first one from ``number`` on that is not there."""
        return self._stops[bisect_right(self._starts, number) - 1] if number in self else number


@dataclass(frozen=True)
class _Ended:
    """A step whose records are all there, with what must not depend on what arrives later."""

    end: StepEnd
    catalog: Catalog
    facts: tuple[Fact, ...]
    clock: Mapping[str, Any]


@dataclass
class Moments:
    """The moments of workers that train together."""

    shown: int = 0  #: Complete steps that were shown.
    observed: list[Observation] = field(default_factory=list)  #: What was observed and not shown yet, by its place.
    tick: Observation | None = None  #: The last tick that was shown.
    streams_ended: bool = False  #: Whether nothing more was shown of streams from here on.


@dataclass
class FollowedWorker:
    """One worker of one attempt, as far as it was read."""

    attempt: int  #: Attempt of the run.
    worker: str  #: Its name.
    store: Store  #: The run's store.
    tables: WorkerTables  #: Its records that were not evaluated yet.
    reached: Order | None = None  #: Order of the last step that it ended; None for none.
    alone: bool = False  #: Whether it trains separately: no other worker waits for it, and it waits for none.
    left: dict[str, Any] | None = None  #: The ``left`` event, or None while it has not left.
    lost: bool = False  #: Whether it was found dead without having left.
    events: int = 0  #: Events of its life that were read: joined, left.
    queue: deque[_Ended] = field(default_factory=deque)
    #: The newest step, one view for each model that it belongs to; none before the first.
    views: list[StepView] = field(default_factory=list)
    noted: bool = False  #: Whether observations record when it takes part in the steps of its group.
    shown: int = 0  #: How many of its steps were shown.
    #: How many of its steps are shown before it has to join its group again.
    until: float = math.inf
    joins: int = 0  #: How often it joined its group.
    losses: int = 0  #: How often it was lost.
    ended: int = 0  #: How many steps it has ended, as far as it was read.
    lost_at: tuple[int, int] = (0, 0)  #: The numbers of steps and of events that were read when it was lost.
    moments: Moments = field(default_factory=Moments)  #: What was shown of its group.
    _lefts: list[int] = field(default_factory=list)
    _stays: int = sys.maxsize
    _models: ModelViews | None = None
    _seen: _Numbers = field(default_factory=_Numbers)
    _lowest: deque[int] = field(default_factory=deque)
    _whole: bool = True
    _waiting: list[Fact] = field(default_factory=list)
    _fetched: StatisticsRows | None = None
    _over: bool = False

    def newest_scalars(self, most: int) -> dict[str, float]:
        """See :meth:`ModelViews.newest_scalars`, of the steps that were shown."""
        return self._models.newest_scalars(most) if self._models is not None else {}

    @property
    def active(self) -> bool:
        """Whether more may come from it."""
        return self.events > 0 and self.left is None and not self.lost

    @property
    def group(self) -> str:
        """The workers that it trains with: ``""`` for the ranks of the run, its name if it trains separately."""
        return self.worker if self.alone else ""

    @property
    def has_returned(self) -> bool:
        """Whether something was read of it since it was lost."""
        return self.lost and not self._over and self.lost_at != (self.ended, self.events)

    @property
    def terms(self) -> dict[str, int]:
        """How long it takes part where it joins now: until it leaves once more, or for what was read of it."""
        if not self.active:
            return {"steps": len(self.queue)}
        return {"lefts": len(self._lefts)} if self._lefts else {}

    def observation(self, kind: str, times: int = 1, **data: Any) -> Observation:
        """An observation about it, now; ``times`` counts equal ones, if there are several."""
        data = {"worker": self.worker, **({"times": times} if times > 1 else {}), **data}
        return Observation(kind, self.attempt, None, data, self.group, self.moments.shown)

    def take(self, seen: Observation) -> None:
        """Goes by what was observed of it: whether it is waited for, and takes part in the steps of its group."""
        if seen.kind == "worker_lost":
            self.lost, self.losses, self.lost_at = True, self.losses + 1, (self.ended, self.events)
            self.until = self.shown if self.noted else self.until
        elif seen.kind == "worker_returned":
            self.lost = False
        elif seen.kind == "worker_joined" and self.noted:
            self.joins += 1
            steps, lefts = seen.data.get("steps"), seen.data.get("lefts", 0)
            # A number of steps: the last ones of a worker that has left or is lost.
            until = self.shown + steps if type(steps) is int else math.inf
            self.lost = self.lost and until < math.inf
            self._stays = lefts if type(lefts) is int and until == math.inf else sys.maxsize
            self.until = min([until, *self._lefts[self._stays : self._stays + 1]])

    def ingest(self, frame: Frame) -> None:
        """Takes in one frame; a step is queued with the catalog and facts as they are now, in stream order.

        Raises:
            CompactedError: A step of an attempt that was dropped: reading must begin again.
        """
        rows = ROW_KINDS.get(frame.kind)
        if rows is not None and rows.key is RowKey.TIME:
            return  # rules are shown what streams wrote; of a worker nothing would ever drop such rows
        if self._over and frame.kind == FrameKind.STEP_ENDS:
            raise CompactedError(f"steps of {self.worker} arrived long after the end of attempt {self.attempt}")
        added = self.tables.ingest(frame)
        if frame.kind == FrameKind.STEP_ENDS:
            self._whole = True
        elif frame.kind == FrameKind.COMPACTED or (rows is not None and rows.key is RowKey.STEP):
            self._whole = False  # it comes before the ends of its steps
        # Facts of the run, and facts of steps that have already ended, go to the next step that ends.
        for fact in facts_of(added) if rows is not None and rows.of_run else ():
            if fact.global_step < 0 or fact.global_step in self._seen:
                self._waiting.append(fact)
        for end in step_ends(added) if frame.kind == FrameKind.STEP_ENDS else ():
            if end.global_step not in self._seen:
                self._end(end)
        if frame.kind == FrameKind.HEADER:
            del self.tables.headers[:-1]  # every flush has one, and a live run needs only the last
        if frame.kind == FrameKind.LIFECYCLE:
            for event in self.tables.lifecycle[self.events :]:
                # A restarted process joins again under the same name.
                self.left = event if event["event"] == "left" else None
                self.lost = self.lost and event["event"] != "joined"
                self.alone = event.get("alone", self.alone) is True
                if self.left is not None:
                    self._lefts.append(self.ended)
                    self.until = min([self.until, *self._lefts[self._stays : self._stays + 1]])
            self.events = len(self.tables.lifecycle)

    def let_go(self) -> None:
        """Keeps nothing of what was recorded; for a worker of an attempt that is over."""
        if not self._over:
            self.tables.forget(sys.maxsize)
            self.tables.catalog = Catalog()
            self._models, self.views, self._over = None, [], True

    def fetch(self, readable: Readable) -> None:
        """Reads what the view of the next queued step needs and is still in the store; no step is lost if it refuses.

        Args:
            readable: The statistics that are needed.

        Raises:
            StoreError, CompactedError: See :meth:`RunReader.poll`.
        """
        if self._fetched is None:
            number = self.queue[0].end.global_step
            fields = readable.fields
            self._fetched = StatisticsRows.none() if fields is None else self.tables.statistics.at(number, fields)
        if readable.histograms and self._fetched.histograms is not None:
            self._fetched.histograms.get()

    def next_views(self, run_id: str, readable: Readable) -> list[StepView]:
        """The views of the next queued step, one for each model that it belongs to; moves their histories on."""
        self.fetch(readable)
        assert self._fetched is not None
        rows, self._fetched = self._fetched, None
        ended = self.queue.popleft()
        number = ended.end.global_step
        self.shown += 1
        if self._lowest[0] == number:
            self._lowest.popleft()
        catalog = ended.catalog
        found = self.tables.step_rows(number, catalog)
        raw = {row.tensor.tensor_id: row for kind, each in found.items() if kind.in_files for row in each}
        records = StepRecords(
            end=ended.end,
            catalog=catalog,
            rows=found,
            # Without its catalog row, lost with a damaged segment, a row is of no use to a rule.
            statistics=rows if catalog.knows(rows.ids) else rows.take(catalog.mask(rows.ids)),
            facts=ended.facts,
            raw=RawTensors(self.store, raw, f"global step {number}") if raw else None,
            readable=readable,
        )
        if self._models is None:
            self._models = ModelViews(run_id, self.attempt, self.worker)
        views = self._models.after(records)
        self.views = views or self.views
        if self.shown % _FORGET_EVERY == 0:
            self._forget(number)
        return views

    def _forget(self, number: int) -> None:
        """Drops what was recorded of steps before this one, but of those that end after it."""
        before = min(number, self._lowest[0]) if self._lowest else number
        if not self._whole:
            before = min(before, self._seen.first_missing(max(0, before - _KEPT_OPEN)))
        self.tables.forget(before)

    def _end(self, end: StepEnd) -> None:
        self._seen.add(end.global_step)
        self.ended += 1
        # Of what waits in the queue those that are lower than all behind them; the first is the lowest of all.
        while self._lowest and self._lowest[-1] > end.global_step:
            self._lowest.pop()
        self._lowest.append(end.global_step)
        self.reached = end.order if self.reached is None else max(self.reached, end.order)
        facts = (*self._waiting, *self.tables.facts(end.global_step))
        self._waiting = []
        clock = self.tables.headers[-1] if self.tables.headers else {}
        self.queue.append(_Ended(end, self.tables.catalog.snapshot(), facts, clock))


class Follower:
    """Follows a run and yields its moments in order, live and in replay alike. For one thread; holds no open file.

    Steps come in the order of attempt, then :attr:`StepEnd.order`, then worker. A step waits until every active worker
    of its attempt has ended it or is past it. Workers that train by themselves do not wait for others and have separate
    orders. The steps of one worker always stay in their order. The follower also waits for written data that it could
    not read yet, as for a step that may still end: a segment that is missing between others is late, never the end.

    Where a worker comes late, or is lost, the workers of a step depend on arrival. Rules that see several workers at
    once, or ticks, need the same workers in a replay. So where :attr:`notes` is set, the follower observes
    ``worker_joined``, and the worker takes part from there until it leaves or is lost.
    """

    def __init__(
        self,
        store: Store,
        *,
        attempt: int | None = None,
        workers: Collection[str] | None = None,
        clock: Clock = time,
    ) -> None:
        """Begins with the first step of a run.

        Args:
            store: The store of the run.
            attempt: Follow only this attempt; all if None.
            workers: Follow only these; all if None. The moments of a worker do not depend on the others.
            clock: The time.

        Raises:
            NotARunError: The store holds no run.
        """
        self.run_id = read_manifest(store).run_id
        self.workers: dict[tuple[int, str], FollowedWorker] = {}
        self._teams: dict[int, list[FollowedWorker]] = {}
        self._groups: dict[tuple[int, str], Moments] = {}
        #: Steps that each group was shown before the last observation of streams.
        self._marked: dict[tuple[int, str], int] = {}
        self._ended: set[int] = set()
        #: Attempts whose observations list the workers that take part.
        self._noted: set[int] = set()
        self._known: set[str] = set()
        #: Number of frames read so far.
        self.frames = 0
        self._quiet = False
        #: Whether to observe the workers that take part in a step; the caller writes these observations.
        self.notes = False
        #: The statistics that are read, and those that a rule may see: all, or those that rules of an engine declare.
        self.readable = Readable()
        self._streamed: Streamed | None = None
        self._store, self._attempt = store, attempt
        self._reader = RunReader(store, leave=(FrameKind.STATISTICS,), attempt=attempt, workers=workers, clock=clock)

    def cut(self, windows: Sequence[Windows]) -> None:
        """Reads streams, too, and shows their rows where one of these windows ends; call it before all else."""
        self._streamed = Streamed(windows, self._attempt) if windows else None

    @property
    def problems(self) -> list[Problem]:
        """The unreadable parts of the run."""
        found = self._reader.problems + (self._streamed.problems if self._streamed is not None else [])
        for worker in self.workers.values():
            found += worker.tables.problems
        return found

    @property
    def over(self) -> int:
        """The attempt before which all moments were given; those attempts have ended.

        Data of killed workers may still arrive from elsewhere, while the next attempt has begun. So such an attempt
        ends with the attempt after the next.
        """
        newest = max((worker.attempt for worker in self.workers.values() if worker.views), default=0)
        before = max((attempt for attempt in self._teams if attempt < newest), default=newest)
        if any(worker.left is None for worker in self._teams.get(before, ())):
            newest = before
        waiting = {attempt for attempt, _ in self._reader.waiting}
        waiting.update(worker.attempt for worker in self.workers.values() if worker.queue)
        return min([newest, *waiting])

    def _group(self, attempt: int, name: str) -> Moments:
        return self._groups.setdefault((attempt, name), Moments())

    def observe(self, seen: Observation) -> None:
        """Takes in an observation, of this evaluator or an earlier one, which is given at its place among the steps.

        Equal observations count once, at their first place.
        """
        alone = seen.data.get("alone", {})  # of any program that writes a journal
        valid = isinstance(alone, dict) and all(type(n) is int for n in alone.values())
        if seen.kind not in PLACED or seen.attempt in self._ended or not valid:
            return
        group = self._group(seen.attempt, "" if seen.kind in _OF_STREAMS else seen.group)
        waiting = group.observed
        if seen.kind not in (*_OF_STREAMS, "tick"):
            key = json.dumps([seen.kind, seen.attempt, seen.data], sort_keys=True, default=str)
            same = [other for other in waiting if (other.kind, other.data) == (seen.kind, seen.data)]
            if key in self._known and (not same or same[0].steps <= seen.steps):
                return
            waiting[:] = [other for other in waiting if other not in same]
            self._known.add(key)
        if seen.kind == "worker_joined":
            self._noted.add(seen.attempt)
        insort(waiting, seen, key=lambda one: one.steps)

    def poll(self, *, full: bool = False, max_bytes: int = 16 << 20) -> Iterator[Moment]:
        """Reads new frames and yields every moment that is complete now.

        A step holds a view per worker, and of a worker with several models one for each that the step belongs to. A
        view is valid until the next one of its worker is made, so use each moment before asking for the next.

        Args:
            full: Look for late segments everywhere; before concluding that nothing more comes.
            max_bytes: Approximate limit of the bytes that are read; call again for the rest.
        """
        before = self.frames
        for attempt, worker, frame in self._reader.poll(max_bytes, full=full):
            self.frames += 1
            known = self.workers.get((attempt, worker))
            if known is None:
                noted = self.notes or attempt in self._noted
                known = self.workers[attempt, worker] = FollowedWorker(
                    attempt, worker, self._store, WorkerTables(self._store), noted=noted, until=0 if noted else math.inf
                )
                insort(self._teams.setdefault(attempt, []), known, key=lambda one: layout.worker_order(one.worker))
            known.ingest(frame)
        self._quiet = self.frames == before
        if self._streamed is not None:
            for stream, frame in self._reader.streams():
                self._streamed.ingest(stream, frame)
        yield from self.release()
        if len(self._teams) > 1:
            yield from self.ends(self.over)

    def read_all(self) -> Iterator[Moment]:
        """Yields every stored moment; the newest attempt may not have ended."""
        while True:
            before = self.frames
            yield from self.poll(full=True)
            if self.frames == before:
                break
        yield from self.drain()

    def drain(self) -> Iterator[Moment]:
        """Gives the steps that still wait for workers which will not come: at the end of a run."""
        yield from self.release(final=True)
        yield from self.ends(max(self._teams, default=0))

    def ends(self, before: int | None = None) -> Iterator[Moment]:
        """Gives the end of all attempts before this one, and keeps nothing of them but who their workers were.

        Args:
            before: The attempt; None for the end of the run.
        """
        for attempt in self._attempts:
            if attempt not in self._ended and (before is None or attempt < before):
                for (number, _), group in list(self._groups.items()):
                    while number == attempt and group.observed:
                        yield from self._taken(group.observed.pop(0), group)
                if self._streamed is not None:
                    yield from self._streams_up_to(attempt, None, rest=True)
                    yield from self._taken(self._mark("streams_ended", attempt, {}), self._group(attempt, ""))
                if before is not None:
                    yield AttemptEnd(attempt)
                    self._ended.add(attempt)
                    for worker in self._teams.get(attempt, ()):
                        worker.let_go()
        if before is None:
            yield AttemptEnd()

    def release(self, *, final: bool = False) -> Iterator[Moment]:
        """Gives the moments that are complete by what was read."""
        unread = set() if final else self._reader.waiting
        newest = max([*self._teams, *(attempt for attempt, _ in unread)], default=0)
        for attempt in self._attempts:
            team = self._teams.get(attempt, [])
            # An attempt that has a successor is over, whatever its workers failed to say.
            over = final or (attempt < newest and not self.notes)
            behind = {worker for number, worker in unread if number == attempt}
            superseded = attempt < newest and self._quiet
            # One that nothing was read of yet may begin with any step.
            first = set() if over or superseded else behind.difference(worker.worker for worker in team)
            parts, more = _parts(team), True
            while more:
                held: dict[str, _Ended] = {}
                for name, members in parts.items():
                    step = yield from self._moments(attempt, name, members, behind, first, over, superseded)
                    held |= {name: step} if step is not None else {}
                late = behind.difference(worker.worker for name in held for worker in parts[name])
                more = yield from self._written(attempt, [*held.values()], late, over)
                parts = {name: parts[name] for name in ("", *held)}

    @property
    def _attempts(self) -> list[int]:
        """All attempts with any frame."""
        streamed = self._streamed.attempts if self._streamed is not None else ()
        return sorted({*self._teams, *streamed})

    def _moments(
        self, attempt: int, name: str, members: list[FollowedWorker], behind: set[str], first: set[str], over: bool,
        superseded: bool,
    ) -> Generator[Moment, None, _Ended | None]:  # fmt: skip
        """The moments of workers that wait for one another, as far as they are complete and no stream comes before.

        While something of other workers is to be read ``first``, these are observations, and none of those workers.
        Returns the step that comes next, but after a watermark; None for none.
        """
        group, mark = self._group(attempt, name), self._next_mark(attempt)
        limit = math.inf if mark is None else mark.data.get("alone", {}).get(name, 0) if name else mark.steps
        for worker in members:
            worker.moments = group
        while True:
            while group.observed and group.observed[0].steps <= group.shown:
                if group.observed[0] is mark or str(group.observed[0].data.get("worker")) in first:
                    return None
                yield from self._taken(group.observed.pop(0), group)
            if first:
                return None
            workers = _next_group(members, behind, over=over)
            if workers:
                step = workers[0].queue[0]
                if self._streamed and (group.shown >= limit or (mark is None and any(self._due(attempt, step)))):
                    return step
                for worker in workers:
                    worker.fetch(self.readable)
                group.shown += 1
                if views := tuple(view for worker in workers for view in worker.next_views(self.run_id, self.readable)):
                    yield JointStep(views, name)
                continue
            news = self._changes(members, group, behind, over=over, superseded=superseded)
            for seen in news:
                yield from self._taken(seen, group)
            if not news:
                return None

    def _taken(self, seen: Observation, group: Moments) -> Iterator[Moment]:
        """The observation, and the moments that follow from it."""
        worker = self.workers.get((seen.attempt, str(seen.data.get("worker"))))
        if worker is not None:
            worker.take(seen)
        elif seen.kind == "tick":
            group.tick = seen
        yield seen
        if self._streamed is None or seen.kind not in _OF_STREAMS:
            return
        self._marked.update({key: each.shown for key, each in self._groups.items() if key[0] == seen.attempt})
        if seen.kind == "streams_ended":
            group.streams_ended = True
            yield from self._streamed.end(seen.attempt)
        elif (written := self._streamed.take(seen)) is not None:
            group.streams_ended = False
            yield written

    def _written(self, attempt: int, held: list[_Ended], late: set[str], over: bool) -> Generator[Moment, None, bool]:
        """What streams wrote before the first of the steps that are held back by it, or in all where there is none.

        Where an evaluator has noted how far streams were, that counts; it notes what it reads beyond. What was never
        noted comes in the order of the clocks. Returns whether a group may go on.

        Args:
            attempt: The attempt.
            held: Of each group the next step, where it comes after a watermark.
            late: Workers of other groups that have more than was read.
            over: Nothing more is waited for.
        """
        group, mark = self._group(attempt, ""), self._next_mark(attempt)
        if mark is not None:
            places = {**mark.data.get("alone", {}), "": mark.steps}
            missed = any(self._group(attempt, name).shown < steps for name, steps in places.items())
            if missed and (late or not held):
                return False
            group.observed.remove(mark)  # also where steps before it were lost, which would hold back all later ones
            yield from self._taken(mark, group)
            return True
        if not (over or (held and self.notes) or (not late and (held or self.notes))):
            return False
        step = min(held, key=lambda one: one.end.end_ns + between(one.clock, held[0].clock), default=None)
        yield from self._streams_up_to(attempt, step)
        return bool(held)

    def _streams_up_to(self, attempt: int, step: _Ended | None, *, rest: bool = False) -> Iterator[Moment]:
        """What streams wrote before the end of a step; what they wrote in all where there is none."""
        for data in self._due(attempt, step, rest=rest):
            yield from self._taken(self._mark("watermark", attempt, data), self._group(attempt, ""))

    def _due(self, attempt: int, step: _Ended | None, *, rest: bool = False) -> Iterable[dict[str, Any]]:
        """See :meth:`Streamed.due`; nothing where an evaluator has noted that nothing comes."""
        ended = self._group(attempt, "").streams_ended and not self.notes
        if self._streamed is None or attempt in self._ended or ended:
            return ()
        return self._streamed.due(attempt, None if step is None else (step.end.end_ns, step.clock), rest=rest)

    def _mark(self, kind: str, attempt: int, data: Mapping[str, Any]) -> Observation:
        """An observation of streams, now."""
        places = {key: each.shown for key, each in self._groups.items() if key[0] == attempt}
        alone = {key[1]: steps for key, steps in places.items() if key[1] and steps > self._marked.get(key, 0)}
        data = {**data, "alone": alone} if alone else dict(data)
        return Observation(kind, attempt, None, data, steps=places.get((attempt, ""), 0))

    def _next_mark(self, attempt: int) -> Observation | None:
        """The next observation of streams that is known and was not shown yet."""
        observed = self._group(attempt, "").observed if self._streamed is not None else ()
        return next((seen for seen in observed if seen.kind in _OF_STREAMS), None)

    def progress(self) -> Iterator[Moment]:
        """Observes which steps rules saw, for the journal: no later evaluator shows rows of streams before them."""
        for attempt in sorted(set(self._attempts) - self._ended) if self._streamed is not None else ():
            group = self._group(attempt, "")
            seen = self._mark("steps_shown", attempt, {"steps": group.shown})
            new = "alone" in seen.data or group.shown > self._marked.get((attempt, ""), 0)
            if new and self._next_mark(attempt) is None:  # an earlier evaluator came at least to that one
                yield from self._taken(seen, group)

    def losses(self) -> dict[str, Observation]:
        """For each stream that has not ended, the observation of its end, for a writer that has ended."""
        rows = self._streamed.going_on() if self._streamed is not None else ()
        active = set(self._attempts) - self._ended
        return {data["stream"]: self._mark("watermark", attempt, data) for attempt, data in rows if attempt in active}

    def _changes(
        self, members: list[FollowedWorker], group: Moments, behind: set[str], *, over: bool, superseded: bool
    ) -> list[Observation]:
        """Who takes part from here on, or does not any more, once all was given that was read of those that do.

        An evaluator that begins again has read at least what the one before had, and so comes at least as far first.
        """
        if not (self.notes or over):
            return []
        taking_part = [worker for worker in members if worker.shown < worker.until]
        if not superseded and any(worker.worker in behind and not worker.lost for worker in taking_part):
            return []
        waits = {str(seen.data.get("worker")) for seen in group.observed if seen.kind == "worker_joined" and not over}
        news = [
            w.observation("worker_joined", w.joins + 1, **w.terms)
            for w in members
            if w.shown >= w.until and (w.active or w.queue) and w.worker not in waits
        ]
        if not news and superseded and self.notes and any(worker.queue for worker in members):
            # An attempt that has a successor is over, whatever its workers failed to say.
            news = [
                w.observation("worker_lost", w.losses + 1)
                for w in taking_part
                if not w.queue and not w.lost and (w.active or w.worker in behind)
            ]
        return news


def _parts(team: list[FollowedWorker]) -> dict[str, list[FollowedWorker]]:
    """Workers that wait for one another, by group: the ranks together, and each other worker as its own group."""
    parts: dict[str, list[FollowedWorker]] = {"": []}
    for worker in team:
        parts.setdefault(worker.group, []).append(worker)
    return parts


def _next_group(team: list[FollowedWorker], behind: set[str], *, over: bool) -> list[FollowedWorker]:
    """The workers whose next step comes first; none while a worker may still end an earlier step.

    Args:
        team: Workers that wait for one another.
        behind: Names of those that have more than was read.
        over: Nothing more is waited for.
    """
    waiting = [worker for worker in team if worker.queue and worker.shown < worker.until]
    if not waiting:
        return []
    first = min(worker.queue[0].end.order for worker in waiting)
    if not over:
        for worker in team:
            coming = worker.active or (worker.worker in behind and not worker.lost)
            late = not worker.queue and (worker.reached is None or worker.reached < first)
            if coming and late and worker.shown < worker.until:
                return []
    return [worker for worker in waiting if worker.queue[0].end.order == first]
