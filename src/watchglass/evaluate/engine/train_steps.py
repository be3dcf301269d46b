"""Counts of the TRAIN steps that were evaluated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def most_steps(train_steps: Mapping[tuple[int, str], int]) -> int:
    """TRAIN steps of the worker with the most, over all attempts, of those by attempt and worker."""
    return max(steps_by_worker(train_steps).values(), default=0)


def steps_by_worker(train_steps: Mapping[tuple[int, str], int]) -> Counter[str]:
    """TRAIN steps by worker, of those by attempt and worker."""
    found: Counter[str] = Counter()
    for (_, worker), steps in train_steps.items():
        found[worker] += steps
    return found
