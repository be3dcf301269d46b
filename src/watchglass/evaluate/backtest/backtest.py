"""Where a rule would have fired on stored runs, and how good that is according to their labels.

One pass over a run evaluates the rule with all combinations of parameters at once.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.evaluate.backtest.labels import Label
from watchglass.evaluate.engine.partial import merge
from watchglass.evaluate.engine.rule_status import RuleFacts
from watchglass.evaluate.replaying import replay_part
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status


class BacktestOutcome(str, Enum):
    """The result of a rule on one run, with the label of the run."""

    FOUND = "found"
    MISSED = "missed"
    EARLY = "early"
    LATE = "late"
    FALSE_ALARM = "false alarm"
    QUIET = "quiet"
    UNLABELLED = "-"


@dataclass(frozen=True)
class Firing:
    """Where a rule fired on one run."""

    status: RuleStatus  #: Status of the rule at the end of the stored data, with the reason.
    #: TRAIN step of the first finding that counts; None where it did not fire. Of a finding in an evaluation, the step
    #: before it.
    first_step: int | None = None
    last_step: int | None = None  #: TRAIN step at which one was seen last.
    count: int = 0  #: Steps at which findings were seen, over all findings.
    severity: Severity | None = None  #: The worst.
    worker: str = ""  #: The worker of the first.
    message: str = ""  #: The sentence of the first.

    @property
    def fired(self) -> bool:
        """Whether it fired."""
        return self.first_step is not None


@dataclass(frozen=True)
class TestedRun:
    """A rule on one run."""

    __test__ = False  # of a rule, not of pytest's

    run: str  #: Location of the run.
    firings: tuple[Firing, ...]  #: For each combination of parameters.
    problems: tuple[str, ...] = ()  #: What could not be read, one line each.


@dataclass(frozen=True)
class Score:
    """How good one combination of parameters is on runs with labels. Shares are None where there is no such run."""

    sick: int  #: Runs that are sick by their label.
    healthy: int  #: Runs that are not.
    found: int  #: Sick runs on which the rule fired first between ``since_step`` and ``until_step``.
    missed: int  #: Sick runs on which it did not fire, or only after ``until_step``.
    early: int  #: Sick runs on which it fired before ``since_step``: nothing was wrong yet.
    false_alarms: int  #: Healthy runs on which it fired.
    recall: float | None  #: ``found`` of ``sick``.
    false_alarm_rate: float | None  #: ``false_alarms`` of ``healthy``.
    precision: float | None  #: ``found`` of all labelled runs on which it fired in time or for nothing.
    median_delay: float | None  #: Of the runs that were found, TRAIN steps from ``since_step`` to the first finding.
    worst_delay: int | None  #: The longest of these.
    fired: int  #: Runs on which it fired, labelled or not.


def combinations(spec: RuleSpec, sweeps: Mapping[str, Sequence[Any]]) -> tuple[RuleSpec, ...]:
    """The rule with every combination of the values of some parameters, in the order in which they are given.

    Args:
        spec: The rule, with the parameters that stay as they are.
        sweeps: Values by parameter.
    """
    names = list(sweeps)
    return tuple(
        RuleSpec(spec.name, {**spec.parameters, **dict(zip(names, values, strict=True))})
        for values in itertools.product(*sweeps.values())
    )


def tested(
    run: str,
    specs: Sequence[RuleSpec],
    *,
    calibration: str = "default",
    severity: Severity = Severity.WARNING,
    rule_timeout_s: float = 30.0,
    progress: Callable[[int], None] | None = None,
) -> TestedRun:
    """Evaluates variants of one rule over a stored run, in one pass. Writes nothing.

    Args:
        run: Location of the run.
        specs: The rule with several combinations of parameters.
        calibration: Which set of thresholds they begin with.
        severity: The lowest severity that counts.
        rule_timeout_s: How long a variant may take over one step.
        progress: Called now and then with the number of TRAIN steps evaluated so far.

    Raises:
        MissingFileError, NotARunError, FormatVersionError: There is no run that this release can read.
        UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`watchglass.rules.build_rule`.
    """
    config = EvaluatorConfig(run, None, tuple(specs), calibration=calibration, rule_timeout_s=rule_timeout_s)
    part = replay_part(run, config, variants=True, progress=progress)
    firings = []
    for number, spec in enumerate(specs):
        facts = part.rules[number]
        one = merge([replace(part, rules={0: facts})], [spec])
        counted = [finding for finding in one.findings if finding.severity.rank >= severity.rank]
        firings.append(_firing(one.statuses[0], counted, _train_steps(facts)))
    return TestedRun(run, tuple(firings), part.problems)


def judge(firing: Firing, label: Label | None, tolerance: int = 0) -> tuple[BacktestOutcome, int | None]:
    """Outcome of a rule on a run, and TRAIN steps from ``since_step`` to the first finding (negative: before it).

    Args:
        firing: Where it fired.
        label: What is known of the run; None for nothing.
        tolerance: Number of steps before ``since_step`` at which a finding still counts, for labels that are not exact.
    """
    if label is None:
        return BacktestOutcome.UNLABELLED, None
    if not label.sick:
        return (BacktestOutcome.FALSE_ALARM if firing.fired else BacktestOutcome.QUIET), None
    if firing.first_step is None:
        return BacktestOutcome.MISSED, None
    delay = None if label.since_step is None else firing.first_step - label.since_step
    if delay is not None and delay < -tolerance:
        return BacktestOutcome.EARLY, delay
    if label.until_step is not None and firing.first_step > label.until_step:
        return BacktestOutcome.LATE, delay
    return BacktestOutcome.FOUND, delay


def score(firings: Mapping[str, Firing], labels: Mapping[str, Label], tolerance: int = 0) -> Score:
    """How good one combination is. Runs without a label are not counted.

    Args:
        firings: By location of the run.
        labels: The same.
        tolerance: See :func:`judge`.
    """
    judged = [judge(firing, labels.get(run), tolerance) for run, firing in firings.items()]
    outcomes = [outcome for outcome, _ in judged]
    found, early = outcomes.count(BacktestOutcome.FOUND), outcomes.count(BacktestOutcome.EARLY)
    missed = outcomes.count(BacktestOutcome.MISSED) + outcomes.count(BacktestOutcome.LATE)
    false_alarms = outcomes.count(BacktestOutcome.FALSE_ALARM)
    sick, healthy = found + early + missed, false_alarms + outcomes.count(BacktestOutcome.QUIET)
    delays = [delay for outcome, delay in judged if outcome is BacktestOutcome.FOUND and delay is not None]
    return Score(
        sick, healthy, found, missed, early, false_alarms,
        recall=_share(found, sick),
        false_alarm_rate=_share(false_alarms, healthy),
        precision=_share(found, found + early + false_alarms),
        median_delay=statistics.median(delays) if delays else None,
        worst_delay=max(delays, default=None),
        fired=sum(firing.fired for firing in firings.values()),
    )  # fmt: skip


def front(scores: Sequence[Score]) -> list[bool]:
    """Which combinations are on the Pareto front: no other is better in recall or false alarms and as good in both.

    A share that is not known counts as the best, for all alike.
    """
    points = [(_or(score.recall, 1.0), _or(score.false_alarm_rate, 0.0)) for score in scores]
    return [not any(_beats(other, point) for other in points) for point in points]


def unanswered(firings: Iterable[Firing]) -> list[RuleStatus]:
    """Statuses of runs of which the rule could say nothing: its data is not there, it does not fit, or it raised."""
    silent = (Status.STARVED, Status.NOT_APPLICABLE, Status.ERROR)
    return [firing.status for firing in firings if firing.status.status in silent]


def _firing(status: RuleStatus, findings: Sequence[Finding], train_steps: Mapping[str, int]) -> Firing:
    if not findings:
        return Firing(status)
    first = min(findings, key=lambda finding: train_steps[finding.id])
    seen_last = [f.last_step if f.mode is Mode.TRAIN else train_steps[f.id] for f in findings]
    return Firing(
        status, train_steps[first.id], max(seen_last), sum(finding.count for finding in findings),
        max((finding.severity for finding in findings), key=lambda severity: severity.rank), first.worker,
        first.message,
    )  # fmt: skip


def _train_steps(facts: RuleFacts) -> dict[str, int]:
    """TRAIN step of each finding's first step: that of the order, which evaluations share with the step before them."""
    return {
        finding.id: max(0, order[0]) for worker in (*facts.so_far, *facts.at_end) for order, finding in worker.findings
    }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other
