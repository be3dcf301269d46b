"""The evaluator process: follows one attempt of a run while it trains, writes the journal, asks for the stop.

Started by command line with a pipe as its standard input, its lifeline: when that closes, whoever started it has
ended, and the evaluator ends too as soon as every worker has left or is dead. It never outlives the training.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TextIO

from watchglass.actions import Action, StopTraining, Worker
from watchglass.config import EvaluatorConfig
from watchglass.errors import RunExistsError, StoreError, WatchglassError
from watchglass.evaluate.engine import Engine
from watchglass.evaluate.follower import FollowedWorker, Follower
from watchglass.record import harvest
from watchglass.records import Finding, Mode, Observation, RuleStatus
from watchglass.run import StepView
from watchglass.store import Claim, JournalWriter, Store, is_alive, open_store, read_claims

#: How often the processes of workers are looked at, and repeats of findings are written.
_LIVENESS_S = 1.0
#: A worker on another machine that is silent for so long, with the lifeline gone, is taken for lost.
_SILENCE_S = 60.0
#: How long somebody may take to recover a worker's last steps before nothing more is expected of it.
_HARVEST_NS = 30_000_000_000
#: How long to wait for an evaluator of an earlier attempt to give up the journal.
_LEASE_S = 30.0


class Evaluator:
    """Follows one attempt and keeps the journal. For one thread; :meth:`turn` does what there is to do and returns."""

    def __init__(self, config: EvaluatorConfig, *, store: Store | None = None, output: TextIO | None = None) -> None:
        """Builds the rules; touches the run only in :meth:`open`.

        Raises:
            WatchglassError: A rule or parameter is not right, or there is no such run.
        """
        self._config = config
        self._output = output
        self._engine = Engine(config.rules)
        self._store = store if store is not None else open_store(config.run)
        self._follower = Follower(self._store, attempt=config.attempt)
        self._journal: JournalWriter | None = None
        self._actions: list[Action] = []
        if config.stop_on is not None:
            stop = StopTraining(
                self._store, config.attempt, stop_on=config.stop_on, grace_s=config.grace_s, poll_s=config.poll_s
            )
            self._actions.append(stop)
        self._statuses: tuple[RuleStatus, ...] = ()
        self._lengths: dict[str, deque[float]] = {}
        self._train_steps: dict[str, int] = {}
        self._claims: dict[str, Claim] = {}
        self._looked_s = float("-inf")
        self._heard: tuple[int, float] = (0, time.monotonic())
        self._after: tuple[int, int, int] | None = None
        self._harvested: set[str] = set()

    def open(self, pause: Callable[[float], bool]) -> None:
        """Takes the lease of the journal, waiting for an evaluator of an earlier attempt that is about to end.

        Args:
            pause: Waits so many seconds, or less; returns whether waiting on makes sense.

        Raises:
            RunExistsError: Another one still writes it.
        """
        give_up_s = time.monotonic() + _LEASE_S
        while self._journal is None:
            try:
                self._journal = JournalWriter(self._store)
            except RunExistsError:
                if time.monotonic() >= give_up_s or not pause(self._config.poll_s):
                    raise
        self._write_statuses()

    def turn(self) -> bool:
        """Reads and evaluates what is new; returns whether anything was. Every new finding is acted upon at once."""
        before = self._follower.frames
        for views in self._follower.poll():
            self._evaluated(views)
        new = self._follower.frames != before
        if new:
            self._heard = (self._follower.frames, time.monotonic())
            self._write_statuses()
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LIVENESS_S or any(action.busy for action in self._actions):
            self._looked_s = now_s
            self._claims = read_claims(self._store, self._config.attempt)
            self._write(self._engine.take_changed())
        if any(action.busy for action in self._actions):
            workers = self._workers()
            self._observe([seen for action in self._actions for seen in action.tick(workers)])
        return new

    def over(self, *, lifeline_open: bool) -> bool:
        """Whether nothing more will come: the lifeline is gone and every worker that joined has left or is dead."""
        if lifeline_open:
            return False
        silent_s = time.monotonic() - self._heard[1]
        waiting = False
        for worker in self._follower.active:
            claim = self._claims.get(worker.worker)
            alive = self._is_alive(claim) if claim is not None else False
            if alive is True or (alive is None and silent_s < _SILENCE_S):
                waiting = True
            elif worker.worker not in self._harvested:
                self._harvested.add(worker.worker)
                self._harvest()
                waiting = True
            elif self._drained():
                # It may have written its last words between our last look and its death: hence only once drained.
                worker.lost = True
                self._observe([Observation("worker_lost", worker.attempt, self._after, {"worker": worker.worker})])
            else:
                waiting = True
        return not waiting

    def finish(self) -> None:
        """Evaluates what is left, writes final findings and statuses, and gives the lease back."""
        while not self._drained():
            pass
        for views in self._follower.drain():
            self._evaluated(views)
        if not self._follower.active:
            # Else this evaluator was told to go while the training goes on, and the rules are not done.
            last = [worker.view for worker in self._follower.workers.values() if worker.view is not None]
            self._report(self._engine.finish(last))
        self._write(self._engine.take_changed())
        self._write_statuses()
        self.close()

    def close(self) -> None:
        """Gives the lease back."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _is_alive(self, claim: Claim) -> bool | None:
        """Whether a process may still write for a worker: its own, or for a moment one that recovers its last steps."""
        if claim.harvest and time.time_ns() - claim.wall_ns > _HARVEST_NS:
            return False
        return is_alive(claim)

    def _harvest(self) -> None:
        """Recovers what a dead worker recorded last; whatever comes of it is read like everything else."""
        try:
            harvest(self._store, by="evaluator", attempt=self._config.attempt)
        except WatchglassError as error:
            print(f"watchglass: the last steps of a killed worker are not recovered yet: {error}", file=sys.stderr)
        self._claims = read_claims(self._store, self._config.attempt)

    def _drained(self) -> bool:
        """Reads everything that is there; returns whether there was nothing."""
        before = self._follower.frames
        for views in self._follower.poll(full=True):
            self._evaluated(views)
        return self._follower.frames == before

    def _evaluated(self, views: list[StepView]) -> None:
        for view in views:
            self._after = view.records.end.order
            if view.mode is Mode.TRAIN:
                self._train_steps[view.worker] = view.train_step
                lengths = self._lengths.setdefault(view.worker, deque(maxlen=32))
                lengths.append((view.end_ns - view.start_ns) / 1e9)
        self._report(self._engine.feed(views))
        errors = self._engine.take_errors()
        self._observe(
            [
                Observation("rule_error", view.attempt, view.records.end.order, {"rule": rule, "traceback": text})
                for view, rule, text in errors
            ]
        )

    def _report(self, findings: list[Finding]) -> None:
        """Acts first: between a finding and the request to stop lies nothing that takes time."""
        self._observe([seen for finding in findings for action in self._actions for seen in action.found(finding)])
        self._write(findings)
        if self._config.quiet or self._output is None:
            return
        for finding in findings:
            self._output.write(f"watchglass: {finding.severity.value}: {finding.message} ({finding.rule})\n")
        self._output.flush()

    def _observe(self, observations: list[Observation]) -> None:
        self._write(observations)

    def _write(self, records: list[Finding] | list[Observation] | list[RuleStatus]) -> None:
        if not records or self._journal is None:
            return
        try:
            self._journal.write(records)
        except StoreError as error:
            # The disk is full or away. Judging and stopping go on; the findings can be replayed from the run.
            print(f"watchglass: {error}", file=sys.stderr)

    def _write_statuses(self) -> None:
        statuses = self._engine.statuses()
        self._write([new for new in statuses if new not in self._statuses])
        self._statuses = statuses

    def _workers(self) -> list[Worker]:
        return [self._worker(worker) for worker in self._follower.workers.values()]

    def _worker(self, worker: FollowedWorker) -> Worker:
        claim = self._claims.get(worker.worker)
        # A process that recovers last steps trains nothing, so there is nothing in it to stop.
        alive = worker.active and (claim is None or (not claim.harvest and is_alive(claim) is not False))
        lengths = self._lengths.get(worker.worker)
        return Worker(
            worker.worker, alive, self._train_steps.get(worker.worker, -1),
            statistics.median(lengths) if lengths else 0.0, claim,
        )  # fmt: skip


class _Lifeline:
    """Standard input as a sign of life of whoever started this process; what comes through it is thrown away."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.open = True

    def wait(self, seconds: float) -> bool:
        """Sleeps, but wakes when the lifeline closes; returns whether it is open."""
        if not self.open:
            time.sleep(seconds)
            return False
        try:
            ready, _, _ = select.select([self._descriptor], [], [], seconds)
            if ready and not os.read(self._descriptor, 4096):
                self.open = False
        except (OSError, ValueError):
            self.open = False
        return self.open


class _Terminated(Exception):
    """SIGTERM arrived."""


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def main(arguments: list[str]) -> int:
    """Runs the evaluator process; the one argument is an :class:`EvaluatorConfig` as JSON. Returns its exit status."""
    if len(arguments) != 1:
        print("usage: python -m watchglass.evaluate CONFIG_AS_JSON", file=sys.stderr)
        return 2
    # Ctrl-C goes to the whole process group: the training decides what it means, and we follow it to its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _on_sigterm)
    lifeline = _Lifeline(0)
    try:
        config = EvaluatorConfig.from_json(arguments[0])
        evaluator = Evaluator(config, output=sys.stderr)
        evaluator.open(lifeline.wait)
    except WatchglassError as error:
        print(f"watchglass: {error}", file=sys.stderr)
        return 2
    except _Terminated:
        return 0
    try:
        while True:
            new = evaluator.turn()
            if not new and evaluator.over(lifeline_open=lifeline.open):
                break
            lifeline.wait(0.0 if new and lifeline.open else config.poll_s)
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except WatchglassError as error:
        print(f"watchglass: {error}", file=sys.stderr)
        evaluator.close()
        return 2
    evaluator.finish()
    return 0
