"""Reports findings and statuses to the journal, to actions and to the user."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from typing import TextIO

from watchglass.config import Clock, EvaluatorConfig
from watchglass.evaluate.follower import FollowedWorker
from watchglass.evaluate.live.acting import Acting
from watchglass.evaluate.live.journal import BufferedJournal
from watchglass.records import Finding, RuleStatus, Verdict
from watchglass.store import Store
from watchglass.view import printable, verdict_text

#: What each line begins with.
_BRAND = "watchglass: "


class Reporting:
    """Reports what an evaluator finds to the journal, to actions and to an output. For one thread."""

    def __init__(
        self,
        store: Store,
        config: EvaluatorConfig,
        run_id: str,
        output: TextIO | None,
        label: str = "",
        clock: Clock = time,
    ) -> None:
        """Builds the actions; nothing is written before :meth:`begin`.

        Args:
            store: The run's store.
            config: The settings of the evaluator.
            run_id: Identifier of the run.
            output: Where lines are printed, None for nowhere.
            label: What each line begins with, where several runs are followed.
            clock: The time.

        Raises:
            WatchglassError: An action or a parameter is invalid.
        """
        self._quiet, self._output, self._label = config.quiet, output, label
        self._continues = config.continues
        self.acting = Acting(store, config, run_id, clock=clock)
        self.journal = BufferedJournal(store, self.report, clock)
        self._statuses: dict[str, RuleStatus] = {}
        self._reported: set[str] = set()
        self._history: set[str] = set()
        self._first_attempt = 0
        #: Whether everything was read that was there when the evaluation began. Until then the statuses of an earlier
        #: evaluator are newer than those of the rules.
        self.caught_up = False

    def begin(self, attempt: int) -> None:
        """Go on from what earlier evaluators wrote; the journal is open.

        Args:
            attempt: The newest attempt: findings in earlier ones are history and are not reported.
        """
        records = self.journal.records
        self._first_attempt = attempt
        self._history = {record.id for record in records if isinstance(record, Finding)}
        if self._continues:
            self._reported |= self._history
        self._statuses = {record.rule: record for record in records if isinstance(record, RuleStatus)}
        self.acting.resume(records)

    def findings(self, findings: Sequence[Finding], workers: Collection[FollowedWorker]) -> None:
        """Reports new findings. A stop is requested first, before anything that takes time.

        Args:
            findings: The new findings.
            workers: Workers of the run, as far as they were read.
        """
        if not findings:
            return
        self.journal.write(self.acting.stop([each for each in findings if _goes_on(each.attempt, workers)]))
        news = [f for f in findings if f.attempt >= self._first_attempt and f.id not in self._history]
        self.journal.write([*self.acting.found(news), *findings])
        names = {worker.worker for worker in workers}
        for finding in findings if not self._quiet else ():
            if finding.id not in self._reported:
                self._reported.add(finding.id)
                # A message says itself which ranks it is about where it compares them.
                ranked = bool(finding.worker) and (len(names) > 1 or finding.worker != "worker_0")
                where = f" on {printable(finding.worker)}" if ranked else ""
                begin, columns = f"{_BRAND}{self._label}", _columns(self._output)
                said, whose = f"{finding.severity.value}: {printable(finding.message)}", f" ({finding.rule}{where})"
                room = columns - len(begin) if columns else None
                self._print(f"{_in_a_line(said, whose, room)}\n")

    def statuses(self, statuses: Sequence[RuleStatus], attempt: int) -> None:
        """Reports changes of status.

        Args:
            statuses: One per rule.
            attempt: The newest attempt.
        """
        changed = [
            (before, now)
            for now in statuses
            for before in [self._statuses.get(now.rule)]
            if now != before and (self.caught_up or before is None)
        ]
        if changed:
            self.journal.write([*self.acting.statuses(changed, attempt), *(now for _, now in changed)])
            self._statuses.update({now.rule: now for _, now in changed})

    def conclude(self, verdict: Verdict) -> None:
        """Print a verdict."""
        self._print(f"verdict on {printable(verdict.run)}\n{verdict_text(verdict)}")

    def report(self, sentence: str) -> None:
        """Prints a sentence for the user."""
        self._print(f"{printable(sentence)}\n")

    def _print(self, text: str) -> None:
        if self._output is not None:
            self._output.write(f"{_BRAND}{self._label}{text}")
            self._output.flush()


def _in_a_line(said: str, whose: str, room: int | None) -> str:
    """What a finding says and whose it is, on a terminal in ``room`` columns: ``watchglass explain`` shows the rest."""
    if room is None or len(said) + len(whose) <= room:
        return said + whose
    return said[: max(0, room - len(whose) - 1)].rstrip() + "…" + whose


def _columns(output: TextIO | None) -> int | None:
    """The width of a terminal; None if the output is none, or has no size."""
    try:
        return os.get_terminal_size(output.fileno()).columns if output is not None else None
    except (OSError, ValueError):
        return None


def _goes_on(attempt: int, workers: Collection[FollowedWorker]) -> bool:
    """Whether an active run exists that can be acted on: what an earlier attempt did wrong is history."""
    newest = max((worker.attempt for worker in workers), default=attempt)
    return attempt >= newest and any(worker.active for worker in workers if worker.attempt == attempt)
