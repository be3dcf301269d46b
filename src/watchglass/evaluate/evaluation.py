"""What rules say of a run: the result of every evaluation, live, replayed or put together from parts."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records import Finding, RuleStatus


@dataclass(frozen=True)
class Evaluation:
    """What rules say of a run.

    Attributes:
        run: Location of the run.
        findings: In the order of attempt, step, rule, worker.
        statuses: One per rule.
        train_steps: TRAIN steps of the worker with the most, over all attempts.
        ended: Whether the training has ended (finished, failed, stopped or died); False while it still runs.
        problems: What of the run could not be read, one line each.
    """

    run: str
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    train_steps: int
    ended: bool
    problems: tuple[str, ...] = ()
