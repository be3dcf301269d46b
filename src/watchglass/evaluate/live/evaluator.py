"""The evaluator: follows a run while it is written, keeps its journal, acts on what it finds.

One class serves the process that a launcher starts, which has a lifeline to the launcher, and a follower anywhere else,
which has only the store.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, TextIO

from watchglass.config import Clock, EvaluatorConfig
from watchglass.errors import WatchglassError
from watchglass.evaluate.engine.partial import most_steps, steps_by_worker
from watchglass.evaluate.follower import FollowedWorker
from watchglass.evaluate.live.judging import Judging
from watchglass.evaluate.live.outside_stacks import stacks_of_worker
from watchglass.evaluate.live.reporting import Reporting
from watchglass.evaluate.live.restart_without_rule import left_out, own_lease
from watchglass.evaluate.live.snapshot import RunSnapshot
from watchglass.evaluate.live.standstill import Standstill
from watchglass.evaluate.live.store_retry import StoreRetry, slept
from watchglass.evaluate.live.ticking import Ticking
from watchglass.evaluate.live.worker_liveness import WorkerLiveness
from watchglass.records import Evaluation, Observation
from watchglass.store import Claim, Pin, Store, open_store, pin


class Evaluator:
    """Follows one attempt, or all of a run, and keeps the journal.

    For one thread. :meth:`turn` evaluates what is new and returns; :attr:`pause_s` is the time until the next turn. An
    unreachable store ends nothing: the evaluator retries at growing intervals, and loses nothing.
    """

    def __init__(
        self,
        config: EvaluatorConfig,
        *,
        store: Store | None = None,
        output: TextIO | None = None,
        label: str = "",
        at_work: Callable[[], None] = lambda: None,
        judging: Callable[[Store, EvaluatorConfig, Clock], Judging] = Judging,
        clock: Clock = time,
    ) -> None:
        """Builds rules and actions; writes to the run only from :meth:`open` on.

        Args:
            config: What to evaluate, and what to do about it.
            store: The run's store, which stays open; if None the evaluator opens and closes one.
            output: Where findings are printed, a line each.
            label: Begin of each line, where several runs are followed.
            at_work: Called between two steps, and at each turn.
            judging: Makes the object that reads the run and evaluates the rules.
            clock: The time.

        Raises:
            WatchglassError: A rule, an action or a parameter is invalid, or there is no such run.
        """
        self._config, self._timing = config, config.timing
        self._at_work, self._clock = at_work, clock
        self._store = store if store is not None else open_store(config.run)
        self._own_store = store is None
        self._pin: Pin | None = None
        self._judging = judging(self._store, config, clock)
        self._reporting = Reporting(self._store, config, self._judging.run_id, output, label, clock)
        self._journal, self._report = self._reporting.journal, self._reporting.report
        self._retry = StoreRetry(
            lambda: self.poll_s, self._report, self._begin_again, clock, longest_pause_s=self._timing.longest_retry_s
        )
        self._liveness = WorkerLiveness(self._store, config, self._judging.observed, clock)
        self._ticking = Ticking(self._liveness, clock.monotonic, self._timing, self._stacks_of)
        self._standstill = Standstill(self._tell, self._timing)
        self._judging.join(self._reporting, self._liveness, self._stay)
        self._news_s = clock.monotonic()
        self._finished = False
        self._snapshot = RunSnapshot(config.run, read_s=self._news_s)

    @property
    def poll_s(self) -> float:
        """Seconds between looks for new segments."""
        return self._config.poll_s if self._config.poll_s is not None else self._store.policy.intervals().poll_s

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn; more while the store is unreachable."""
        return max(self._timing.answer_s if self._judging.waits else self.poll_s, self._retry.backoff_s)

    @property
    def unreachable_s(self) -> float:
        """Seconds for which the store has been unreachable; 0 while it is reachable."""
        return self._retry.unreachable_s

    def open(
        self, pause: Callable[[float], bool], *, patience_s: float | None = None, gone: Claim | None = None
    ) -> None:
        """Takes the lease of the journal; waits for an evaluator of an earlier attempt that is about to end.

        From now on a pin keeps the files that are not read yet from compaction.

        Args:
            pause: Waits so many seconds, or less; returns False to end the wait.
            patience_s: How long to wait; :attr:`EvaluatorTiming.lease_s` if None.
            gone: A holder of the lease that is known to be dead, although its process is on another machine.

        Raises:
            RunExistsError: Another evaluator still writes the journal.
        """
        try:
            patience_s = self._timing.lease_s if patience_s is None else patience_s
            self._journal.open(pause, patience_s=patience_s, poll_s=self.poll_s, gone=gone or own_lease(self._store))
            self._journal.write(left_out(self._judging.run_id))
            self._judging.remember()
            if self._judging.ticks:
                self._journal.write([Observation("ticks_recorded", 0)])
            self._pin = pin(self._store)
            if self._reporting.acting.delivers:
                self._liveness.look(0.0)
            self._reporting.begin(self._newest)
            self._write_statuses()
        except WatchglassError:
            self.close()
            raise

    def introduce(self) -> None:
        """Print the location of the run, where no launcher did."""
        if self._config.concludes and not self._config.continues and not self._config.quiet:
            self._report(f"run directory {self._config.run}")

    def conclude(self) -> None:
        """Print the verdict, where no launcher does and all steps were evaluated; after the run was closed."""
        if not self._config.concludes or self._config.quiet:
            return
        if not self._finished:
            self._report(f"not everything was evaluated; for the verdict: watchglass check {self._config.run}")
            return
        from watchglass.diagnose import verdict
        from watchglass.run import open_run

        run = open_run(self._config.run)
        found = verdict(run, self.evaluation(), causes=self._config.causes, price_per_hour=self._config.price_per_hour)
        self._reporting.conclude(replace(found, run=self._config.run))

    def turn(self, max_bytes: int = 16 << 20) -> bool:
        """Reads and evaluates what is new; returns whether anything was. Every new finding is acted upon at once.

        Args:
            max_bytes: Approximate limit of the bytes that are read; the next turn reads on.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        new = self._retry.attempt(lambda: self._turn(max_bytes))
        if new is None:
            return self._retry.outdated
        if self._retry.unreachable:
            unreachable_s = self.unreachable_s
            self._report(f"store reachable again after {unreachable_s:.0f} s; no data was lost")
            self._retry.over()
            self.excuse(unreachable_s)
        return new

    @property
    def busy(self) -> bool:
        """Whether a stop or a delivery is under way."""
        return self._reporting.acting.busy

    def stay(self) -> None:
        """Renews the lease in the middle of :meth:`finish`; if the store refuses, the next call tries again.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        self._retry.attempt(self._stay)

    def excuse(self, seconds: float) -> None:
        """Note how long the store was unreachable: no worker was silent meanwhile."""
        self._news_s += seconds
        self._liveness.excuse(seconds)
        self._ticking.excuse(seconds)

    def snapshot(self) -> RunSnapshot:
        """The newest snapshot. It is replaced and never changed, so any thread may read it."""
        return self._snapshot

    def over(self, *, lifeline_open: bool) -> bool:
        """Whether no more records will come: the lifeline is closed and every worker has left or is dead."""
        if lifeline_open:
            return False
        if self._retry.unreachable:
            return self.unreachable_s > self._patience_s(self._timing.unreachable_s)
        # A worker may have begun and ended since the last listing.
        return self._retry.attempt(lambda: self._waits(self._timing.silence_s) or not self._judging.drained()) is False

    def ended(self) -> str:
        """How the run ended, in words, once no more records are expected; "" while it continues.

        For a follower without a lifeline: the run has ended when all its workers have left or are lost, and no new
        attempt has begun for some seconds.
        """
        if (
            self._judging.waits
            or self._retry.unreachable
            or self._retry.attempt(lambda: self._waits(None)) is not False
        ):
            return ""
        newest = self._liveness.newest
        ends = _ends_of(self._judging.workers.values(), newest)
        if not ends and not self._liveness.launch_ended(newest):
            return ""
        in_order = ends <= {"finished", "stopped"} and (ends or self._liveness.launch_succeeded(newest))
        quiet_s = self._clock.monotonic() - max(self._news_s, self._liveness.begun_s)
        if quiet_s < (self._timing.settled_s + self.poll_s if in_order else self._timing.restarted_s):
            return ""
        return " and ".join(sorted(ends)) or "ended before its first training step"

    def begun(self) -> bool:
        """Whether any worker has joined yet."""
        return bool(self._judging.workers)

    def finish(
        self,
        *,
        patience_s: float | None = None,
        action_patience_s: float | None = None,
        pause: Callable[[float], bool] = slept,
    ) -> None:
        """Evaluates the rest, writes final findings and statuses, waits for actions, and releases the lease.

        Args:
            patience_s: How long to retry while the store is unreachable; if None :attr:`EvaluatorTiming.end_s`, for a
                folder no longer than :attr:`EvaluatorTiming.folder_s`. If
                the rest was not read, the rules stay in progress, so that no reader takes their statuses for final.
            action_patience_s: How long to wait for a delivery, once the run has ended;
                :attr:`EvaluatorTiming.delivery_s` if None.
            pause: Waits so many seconds, or less; returns False to end waiting for the store and for deliveries.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        patience_s = self._patience_s(self._timing.end_s) if patience_s is None else patience_s
        action_patience_s = self._timing.delivery_s if action_patience_s is None else action_patience_s
        insist = functools.partial(self._retry.insist, patience_s=patience_s, pause=pause)
        try:
            read = insist(lambda: self._judging.drain(self._is_active))
            if read and not self._is_active():
                # Else this evaluator has to end before the run, and the rules stay in progress.
                self._finished = insist(lambda: self._judging.end(self._is_active))
            self._reporting.caught_up = self._reporting.caught_up or read
            self._standstill.end(self._judging.workers.values())
            self._journal.write(self._judging.take_changed())
            self._write_statuses()
            insist(self._journal.flush)
            self._note()
            self._finish_actions(pause, action_patience_s)
            insist(self._journal.flush)
            if self._finished:
                insist(self._conclude)
        finally:
            self.close()

    def close(self) -> None:
        """Releases lease and pin, and closes everything. In an unreachable store both expire by themselves."""
        unreachable = self._retry.unreachable
        self._judging.close()
        self._reporting.acting.leave()
        self._journal.close(give_back=not unreachable)
        if self._pin is not None and not unreachable:
            self._pin.close()
        self._pin = None
        if self._own_store:
            self._store.close()

    def evaluation(self) -> Evaluation:
        """The findings and statuses so far."""
        judging = self._judging
        steps = most_steps(judging.train_steps)
        return Evaluation(
            self._config.run, tuple(judging.findings), judging.statuses(), steps, self._finished,
            tuple(judging.problems),
        )  # fmt: skip

    def _tell(self, sentence: str) -> None:
        if not self._config.quiet:
            self._report(sentence)

    def _patience_s(self, longest_s: float) -> float:
        return longest_s if self._store.policy.buffers_writes else min(longest_s, self._timing.folder_s)

    def _turn(self, max_bytes: int) -> bool:
        new = self._judging.read(max_bytes)
        if new:
            self._news_s = self._clock.monotonic()
            self._liveness.listen(self._judging.workers.values())
            self._write_statuses()
            self._note()
        elif not self._judging.waits:
            workers = self._judging.workers.values()
            ticks = self._ticking.due(workers)
            self._standstill.look(ticks, workers)
            if self._judging.ticks:
                self._judging.observed(ticks)
            if not self._reporting.caught_up:
                self._reporting.caught_up = True
                self._write_statuses()
        acting = self._reporting.acting
        if self._liveness.look(self.poll_s if acting.stopping else self._store.policy.intervals().liveness_s):
            self._journal.write(self._judging.take_changed())
            self._write_statuses()  # after ticks and windows
            self._note()
        self._stay()  # before deliveries: after a long sleep another evaluator may have the journal, and deliver
        if acting.busy:
            self._journal.write(
                acting.tick(self._liveness.workers(self._judging.workers.values()) if acting.stopping else ())
            )
        self._journal.flush()
        return new

    def _note(self) -> None:
        """Replace the snapshot that other threads read."""
        workers = self._judging.workers.values()
        self._snapshot = RunSnapshot(
            self._config.run,
            attempt=_last_attempt(workers),
            statuses=self._judging.statuses(),
            findings=tuple(self._judging.findings),
            train_steps=steps_by_worker(self._judging.train_steps),
            # An attempt without a TRAIN step leaves those of the attempt before.
            scalars=self._judging.scalars() or self._snapshot.scalars,
            ended=_ends(workers) if self._finished else "",
            deliveries=self._reporting.acting.counts,
            read_s=self._news_s,
        )

    def _conclude(self) -> bool:
        """Write that the run was evaluated, unless a worker has yet to begin; always True."""
        workers = self._judging.workers.values()
        newest = self._newest
        begun = any(worker.attempt == newest for worker in workers) or self._liveness.launch_ended(newest)
        if begun and not self._liveness.awaits(self._judging.workers):
            self._journal.conclude(newest, _ends(workers))
        return True

    def _stacks_of(self, worker: FollowedWorker, claim: Claim) -> list[dict[str, Any]]:
        label = {"run": self._judging.run_id, "attempt": worker.attempt, "worker": worker.worker}
        return stacks_of_worker(self._store, claim, label)

    def _stay(self) -> None:
        """Renew lease and pin, also in the middle of a long turn: another process takes over what expires."""
        self._at_work()
        self._journal.renew()
        if self._pin is not None:
            self._pin.tick()

    def _waits(self, silence_s: float | None) -> bool:
        """Whether some worker may still write."""
        return self._liveness.awaited(self._judging.workers, silence_s, self._judging.drained)

    @property
    def _newest(self) -> int:
        """Newest attempt that anything is known of."""
        return max(self._liveness.newest, _last_attempt(self._judging.workers.values()))

    def _is_active(self) -> bool:
        """Whether more may come from the newest attempt."""
        newest = self._newest
        return any(worker.active for worker in self._judging.workers.values() if worker.attempt == newest)

    def _write_statuses(self) -> None:
        self._reporting.statuses(self._judging.statuses(), self._newest)

    def _finish_actions(self, pause: Callable[[float], bool], patience_s: float) -> None:
        def waits(seconds: float) -> bool:
            self.stay()
            return pause(seconds)

        self.stay()
        self._reporting.acting.finish(
            self._journal.write, self._report, ended=self._finished, pause=waits, patience_s=patience_s
        )

    def _begin_again(self) -> None:
        """Evaluate all again: a compacted generation has replaced the files that were being read."""
        held, self._pin = self._pin, pin(self._store)
        if held is not None:
            held.close()
        self._judging.begin_again()
        self._liveness.begin_again()


def _last_attempt(workers: Iterable[FollowedWorker]) -> int:
    """The newest attempt that a worker has joined; -1 without workers."""
    return max((worker.attempt for worker in workers), default=-1)


def _ends_of(workers: Iterable[FollowedWorker], attempt: int) -> set[str]:
    """How the workers of an attempt left: ``finished``, ``failed``, ``stopped`` or ``lost``."""
    return {
        str(worker.left.get("status", "finished")) if worker.left else "lost"
        for worker in workers
        if worker.attempt == attempt
    }


def _ends(workers: Collection[FollowedWorker]) -> str:
    """How the workers of the newest attempt left, in words; "" without workers."""
    return " and ".join(sorted(_ends_of(workers, _last_attempt(workers))))
