"""Reading a run and judging it, moment by moment: what an evaluator does while everything is in order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from watchglass.config import Clock, EvaluatorConfig
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.follower import FollowedWorker, Follower, Key
from watchglass.evaluate.live.reporting import Reporting
from watchglass.evaluate.live.restart_without_rule import start_without
from watchglass.evaluate.live.worker_liveness import WorkerLiveness, step_of
from watchglass.records import Finding, Observation, RuleStatus
from watchglass.store import Store, holder_of, is_alive, layout
from watchglass.tables import JointStep, Moment

#: Scalars of which a snapshot holds the last value; a run may have any number of names.
_MOST_SCALARS = 1000


class Judging:
    """A follower and an engine, and the way from the one to the other. For one thread.

    Every step is shown to the rules as soon as it is complete, and what they find is reported at once. The methods
    raise StoreError where the store refuses, and CompactedError where the data being read was replaced: then
    :meth:`begin_again`.

    Attributes:
        follower: Reads the run.
        engine: Evaluates the rules.
    """

    #: Whether an answer is waited for, as where a cluster reads and judges.
    waits = False

    def __init__(self, store: Store, config: EvaluatorConfig, clock: Clock = time) -> None:
        """Builds the rules.

        Args:
            store: The run's store.
            config: What to evaluate.
            clock: The time.

        Raises:
            WatchglassError: A rule or a parameter is not right, or there is no such run.
        """
        self._store, self._config, self._clock = store, config, clock
        self._ended_streams: set[str] = set()
        self._looked_s = -math.inf
        self._connect()

    @property
    def run_id(self) -> str:
        """Identifier of the run."""
        return self.follower.run_id

    @property
    def workers(self) -> Mapping[Key, FollowedWorker]:
        """The workers, as far as they were read."""
        return self.follower.workers

    @property
    def ticks(self) -> bool:
        """See :attr:`Engine.ticks`."""
        return self.engine.ticks

    @property
    def findings(self) -> Sequence[Finding]:
        """See :attr:`Engine.findings`."""
        return self.engine.findings

    @property
    def train_steps(self) -> Mapping[Key, int]:
        """See :attr:`Engine.train_steps`."""
        return self.engine.train_steps

    @property
    def problems(self) -> Sequence[str]:
        """Records that could not be read, one line each."""
        return [str(problem) for problem in self.follower.problems]

    def statuses(self) -> tuple[RuleStatus, ...]:
        """See :meth:`Engine.statuses`."""
        return self.engine.statuses()

    def scalars(self) -> Mapping[str, float]:
        """The last TRAIN value of each scalar, of the first worker of the newest attempt that has TRAIN steps."""
        by_order = sorted(self.workers.values(), key=lambda each: (-each.attempt, layout.worker_order(each.worker)))
        scalars = (worker.newest_scalars(_MOST_SCALARS) for worker in by_order)
        return next(filter(None, scalars), {})

    def take_changed(self) -> Sequence[Finding]:
        """See :meth:`Engine.take_changed`."""
        changed = self.engine.take_changed()
        self._judge(self.follower.progress() if changed else ())
        return changed

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        self.engine.close()

    def join(self, reporting: Reporting, liveness: WorkerLiveness, stay: Callable[[], None]) -> None:
        """Sets what findings and steps are reported to, and what is called after each step."""
        self._reporting, self._liveness, self._stay = reporting, liveness, stay

    def remember(self) -> None:
        """Shows the rules what earlier evaluators observed, at the same steps."""
        for record in self._reporting.journal.known:
            if isinstance(record, Observation):
                self.engine.heed(record)
                if self.follower.notes:
                    self.follower.observe(record)

    def begin_again(self) -> None:
        """What was being read has been replaced by a compacted generation: all of it is evaluated again."""
        self.engine.close()
        self._connect()
        self.remember()
        self._reporting.caught_up = False

    def read(self, max_bytes: int) -> bool:
        """Reads and judges new data, up to about this number of bytes; returns whether there was any."""
        before = self.follower.frames
        self._judge(self.follower.poll(max_bytes=max_bytes))
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= self._store.policy.intervals().liveness_s:
            self._looked_s = now_s
            self._look_at_streams()
        return self.follower.frames != before

    def _look_at_streams(self) -> None:
        """Observes that a stream has ended, where its writer had ended before the last read of the run."""
        losses = self.follower.losses()
        holders = {stream: holder_of(self._store, layout.stream_claim(stream)) for stream in losses}
        ended = {stream for stream, holder in holders.items() if holder is None or is_alive(holder) is False}
        self.observed([losses[stream] for stream in sorted(ended & self._ended_streams)])
        self._ended_streams = ended

    def drained(self) -> bool:
        """Reads everything that is there; returns whether there was nothing."""
        before = self.follower.frames
        self._judge(self.follower.poll(full=True))
        return self.follower.frames == before

    def drain(self, is_active: Callable[[], bool]) -> bool:
        """Reads all, and for a moment what is added meanwhile where more may come; always True."""
        give_up_s = self._clock.monotonic() + self._config.timing.last_look_s
        while not self.drained() and (self._clock.monotonic() < give_up_s or not is_active()):
            pass
        if not (is_active() and self.follower.notes):  # a step without some of its workers is for the next evaluator
            self._judge(self.follower.drain())
        self._is_drained = True
        return True

    def end(self, is_active: Callable[[], bool]) -> bool:
        """Shows the rules the end of the run; always True."""
        if not self._is_drained:
            self.drain(is_active)  # all is evaluated again
        self._judge(self.follower.ends())
        return True

    def observed(self, seen: Sequence[Observation]) -> None:
        """Records what was observed, and shows it to the rules."""
        for observation in seen:
            self.follower.observe(observation)
        if seen:
            self._judge(self.follower.release())

    def _judge(self, moments: Iterable[Moment]) -> None:
        for moment in moments:
            if isinstance(moment, JointStep):
                for view in moment.views:
                    self._liveness.evaluated(*step_of(view))
            elif isinstance(moment, Observation):
                self._reporting.journal.write([moment])  # before a rule sees it
            self._report(self.engine.show(moment))
            self._stay()

    def _report(self, found: Sequence[Finding]) -> None:
        """Reports new findings; first the journal notes where a rule took too long, for no evaluator calls it there."""
        self._judge(self.follower.progress() if found else ())
        self._reporting.journal.write(self.engine.take_observations())
        self._reporting.findings(found, self.workers.values())

    def _connect(self) -> None:
        """Makes a new follower and a new engine, and joins them."""
        config = self._config
        self.follower = follower = Follower(self._store, attempt=config.attempt, clock=self._clock)
        self.engine = engine = Engine(
            config.rules, calibration=config.calibration, rule_timeout_s=config.rule_timeout_s,
            run_id=follower.run_id, call_checks_s=config.timing.call_checks_s,
        )  # fmt: skip
        run_id, self._is_drained = follower.run_id, False
        engine.stuck = lambda seen: start_without(run_id, seen)
        follower.readable = engine.readable
        follower.notes = bool(engine.whole)
        follower.cut(engine.windows)
