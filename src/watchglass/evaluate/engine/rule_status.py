"""Statuses of rules, from plain facts per worker, of one engine or of the parts of several.

The status of a rule covers all workers and attempts, but each of its facts belongs to one of them. So the facts of
several engines, over some workers and some rules each, give the same statuses as those of one engine over all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchglass.records import (
    FEWEST_EXAMINED,
    Finding,
    RuleStatus,
    Severity,
    Status,
    count,
    record_as_json,
    record_from_json,
)
from watchglass.store import layout

Order = tuple[int, int, int]
#: Attempt, worker and model of one instance of a rule.
SeatKey = tuple[int, str, int]
#: Workers that train together (``""``, or the one that trains separately), worker and model.
ExaminedKey = tuple[str, str, int]


@dataclass(frozen=True)
class Fault:
    """Why a rule stopped on one worker of one attempt."""

    order: Order  #: :attr:`StepEnd.order` of the step at which it stopped.
    text: str  #: The text of its status.


@dataclass(frozen=True)
class Met:
    """Whether one need of a rule was met on one worker."""

    satisfied: bool  #: Whether the data came at all.
    reason: str  #: Why the rule starves; "" where it does not.
    certain: bool  #: Whether the reason holds before the run has ended; else the data may only be late.
    #: Whether the run records such data whatever its settings are, and the script gave none: then the rule does not
    #: apply.
    absent: bool = False


@dataclass(frozen=True)
class WorkerFacts:
    """The facts of one rule about one model on one worker of one attempt."""

    attempt: int  #: The attempt.
    worker: str  #: The worker.
    #: Each with the :attr:`StepEnd.order` of its first step, in the order in which they were found.
    findings: tuple[tuple[Order, Finding], ...] = ()
    dropped: int = 0  #: Number of findings that were not kept.
    fault: Fault | None = None  #: Why the rule stopped, None where it did not.
    not_applicable: str = ""  #: Why it does not apply to this run; "" if it applies or that is not known yet.
    model: int = 0  #: Number of the model.


@dataclass(frozen=True)
class RuleFacts:
    """The facts of one rule, for its status."""

    name: str  #: Name of the rule.
    so_far: tuple[WorkerFacts, ...] = ()  #: Facts per worker, model and attempt, before the run ended.
    #: The same after the end of the run or attempt, for instances that have seen it.
    at_end: tuple[WorkerFacts, ...] = ()
    #: Per worker and model, one for each need; under ("", 0) the needs where no worker was seen.
    needs: Mapping[tuple[str, int], tuple[Met, ...]] = field(default_factory=dict)
    not_applicable: str = ""  #: Why the rule was never called, "" where it was.
    of_tensors: bool = False  #: Whether it needs tensors of TRAIN steps.
    parameters: dict[str, Any] = field(default_factory=dict)  #: As of its status.


@dataclass(frozen=True)
class Examined:
    """TRAIN steps of a model on a worker, over all attempts."""

    steps: int = 0  #: Their number.
    captured: int = 0  #: At how many of them tensors were examined.

    @property
    def hardly(self) -> bool:
        """Whether these are too few for the absence of findings to say something."""
        return self.captured < min(FEWEST_EXAMINED, self.steps)


@dataclass(frozen=True)
class PartialEvaluation:
    """The result of one engine over some workers and some rules of a run. See :func:`watchglass.evaluate.merge`.

    Attributes:
        run: Location of the run.
        rules: By position in the list of all rules.
        train_steps: TRAIN steps seen, per attempt and worker.
        newest: Newest attempt that was seen; -1 for none.
        running: Workers of that attempt that may still write.
        problems: The unreadable parts of the run, one line each.
        examined: TRAIN steps of each model.
    """

    run: str
    rules: Mapping[int, RuleFacts]
    train_steps: Mapping[tuple[int, str], int] = field(default_factory=dict)
    newest: int = -1
    running: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    examined: Mapping[ExaminedKey, Examined] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """This part as plain JSON types."""
        return record_as_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartialEvaluation:
        """The part that :meth:`to_json` gave."""
        return record_from_json(cls, data)


class Tally:
    """Running counts of a rule's findings and failures, over all workers and attempts."""

    def __init__(self) -> None:
        self._found = self._issues = False
        self._dropped = 0
        self._fault: tuple[tuple[Any, ...], str] | None = None

    def find(self, findings: Iterable[Finding], dropped: int = 0) -> None:
        """Counts findings, and those that were not kept."""
        for finding in findings:
            self._found = True
            self._issues = self._issues or finding.severity is not Severity.INFO
        self._dropped += dropped

    def fail(self, attempt: int, worker: str, model: int, fault: Fault) -> None:
        """Counts a failure on one model on one worker of one attempt; the status names the earliest step."""
        first = (attempt, fault.order, layout.worker_order(worker), model)
        if self._fault is None or first < self._fault[0]:
            self._fault = first, fault.text

    def status(
        self, name: str, needs: Iterable[Met], *, ended: bool, silent: Callable[[], str], unexamined: Callable[[], str]
    ) -> RuleStatus:
        """The status of a rule that was called.

        Args:
            name: Name of the rule.
            needs: The state of each need over all workers, see :func:`best`.
            ended: Whether the run has ended.
            silent: Returns why the rule does not apply to the run, see :func:`silence`.
            unexamined: Returns which models it could not judge, see :func:`hardly_examined`.
        """
        if self._fault is not None:
            return RuleStatus(name, Status.ERROR, self._fault[1])
        if self._issues:
            were = "was" if self._dropped == 1 else "were"
            more = f"{count(self._dropped, 'further finding')} {were} counted and not kept"
            reason = more if self._dropped else ""
            return RuleStatus(name, Status.ISSUES_FOUND, reason)
        if ended and (reason := silent()):
            return RuleStatus(name, Status.NOT_APPLICABLE, reason)
        if not self._found:
            unmet = next((met for met in needs if met.reason and (ended or met.certain)), None)
            if unmet is not None:
                status = Status.NOT_APPLICABLE if unmet.absent else Status.STARVED
                return RuleStatus(name, status, unmet.reason)
        if not ended:
            return RuleStatus(name, Status.IN_PROGRESS)
        few = unexamined()
        return RuleStatus(name, Status.STARVED if few else Status.NO_ISSUES_FOUND, few)


def status_of(
    name: str,
    facts: Sequence[WorkerFacts],
    needs: Mapping[tuple[str, int], Sequence[Met]],
    *,
    ended: bool,
    not_applicable: str = "",
    unexamined: Callable[[], str],
) -> RuleStatus:
    """The status of a rule.

    Args:
        name: Name of the rule.
        facts: One for each worker, model and attempt.
        needs: As :attr:`RuleFacts.needs`.
        ended: Whether the run has ended.
        not_applicable: Why the rule was never called, "" where it was.
        unexamined: As of :meth:`Tally.status`.
    """
    if not_applicable:
        return RuleStatus(name, Status.NOT_APPLICABLE, not_applicable)
    tally = Tally()
    for worker in facts:
        tally.find((finding for _, finding in worker.findings), worker.dropped)
        if worker.fault is not None:
            tally.fail(worker.attempt, worker.worker, worker.model, worker.fault)
    seen = sorted((key for key in needs if key[0]), key=need_order) or list(needs)
    columns = zip(*(needs[key] for key in seen), strict=True)
    return tally.status(name, map(best, columns), ended=ended, silent=lambda: silence(facts), unexamined=unexamined)


def best(column: Iterable[Met]) -> Met:
    """The state of one need over all workers and models, in order: it is met where any of them meets it."""
    rows = []
    for met in column:
        if met.satisfied and not met.reason:
            return met
        rows.append(met)
    least = [met for met in rows if met.satisfied] or rows
    reason = "" if any(not met.reason for met in least) else least[0].reason
    certain, absent = all(met.certain for met in least), all(met.absent for met in least)
    return Met(least[0].satisfied, reason, certain, absent)


def silence(facts: Sequence[WorkerFacts]) -> str:
    """Why a rule does not apply, from the first worker; "" where it applies to any worker in any attempt."""
    silent = [worker for worker in facts if worker.not_applicable]
    return min(silent, key=_place).not_applicable if silent and len(silent) == len(facts) else ""


def in_order(facts: Iterable[WorkerFacts]) -> list[WorkerFacts]:
    """By attempt, then worker, then model."""
    return sorted(facts, key=_place)


def _place(facts: WorkerFacts) -> tuple[Any, ...]:
    return facts.attempt, layout.worker_order(facts.worker), facts.model


def need_order(key: tuple[str, int]) -> tuple[Any, ...]:
    """Sort key of a worker and a model."""
    return layout.worker_order(key[0]), key[1]
