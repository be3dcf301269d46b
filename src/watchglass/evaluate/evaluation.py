"""What rules say of a run: the result of every evaluation, live, replayed or put together from parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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


def most_steps(train_steps: Mapping[tuple[int, str], int]) -> int:
    """TRAIN steps of the worker with the most, over all attempts, of those by attempt and worker."""
    return max(steps_by_worker(train_steps).values(), default=0)


def steps_by_worker(train_steps: Mapping[tuple[int, str], int]) -> Counter[str]:
    """TRAIN steps by worker, of those by attempt and worker."""
    found: Counter[str] = Counter()
    for (_, worker), steps in train_steps.items():
        found[worker] += steps
    return found
