"""The evaluator: follows a run while it is written, keeps its journal, acts on what it finds.

One class serves the process beside a training, which has a lifeline to whoever started it, and a follower anywhere
else, which has nothing but the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from watchglass.actions import Action, StopTraining
from watchglass.config import EvaluatorConfig
from watchglass.errors import CompactedError, StoreError, WatchglassError
from watchglass.evaluate.departures import Departures
from watchglass.evaluate.engine import Engine
from watchglass.evaluate.follower import Follower
from watchglass.evaluate.journal import Journal
from watchglass.evaluate.presence import Presence
from watchglass.evaluate.replay import Evaluation, most_steps
from watchglass.evaluate.roster import Roster
from watchglass.records import Finding, Observation, RuleStatus
from watchglass.run import StepView
from watchglass.store import Pin, Store, open_store, pace_of, pin

#: How long to wait for an evaluator of an earlier attempt to give up the journal.
_LEASE_S = 30.0
#: A worker on another machine that is silent for so long, with the lifeline gone, is taken for lost.
_SILENCE_S = 60.0
#: Longest pause between tries of a store that is away, and how long the end of a training waits for it.
_BACKOFF_S, _PATIENCE_S = 30.0, 300.0
#: How long nothing new may come after the end of a training: of one that ended in order, and of one that may be
#: started again.
_SETTLED_S, _RESTARTED_S = 3.0, 30.0
#: How long is read on of a training that goes on, by an evaluator that was told to go.
_LAST_LOOK_S = 3.0


class Evaluator:
    """Follows one attempt, or all of a run, and keeps the journal.

    For one thread; :meth:`turn` does what there is to do and returns, and :attr:`pause_s` says when to come again. A
    store that is away ends nothing: it is asked again, ever more rarely, and nothing is lost meanwhile.
    """

    def __init__(self, config: EvaluatorConfig, *, store: Store | None = None, output: TextIO | None = None) -> None:
        """Builds the rules; writes to the run only from :meth:`open` on.

        Raises:
            WatchglassError: A rule or parameter is not right, or there is no such run.
        """
        self._config = config
        self._output = output
        self._store = store if store is not None else open_store(config.run)
        self._own_store = store is None
        self._pin: Pin | None = None
        self._engine = Engine(config.rules, calibration=config.calibration)
        self._follower = Follower(self._store, attempt=config.attempt)
        self._journal = Journal(self._store, self._say)
        self._presence = Presence(self._store, config.attempt, lost_after_s=config.lost_after_s)
        self._actions: list[Action] = []
        if config.stop_on is not None:
            stop = StopTraining(
                self._store, config.attempt, stop_on=config.stop_on, grace_s=config.grace_s, poll_s=config.poll_s
            )
            self._actions.append(stop)
        self._statuses: tuple[RuleStatus, ...] = ()
        self._roster = Roster(self._presence)
        self._departures = Departures(self._store, self._presence, self._roster, self._journal.write)
        self._told: set[str] = set()
        self._away_since_s: float | None = None
        self._backoff_s = 0.0
        self._outdated = False
        self._news_s = time.monotonic()
        self._finished = False

    @property
    def poll_s(self) -> float:
        """Seconds between looks for new segments."""
        return self._config.poll_s if self._config.poll_s is not None else pace_of(self._store).poll_s

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn makes sense: longer while the store is away."""
        return max(self.poll_s, self._backoff_s)

    @property
    def away_s(self) -> float:
        """Seconds since which the store has not answered; 0 while it does."""
        return 0.0 if self._away_since_s is None else time.monotonic() - self._away_since_s

    def open(self, pause: Callable[[float], bool], *, patience_s: float = _LEASE_S) -> None:
        """Takes the lease of the journal, waiting for an evaluator of an earlier attempt that is about to end.

        From here on nothing is compacted away that was not read yet.

        Args:
            pause: Waits so many seconds, or less; returns whether waiting on makes sense.
            patience_s: How long to wait.

        Raises:
            RunExistsError: Another one still writes it.
        """
        try:
            self._journal.open(pause, patience_s=patience_s, poll_s=self.poll_s)
            self._pin = pin(self._store)
            self._write_statuses()
        except WatchglassError:
            self.close()
            raise

    def turn(self) -> bool:
        """Reads and evaluates what is new; returns whether anything was. Every new finding is acted upon at once.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        new = self._asked(self._turn)
        if new is None:
            return self._outdated
        if self._away_since_s is not None:
            away_s = self.away_s
            self._say(f"the store answers again, after {away_s:.0f} s; nothing was missed")
            self._away_since_s, self._backoff_s = None, 0.0
            self._news_s += away_s
            self._presence.excuse(away_s)
        return new

    def over(self, *, lifeline_open: bool) -> bool:
        """Whether nothing more will come: the lifeline is gone and every worker that joined has left or is dead."""
        if lifeline_open:
            return False
        if self._away_since_s is not None:
            return self.away_s > _PATIENCE_S
        return self._asked(lambda: self._waits(_SILENCE_S)) is False

    def ended(self) -> str:
        """How the training ended, in words, once nothing more is expected of it; "" while it goes on.

        For who has no lifeline: the training has ended when all its workers have left or were lost, and no new attempt
        came for a moment.
        """
        if self._away_since_s is not None or self._asked(lambda: self._waits(None)) is not False:
            return ""
        presence = self._presence
        newest = presence.newest
        team = [worker for worker in self._follower.workers.values() if worker.attempt == newest]
        if not team and not presence.launch_ended(newest):
            return ""
        ends = {str(worker.left.get("status", "finished")) if worker.left else "lost" for worker in team}
        in_order = ends <= {"finished", "stopped"} and (team or presence.launch_succeeded(newest))
        quiet_s = time.monotonic() - max(self._news_s, presence.begun_s)
        if quiet_s < (_SETTLED_S + self.poll_s if in_order else _RESTARTED_S):
            return ""
        return " and ".join(sorted(ends)) or "ended before its first training step"

    def begun(self) -> bool:
        """Whether any worker has joined yet."""
        return bool(self._follower.workers)

    def finish(self, *, patience_s: float = _PATIENCE_S / 5) -> None:
        """Evaluates what is left, writes final findings and statuses, and gives the lease back.

        Args:
            patience_s: How long a store that is away is asked again. What could then not be read leaves the rules
                in progress, so that nobody takes this for their last word.

        Raises:
            RunExistsError: Another evaluator has taken the journal over.
        """
        try:
            read = self._again_while_away(self._drain_all, patience_s)
            if read and not self._is_active():
                # Else this evaluator was told to go while the training goes on, and the rules are not done.
                last = [worker.view for worker in self._follower.workers.values() if worker.view is not None]
                self._report(self._engine.finish(last))
                self._finished = True
            self._journal.write(self._engine.take_changed())
            self._write_statuses()
            self._again_while_away(self._journal.flush, patience_s)
        finally:
            self.close()

    def close(self) -> None:
        """Gives the lease back, and lets go of what it holds; what a store that is away keeps ends by itself."""
        away = self._away_since_s is not None
        self._journal.close(give_back=not away)
        if self._pin is not None and not away:
            self._pin.close()
        self._pin = None
        if self._own_store:
            self._store.close()

    def evaluation(self) -> Evaluation:
        """What the rules say so far."""
        return Evaluation(
            self._config.run, tuple(self._engine.findings), self._engine.statuses(), most_steps(self._engine),
            self._finished, tuple(str(problem) for problem in self._follower.problems),
        )  # fmt: skip

    def _turn(self) -> bool:
        before = self._follower.frames
        for views in self._follower.poll():
            self._evaluated(views)
            self._stay()
        new = self._follower.frames != before
        if new:
            self._news_s = time.monotonic()
            self._departures.listen(self._follower)
            self._write_statuses()
        busy = any(action.busy for action in self._actions)
        if self._presence.look(self.poll_s if busy else pace_of(self._store).liveness_s):
            self._journal.write(self._engine.take_changed())
        if busy:
            workers = self._roster.workers(self._follower)
            self._journal.write([seen for action in self._actions for seen in action.tick(workers)])
        self._stay()
        self._journal.flush()
        return new

    def _stay(self) -> None:
        """Show that we live, also in the middle of much to evaluate: what nobody renews is taken from us."""
        self._journal.renew()
        if self._pin is not None:
            self._pin.tick()

    def _waits(self, silence_s: float | None) -> bool:
        """Whether some worker may still write."""
        return self._departures.awaited(self._follower, silence_s, self._drained)

    def _drained(self) -> bool:
        """Reads everything that is there; returns whether there was nothing."""
        before = self._follower.frames
        for views in self._follower.poll(full=True):
            self._evaluated(views)
            self._stay()
        return self._follower.frames == before

    def _is_active(self) -> bool:
        """Whether more may come from the newest attempt."""
        workers = self._follower.workers.values()
        newest = max([self._presence.newest, *(worker.attempt for worker in workers)])
        return any(worker.active for worker in workers if worker.attempt == newest)

    def _drain_all(self) -> bool:
        give_up_s = time.monotonic() + _LAST_LOOK_S
        while not self._drained() and (time.monotonic() < give_up_s or not self._is_active()):
            pass
        for views in self._follower.drain():
            self._evaluated(views)
        return True

    def _evaluated(self, views: list[StepView]) -> None:
        for view in views:
            self._roster.evaluated(view)
        self._report(self._engine.feed(views))
        for view, rule, text in self._engine.take_errors():
            data = {"rule": rule, "traceback": text}
            self._journal.write([Observation("rule_error", view.attempt, view.records.end.order, data)])

    def _report(self, findings: list[Finding]) -> None:
        """Acts first: between a finding and the request to stop lies nothing that takes time."""
        for finding in findings:
            if self._goes_on(finding.attempt):
                self._journal.write([seen for action in self._actions for seen in action.found(finding)])
        self._journal.write(findings)
        if self._config.quiet or self._output is None:
            return
        for finding in findings:
            if finding.id not in self._told:
                self._told.add(finding.id)
                self._output.write(f"watchglass: {finding.severity.value}: {finding.message} ({finding.rule})\n")
        self._output.flush()

    def _goes_on(self, attempt: int) -> bool:
        """Whether there is a training to act on: what an earlier attempt did wrong is history."""
        workers = self._follower.workers.values()
        newest = max((worker.attempt for worker in workers), default=attempt)
        return attempt >= newest and any(worker.active for worker in workers if worker.attempt == attempt)

    def _write_statuses(self) -> None:
        statuses = self._engine.statuses()
        self._journal.write([new for new in statuses if new not in self._statuses])
        self._statuses = statuses

    def _gone_away(self, error: StoreError) -> None:
        if self._away_since_s is None:
            self._away_since_s = time.monotonic()
            self._say(f"the store does not answer and is asked again: {error}")
        self._backoff_s = min(_BACKOFF_S, max(self.poll_s, 2 * self._backoff_s))

    def _asked(self, question: Callable[[], bool]) -> bool | None:
        """The answer of ``question``; None where the store is away, or what was read has been compacted."""
        try:
            if self._outdated:
                self._begin_again()
            return question()
        except StoreError as error:
            self._gone_away(error)
        except CompactedError:
            self._outdated = True
        return None

    def _again_while_away(self, work: Callable[[], bool], patience_s: float) -> bool:
        """Do ``work`` until it has succeeded, or the store has been away for too long; returns whether it has."""
        give_up_s = time.monotonic() + patience_s
        while True:
            error = ""
            try:
                if self._outdated:
                    self._begin_again()
                if work():
                    self._away_since_s = None
                    return True
            except CompactedError:
                self._outdated = True
                continue
            except StoreError as refused:
                error = str(refused)
            if time.monotonic() >= give_up_s:
                self._say(f"not everything could be evaluated and written; watchglass check does it again. {error}")
                self._away_since_s = time.monotonic() if self._away_since_s is None else self._away_since_s
                return False
            time.sleep(self.poll_s)

    def _begin_again(self) -> None:
        """What was being read has been replaced by a compacted generation: all of it is evaluated again."""
        held, self._pin = self._pin, pin(self._store)
        if held is not None:
            held.close()
        self._follower = Follower(self._store, attempt=self._config.attempt)
        self._engine = Engine(self._config.rules, calibration=self._config.calibration)
        self._departures.begin_again()
        self._outdated = False

    def _say(self, sentence: str) -> None:
        if self._output is not None:
            self._output.write(f"watchglass: {sentence}\n")
            self._output.flush()
