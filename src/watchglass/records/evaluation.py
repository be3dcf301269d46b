"""The result of every evaluation of a run: live, replayed or merged from parts."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.findings import Finding, RuleStatus


@dataclass(frozen=True)
class Evaluation:
    """The reports of the rules on a run.

    Attributes:
        run: Location of the run.
        findings: In the order of attempt, step, rule, worker.
        statuses: One per rule.
        train_steps: TRAIN steps of the worker with the most, over all attempts.
        ended: Whether the run has ended (finished, failed, stopped or died); False while it continues.
        problems: Parts of the run that could not be read, one line each.
    """

    run: str
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    train_steps: int
    ended: bool
    problems: tuple[str, ...] = ()
