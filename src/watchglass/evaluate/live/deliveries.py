"""Deliveries of events to an action: in order, a few at once, retried, limited, and never lost unreported."""

from __future__ import annotations

import json
import os
import random
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from watchglass.actions import Action, Courier, DeliveryOutcome
from watchglass.config import ActionSpec, Clock, EvaluatorTiming
from watchglass.errors import StoreError
from watchglass.evaluate.live.event_ids import event_id
from watchglass.records import Event, Observation
from watchglass.store import Store, layout

#: Processes of deliveries at a time, over all actions of an evaluator; and over all evaluators of this process, which
#: has one for each run that it follows.
MOST_AT_ONCE, MOST_OF_ALL_RUNS = 4, 16
#: Events that wait for one action; what comes beyond goes to the dead letters at once.
MOST_WAITING = 1_000
_HOUR_S = 3600.0


#: Those of all evaluators of this process that have a delivery under way.
_AT_WORK: weakref.WeakSet[Deliveries] = weakref.WeakSet()


def key_among(taken: Collection[str], name: str) -> str:
    """The name of the next action of a class in observations: ``Webhook``, then ``Webhook-2``."""
    number = 1
    while (key := name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    return key


def end_all() -> None:
    """End the deliveries under way of all evaluators of this process, before it restarts; they stay due."""
    for line in list(_AT_WORK):
        line.leave()


@dataclass(frozen=True)
class DeadLetter:
    """An event that was not delivered, as the run keeps it."""

    action: str  #: What the action is called in observations.
    event: Event  #: The event.
    tries: int  #: How often it was tried.
    reason: str = ""  #: Why it was not delivered.

    @property
    def path(self) -> str:
        """Where it is in the run."""
        return layout.dead_letter(self.action, self.event.id)

    def written(self, store: Store, time_ns: int) -> str:
        """Writes it; returns the text.

        Raises:
            StoreError: The store refused.
        """
        letter = {
            "action": self.action, "event": self.event.to_json(), "tries": self.tries, "reason": self.reason,
            "time_ns": time_ns,
        }  # fmt: skip
        text = json.dumps(letter)
        store.write(self.path, text.encode(), replace=True)
        return text


def observation_of(what: str, action: str, event: Event, time_ns: int, **data: object) -> Observation:
    """What is written down of an event and an action."""
    row = {"action": action, "event": event.id, "rule": event.rule, **data, "time_ns": time_ns}
    return Observation(what, event.attempt, None, row)


@dataclass
class _Due:
    """An event to deliver."""

    event: Event
    tries: int = 0
    not_before_s: float = 0.0
    #: Of several receivers those that earlier tries have reached.
    arrived: frozenset[int] = frozenset()
    #: Why the last try failed.
    failure: str = ""
    #: Why it will not be delivered; "" where it may be.
    dead: str = ""


@dataclass(eq=False)
class Deliveries:
    """The deliveries of one action, in their order. For one thread; nothing here waits.

    Observations report what happens: ``action_due`` when an event is accepted, then ``action_done`` or
    ``action_failed``; ``action_limited`` for one beyond the limit. An evaluator that starts again reads them.
    """

    key: str  #: Name of the action in observations, unique in the evaluator.
    spec: ActionSpec  #: The action.
    action: Action  #: An instance of it, for its parameters.
    store: Store  #: The run's store, for dead letters.
    start: Callable[..., Courier] = field(default=Courier, kw_only=True)  #: Starts a delivery.
    clock: Clock = field(default=time, kw_only=True)
    #: A random number from 0 to 1; a pause between tries varies by half of its length.
    jitter: Callable[[], float] = field(default=random.random, kw_only=True)
    timing: EvaluatorTiming = field(kw_only=True)  #: How long to pause between tries.
    left_out: int = field(default=0, init=False)  #: Events beyond the limit that no summary has reported yet.
    #: Deliveries by outcome.
    counts: dict[str, int] = field(default_factory=lambda: {"done": 0, "failed": 0, "limited": 0}, init=False)
    failure: str = field(default="", init=False)  #: Why the last failed delivery failed; "" where none did.
    _waiting: deque[_Due] = field(default_factory=deque, init=False)
    _underway: Courier | None = field(default=None, init=False)
    _known: set[str] = field(default_factory=set, init=False)
    _accepted_s: deque[float] = field(default_factory=deque, init=False)
    _last: Event | None = field(default=None, init=False)

    @property
    def waiting(self) -> int:
        """Number of events still to deliver."""
        return len(self._waiting)

    @property
    def underway(self) -> bool:
        """Whether a process is at work."""
        return self._underway is not None

    def next_s(self) -> float | None:
        """Time of the next step of a delivery on the clock, now at the earliest; None where nothing waits."""
        now_s = self.clock.monotonic()
        if self._underway is not None or (self._waiting and self._waiting[0].dead):
            return now_s
        return max(now_s, self._waiting[0].not_before_s) if self._waiting else None

    def resume(self, event_id: str, kind: str, time_ns: int, event: Event | None, left_out: int) -> None:
        """Take note of what an earlier evaluator wrote of an event.

        Args:
            event_id: The event.
            kind: Kind of the observation.
            time_ns: When that was.
            event: The event itself, where it was accepted and has no outcome yet, or was beyond the limit.
            left_out: Number of events that a summary stands for.
        """
        self._known.add(event_id)
        if kind == "action_limited":
            self.left_out += 1
            self._last = event
        elif kind == "action_due":
            self.left_out -= left_out
            ago_s = max(0.0, (self.clock.time_ns() - time_ns) / 1e9)
            if ago_s < _HOUR_S:
                self._accepted_s.append(self.clock.monotonic() - ago_s)
            if event is not None:
                self._queue(event)

    def add(self, event: Event) -> list[Observation]:
        """Accept an event that the action wants, unless it is known already."""
        if event.id in self._known or not self._wants(event):
            return []
        self._known.add(event.id)
        self._last = event
        if self._full() and event.kind != "summary":
            self.left_out += 1
            self.counts["limited"] += 1
            return [self._observation("action_limited", event)]
        self._accepted_s.append(self.clock.monotonic())
        self._queue(event)
        return [self._observation("action_due", event, **_identity(event))]

    def tick(self, may_start: bool) -> list[Observation]:
        """Look at the delivery under way, and begin the next one that is due.

        Args:
            may_start: Whether another process may be started.
        """
        seen: list[Observation] = []
        if self._underway is not None:
            outcome = self._underway.poll()
            if outcome is None:
                return []
            self._let_go()
            seen += self._ended(outcome)
        first = self._waiting[0] if self._waiting else None
        may_start = may_start and len(_AT_WORK) < MOST_OF_ALL_RUNS
        if first is not None and first.dead:
            seen += self._bury()
        elif first is not None and may_start and first.not_before_s <= self.clock.monotonic():
            self._begin(first)
        return seen

    def summary(self, *, now: bool) -> list[Observation]:
        """Report how many events were omitted, once the limit allows, or at once."""
        if not self.left_out or self._last is None or (self._full() and not now):
            return []
        count, last = self.left_out, self._last
        self.left_out = 0
        summary_id = event_id(last.run_id, "summary", self.key, last.id, count)
        return self.add(
            Event("summary", summary_id, last.run, last.run_id, last.attempt, "", self.clock.time_ns(), left_out=count)
        )

    def give_up(self, reason: str) -> None:
        """Ends the delivery under way; all that wait become dead letters at the next calls of :meth:`tick`."""
        self.leave()
        for due in self._waiting:
            due.dead = due.dead or (f"{reason}; the last try: {due.failure}" if due.failure else reason)

    def leave(self) -> None:
        """End the delivery under way; it and those that wait stay due, for the next evaluator."""
        if self._underway is not None:
            self._underway.end()
            self._let_go()

    def _wants(self, event: Event) -> bool:
        try:
            return self.action.wants(event)
        except Exception:  # a user's class may filter; better one notification too many than none
            return True

    def _queue(self, event: Event) -> None:
        full = len(self._waiting) >= MOST_WAITING
        self._waiting.append(_Due(event, dead=f"{MOST_WAITING} others waited already" if full else ""))

    def _let_go(self) -> None:
        self._underway = None
        _AT_WORK.discard(self)

    def _full(self) -> bool:
        now_s = self.clock.monotonic()
        while self._accepted_s and self._accepted_s[0] <= now_s - _HOUR_S:
            self._accepted_s.popleft()
        return self.action.per_hour is not None and len(self._accepted_s) >= self.action.per_hour

    def _begin(self, due: _Due) -> None:
        due.tries += 1
        try:
            self._underway = self.start(self.spec, due.event, self.action.timeout_s, arrived=due.arrived)
            _AT_WORK.add(self)
        except OSError as error:
            self._failed(due, DeliveryOutcome(False, f"no process can be started: {error.strerror or error}"))

    def _ended(self, outcome: DeliveryOutcome) -> list[Observation]:
        due = self._waiting[0]
        if not outcome.done:
            self._failed(due, outcome)
            return []
        self._waiting.popleft()
        self.counts["done"] += 1
        return [self._observation("action_done", due.event, tries=due.tries)]

    def _failed(self, due: _Due, outcome: DeliveryOutcome) -> None:
        due.arrived |= frozenset(outcome.arrived)
        due.failure = outcome.reason or "no reason was given"
        if not outcome.again or due.tries > self.action.retries:
            due.dead = due.failure
            return
        first_s, longest_s = self.timing.delivery_pauses_s
        pause_s = min(longest_s, first_s * 2.0 ** (due.tries - 1))
        requested_s = min(outcome.after_s or 0.0, self.timing.longest_requested_pause_s)
        due.not_before_s = self.clock.monotonic() + max(pause_s * (0.5 + self.jitter()), requested_s)

    def _bury(self) -> list[Observation]:
        """Write the first that waits as a dead letter; while the store is unreachable it stays first."""
        due = self._waiting[0]
        letter = DeadLetter(self.key, due.event, due.tries, due.dead)
        try:
            text = letter.written(self.store, self.clock.time_ns())
        except StoreError:
            return []
        outcome = {"tries": due.tries, "reason": due.dead, "dead_letter": letter.path}
        if file := getattr(self.action, "dead_letter", ""):
            outcome.update(_append(str(file), text))
        self._waiting.popleft()
        self.counts["failed"] += 1
        self.failure = due.dead
        return [self._observation("action_failed", due.event, **outcome)]

    def _observation(self, what: str, event: Event, **data: object) -> Observation:
        return observation_of(what, self.key, event, self.clock.time_ns(), **data)


def _identity(event: Event) -> Mapping[str, object]:
    """The data from which another evaluator makes the same event."""
    if event.finding is not None:
        return {"kind": event.kind, "finding": event.finding.id}
    return {"kind": event.kind, "content": event.to_json()}


def _append(file: str, text: str) -> Mapping[str, str]:
    """Add a line to a local file; returns the problem where that fails. A pipe without a reader fails."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        with open(descriptor, "wb", buffering=0) as lines:
            lines.write(text.encode() + b"\n")
    except OSError as error:
        return {"file_problem": f"{file}: {error.strerror or error}"}
    return {}
