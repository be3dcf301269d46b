"""A run with an open page: a thread reads it repeatedly, and publishes what it has read."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, TimeoutError as NotYet
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

from watchglass import diagnose
from watchglass.config import Clock
from watchglass.errors import MissingFileError, in_a_line
from watchglass.records import CauseCourse, Verdict
from watchglass.run import News, Run, is_judged, last_step_ns, may_go_on, open_run, state_of
from watchglass.store import Store, layout, lease_holder, open_store, read_small
from watchglass.view import Block, Courses, duration

#: A run is closed after so long without a request.
UNWATCHED_S = 60.0
#: Seconds between two looks at a run in a folder; in an object store its policy says.
_PERIOD_S = 0.5
#: Seconds that a page waits for a drawing where there is an earlier one, and how many looks that may be behind.
_WAIT_S, _MOST_BEHIND = 0.03, 4
#: Most views that are kept as they were drawn last.
_VIEWS = 32
#: Seconds between two looks at a run that is over, but may be resumed.
_OVER_S = 10.0
#: Seconds without a sign of life after which the evaluator of a run that is over counts as dead.
_SILENT_S = 60.0
#: Looks whose changes are kept, for pages that come back.
_KEPT = 256
#: What may change in a run.
PARTS = ("steps", "samples", "findings", "rules")


class Drawn(NamedTuple):
    """A view: what it is made of, as HTML, and of which look."""

    blocks: Sequence[Block]
    html: str
    number: int
    status: str


class Published:
    """A run as one look had it, with what was made of it; for any number of threads.

    Attributes:
        run: A snapshot.
        number: Number of the look.
        courses: Statistics that were read, which later looks continue.
        made: What was drawn, by view.
    """

    def __init__(self, run: Run, number: int, courses: Courses) -> None:
        self.run, self.number, self.courses = run, number, courses
        self.made: dict[str, Drawn] = {}

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict by the findings in the journal of the run. No rule is evaluated."""
        return diagnose.verdict(self.run)

    @cached_property
    def causes(self) -> tuple[CauseCourse, ...]:
        """How likely the causes of this verdict were at which step."""
        return diagnose.cause_courses(self.run, self.verdict)


class WatchedRun:
    """A run that is read again and again while someone looks at it.

    Args:
        location: Its location.
        clock: The time.
    """

    def __init__(self, location: str, clock: Clock = time) -> None:
        self._judge_ns, self._is_judged = _judge_ns(open_store(location)), False
        self._run, self._clock = open_run(location), clock
        self._number, self._asked_s = 0, clock.monotonic()
        self._changes: deque[tuple[int, frozenset[str]]] = deque(maxlen=_KEPT)
        self._courses, self._drawing, self._looking = Courses(), threading.Lock(), threading.Lock()
        self._latest: OrderedDict[str, Drawn] = OrderedDict()
        self._beginning = threading.Lock()
        self._begun: dict[str, Future[Drawn]] = {}
        self._newest, self._is_checked = self._published(), False
        intervals = self._run.store.policy.intervals(len(self._run.workers))
        #: Seconds between two looks.
        self.period_s = max(_PERIOD_S, intervals.poll_s)
        self._around_s, self._looked_around_s = intervals.liveness_s, float("-inf")
        self._state = ""
        #: Why the last look failed, "" where it did not.
        self.problem = ""
        self._look_around()

    @property
    def newest(self) -> Published:
        """The run as the last look had it; who asks looks at it."""
        self.asked()
        return self._newest

    @property
    def newest_unasked(self) -> Published:
        """The same for who does not look at it."""
        return self._newest

    @property
    def state(self) -> str:
        """How its processes are, see :func:`~watchglass.run.state_of`."""
        return self._state

    def asked(self) -> None:
        """Someone looks at it."""
        self._asked_s = self._clock.monotonic()

    def drawn(self, view: str, draw: Callable[[Published], Drawn]) -> Drawn:
        """A view of the newest look, drawn once for each look however many ask for it.

        Separate threads draw the views one after another: drawn at once, each would take as long as all together. A
        request that would wait too long gets an older drawing; the page knows its number, and asks again.
        """
        known = self.newest.made.get(view) or self._latest.get(view)
        behind = self._newest.number - known.number if known is not None else _MOST_BEHIND + 1
        if known is not None and not behind:
            return known
        with self._beginning:
            if (begun := self._begun.get(view)) is None:
                begun = self._begun[view] = Future()
                threading.Thread(target=self._draw, args=(view, draw, begun), daemon=True).start()
        try:
            return begun.result(_WAIT_S if behind <= _MOST_BEHIND else None)
        except NotYet:
            assert known is not None
            return known

    def _draw(self, view: str, draw: Callable[[Published], Drawn], begun: Future[Drawn]) -> None:
        try:
            with self._drawing:
                published = self._newest
                found = published.made.get(view) or draw(published)
                published.made[view] = self._latest[view] = found
                self._latest.move_to_end(view)
                while len(self._latest) > _VIEWS:
                    self._latest.popitem(last=False)
        except Exception as error:
            self._end(view)
            begun.set_exception(error)
        else:
            self._end(view)
            begun.set_result(found)

    def _end(self, view: str) -> None:
        with self._beginning:
            del self._begun[view]

    @property
    def goes_on(self) -> bool:
        """Whether its job seems to go on."""
        return self._state == "not finished"

    @property
    def is_settled(self) -> bool:
        """Whether neither its job nor its evaluator seems to go on: rules are evaluated for a while after the end."""
        judge_ns = self._judge_ns
        silent = judge_ns is None or self._clock.time_ns() - judge_ns > 1e9 * _SILENT_S
        return not may_go_on(self._state) and (self._is_judged or silent)

    @property
    def pause_s(self) -> float:
        """Seconds until the next look."""
        return max(_OVER_S, self.period_s) if self.is_settled and self._is_checked else self.period_s

    @property
    def unwatched(self) -> bool:
        """Whether its last request was more than a minute ago."""
        return self._clock.monotonic() - self._asked_s > UNWATCHED_S

    def changed_since(self, number: int) -> list[str]:
        """What has changed since a look; everything if that is too long ago."""
        oldest = self._changes[0][0] if self._changes else self._newest.number + 1
        if not oldest - 1 <= number <= self._newest.number:
            return list(PARTS)
        changed = frozenset[str]().union(*(parts for at, parts in list(self._changes) if at > number))
        return [part for part in PARTS if part in changed]

    def look(self) -> bool:
        """Read what is new, and publish it; returns whether something was."""
        with self._looking:
            return self._look()

    def _look(self) -> bool:
        try:
            due = self._clock.monotonic() - self._looked_around_s >= self._around_s
            if due:
                self._judge_ns = _judge_ns(self._run.store)  # who lets go of the journal has written all before
            news = self._run.refresh()
            if news.rebuilt:
                self._courses = Courses()
            parts = _changed(news) if news else frozenset[str]()
            parts |= {"findings"} if (due and self._look_around()) | self._check(again=bool(news)) else set()
        except Exception as error:  # pages go on with what was read, and say so
            self.problem = in_a_line(error)
            return False
        self.problem = ""
        if not parts:
            return False
        self._number += 1
        self._changes.append((self._number, parts))
        self._newest = self._published()
        return True

    def _check(self, *, again: bool) -> bool:
        """Decode what no page has asked for yet; returns whether more of it is unreadable than was known.

        Of many workers this takes longer than all else of opening, and pages do not wait for it.
        """
        if self._is_checked and not again:
            return False
        known, self._is_checked = len(self._newest.run.problems), True
        return len(self._run.problems) > known

    def _published(self) -> Published:
        """A snapshot, for which the run has worked out what is continued from look to look."""
        run = self._run
        run.models, run.stretches()
        return Published(run.snapshot(), self._number, self._courses)

    def pulse(self) -> str:
        """How new the numbers and the verdict are, in one line."""
        run, verdict, now_ns = self._newest.run, self._newest.verdict, self._clock.time_ns()
        steps = f"{verdict.train_steps:,}"
        if verdict.planned_train_steps is not None:
            steps += f" of {verdict.planned_train_steps:,}"
        parts = [self._state, f"{steps} training steps"]
        last_ns = last_step_ns(run.worker())
        if last_ns is not None:
            parts.append(f"last step {_ago(now_ns - last_ns)}")
        parts.append(self._judged(now_ns))
        if self.problem:
            parts.append(f"cannot be read now: {self.problem}")
        return " · ".join(parts)

    def _judged(self, now_ns: int) -> str:
        run = self._newest.run
        if self._is_judged:
            return "rules evaluated to the end"
        if self._judge_ns is not None:
            return f"rules evaluated by a process last seen {_ago(now_ns - self._judge_ns)}"
        return (
            "no process evaluates rules now"
            if run.journal.statuses
            else "rules not evaluated: watchglass check RUN does"
        )

    def _look_around(self) -> bool:
        """See how the processes are; returns whether the state of the run changed, or all of it is evaluated now."""
        self._looked_around_s = self._clock.monotonic()
        before = self._state, self._is_judged
        self._state, self._is_judged = state_of(self._run), is_judged(self._run)
        return (self._state, self._is_judged) != before


class WatchedRuns:
    """The runs that are open, and of those that someone looks at each a thread. For any number of threads.

    Args:
        stopping: Set when the threads shall end.
        clock: The time.
    """

    def __init__(self, stopping: threading.Event, clock: Clock = time) -> None:
        self._stopping, self._clock = stopping, clock
        self._lock = threading.Lock()
        self._watched: dict[str, WatchedRun] = {}
        self._open: WeakValueDictionary[str, WatchedRun] = WeakValueDictionary()
        self._opening: dict[str, threading.Lock] = {}

    def opened(self, location: str) -> WatchedRun:
        """The run of a location, which is opened once however many ask for it at the same time.

        Raises:
            WatchglassError: It cannot be read.
        """
        with self._lock:
            if (found := self._open.get(location)) is not None:
                return found
            opening = self._opening.setdefault(location, threading.Lock())
        with opening:  # takes a while, in which other runs are opened
            with self._lock:
                found = self._open.get(location)
            if found is None:
                try:
                    found = WatchedRun(location, self._clock)
                finally:
                    with self._lock:
                        self._opening.pop(location, None)
                        if found is not None:
                            self._open[location] = found
            return found

    def watch(self, location: str) -> WatchedRun:
        """The run of a location for a page: it is read again and again from now on.

        Raises:
            WatchglassError: It cannot be read.
        """
        found = self.opened(location)
        found.asked()
        with self._lock:
            if location not in self._watched:
                self._watched[location] = found
                threading.Thread(target=self._follow, args=(location, found), daemon=True).start()
        return found

    def watch_within(self, location: str, seconds: float) -> WatchedRun | None:
        """The same; None where it takes longer to open the run, which goes on in the background.

        Raises:
            WatchglassError: It cannot be read.
        """
        opening: Future[WatchedRun] = Future()

        def watch() -> None:
            try:
                opening.set_result(self.watch(location))
            except Exception as error:
                opening.set_exception(error)

        threading.Thread(target=watch, daemon=True).start()
        try:
            return opening.result(seconds)
        except NotYet:
            return None

    def is_open(self, location: str) -> bool:
        """Whether it is open already."""
        with self._lock:
            return location in self._open

    def is_watched(self, location: str) -> bool:
        """Whether a thread reads it again and again."""
        with self._lock:
            return location in self._watched

    def _follow(self, location: str, watched: WatchedRun) -> None:
        while not self._stopping.wait(watched.pause_s):
            with self._lock:
                if watched.unwatched:
                    del self._watched[location]
                    return
            watched.look()


def _judge_ns(store: Store) -> int | None:
    """When the evaluator of a run last showed that it lives; None where there is none."""
    holder = lease_holder(store)
    if holder is None:
        return None
    try:
        renewed = json.loads(read_small(store, layout.LEASE_RENEWED))
    except (MissingFileError, ValueError, RecursionError):  # a DamagedDataError is a ValueError
        return holder.wall_ns
    seen = renewed.get("wall_ns") if isinstance(renewed, dict) else None
    return max(holder.wall_ns, seen if type(seen) is int else 0)


def _changed(news: News) -> frozenset[str]:
    if news.rebuilt:
        return frozenset(PARTS)
    found = {"findings"} if news.findings else set()
    found |= {"rules"} if len(news.journal) > len(news.findings) else set()
    found |= {"steps"} if news.workers else set()
    return frozenset(found or {"samples"})


def _ago(nanoseconds: int) -> str:
    seconds = max(0, round(nanoseconds / 1e9))
    return f"{seconds} s ago" if seconds < 10 else f"{duration(seconds)} ago"
