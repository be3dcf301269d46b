"""When it is time for a tick: no step was completed for a while, although some worker is waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from watchglass.config import EvaluatorTiming
from watchglass.evaluate.engine.observing import tick_of
from watchglass.evaluate.follower import FollowedWorker
from watchglass.evaluate.live.worker_liveness import WorkerLiveness
from watchglass.records import Observation
from watchglass.store import Claim, is_alive


def tick_times(ticks_s: tuple[float, float] = EvaluatorTiming.ticks_s) -> Iterator[float]:
    """Seconds from the last complete step to each tick, see :attr:`EvaluatorTiming.ticks_s`."""
    due_s, between_s = ticks_s[0], 2 * ticks_s[0]
    while True:
        yield due_s
        due_s += between_s
        between_s = min(ticks_s[1], 2 * between_s)


@dataclass
class _Waiting:
    """A group of workers that is waited for, since its last complete step."""

    steps: int  #: Its complete steps.
    since_s: float  #: When this number was reached, on the monotonic clock.
    times: Iterator[float]  #: Seconds from then on to the ticks that are left.
    due_s: float = 0.0  #: The same of the next tick.

    def __post_init__(self) -> None:
        self.next_after(0.0)

    def next_after(self, seconds: float) -> None:
        """The next tick is the first one that is due later than this."""
        while self.due_s <= seconds:
            self.due_s = next(self.times)


@dataclass(eq=False)
class Ticking:
    """Makes ticks. For one thread; asks the store for nothing."""

    liveness: WorkerLiveness  #: Who the workers are and whether they live.
    monotonic: Callable[[], float]  #: Seconds.
    timing: EvaluatorTiming  #: How often ticks are due, and when stacks are read from outside.
    #: Reads the stacks of a worker on this machine, by its claim.
    outside: Callable[[FollowedWorker, Claim], list[dict[str, Any]]]
    _groups: dict[tuple[int, str], _Waiting] = field(default_factory=dict, init=False)
    _workers: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict, init=False)
    _shown_stacks: dict[tuple[int, str], Any] = field(default_factory=dict, init=False)

    def excuse(self, seconds: float) -> None:
        """Note how long nothing could be read: that time is no silence of a worker."""
        for group in self._groups.values():
            group.since_s += seconds
        self._workers = {key: (steps, since_s + seconds) for key, (steps, since_s) in self._workers.items()}

    def due(self, workers: Collection[FollowedWorker]) -> list[Observation]:
        """The ticks that are due by what was read and shown of workers; call it where a look has found no news."""
        now_s = self.monotonic()
        groups: dict[str, list[FollowedWorker]] = {}
        for worker in workers:
            if worker.attempt != self.liveness.newest:
                continue
            key = worker.attempt, worker.worker
            if self._workers.get(key, (-1, 0.0))[0] != worker.ended:
                self._workers[key] = worker.ended, now_s
            if worker.active:
                groups.setdefault(worker.group, []).append(worker)
        return [tick for group in groups.values() for tick in self._of_group(group, now_s)]

    def _of_group(self, workers: list[FollowedWorker], now_s: float) -> list[Observation]:
        attempt, name, shown = workers[0].attempt, workers[0].group, workers[0].moments
        waiting = self._groups.get((attempt, name))
        if waiting is None or waiting.steps != shown.shown:
            waiting = self._groups[attempt, name] = _Waiting(shown.shown, now_s, tick_times(self.timing.ticks_s))
            if shown.tick is not None and shown.tick.steps == shown.shown:
                # An evaluator before this one has waited already.
                before = tick_of(shown.tick, "")
                waiting.since_s -= before.silent_s
                waiting.next_after(before.silent_s)
                for worker in workers:
                    silent_s = before.seconds.get(worker.worker, 0.0)
                    self._workers[attempt, worker.worker] = worker.ended, now_s - silent_s
        waited_s = now_s - waiting.since_s
        if waited_s < waiting.due_s:
            return []
        waiting.next_after(waited_s)
        claims = self.liveness.claims(attempt)
        living = [w.worker for w in workers if w.worker in claims and is_alive(claims[w.worker])]
        seconds = {w.worker: round(now_s - self._workers[attempt, w.worker][1], 3) for w in workers}
        data: dict[str, Any] = {"seconds": seconds, "living": living}
        stacks = {w.worker: latest for w in workers if (latest := self._new_stacks(w)) is not None}
        for worker in workers:
            if worker.worker in living and seconds[worker.worker] >= self.timing.outside_stacks_s:
                found = self._stacks_from_outside(worker, claims[worker.worker])
                if found is not None:
                    stacks.setdefault(worker.worker, found)
        return [Observation("tick", attempt, None, {**data, "stacks": stacks} if stacks else data, name, shown.shown)]

    def _new_stacks(self, worker: FollowedWorker) -> Any:
        """Data of its latest fact ``stacks``, unless a tick had it or a step has ended since; else None."""
        found = [fact for fact in worker.tables.facts(-1) if fact.kind == "stacks"]
        key = worker.attempt, worker.worker
        if not found or not _is_of_silence(found[-1].data, worker) or self._shown_stacks.get(key) == found[-1].data:
            return None
        self._shown_stacks[key] = found[-1].data
        return found[-1].data

    def _stacks_from_outside(self, worker: FollowedWorker, claim: Claim) -> Any:
        """The same, read once in a silence of a process that has recorded none; else None."""
        key = worker.attempt, worker.worker
        if _is_of_silence(self._shown_stacks.get(key), worker):
            return None
        threads = self.outside(worker, claim)
        if not threads:
            return None
        self._shown_stacks[key] = {"step": worker.ended - 1, "threads": threads}
        return self._shown_stacks[key]


def _is_of_silence(stacks: Any, worker: FollowedWorker) -> bool:
    """Whether these stacks were read since the last step of a worker."""
    step = stacks.get("step") if isinstance(stacks, dict) else None
    return type(step) is int and step >= worker.ended - 1
