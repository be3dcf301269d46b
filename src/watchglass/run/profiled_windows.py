"""What windows of profiled training steps of every kind share when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from watchglass.records import COMPARED_STEPS, Mode, WindowCost
from watchglass.run.worker import Worker
from watchglass.tables import WorkerTables


class _Window(Protocol):
    @property
    def steps(self) -> range: ...


W = TypeVar("W", bound=_Window)


def windows_of(worker: Worker, windows_in: Callable[[str, WorkerTables], list[W]]) -> list[W]:
    """The windows of a worker in all attempts, by first step.

    Args:
        worker: The worker.
        windows_in: Those of one attempt, by the name of the worker and its tables.
    """
    found = [each for tables in worker.attempts.values() for each in windows_in(worker.name, tables)]
    return sorted(found, key=lambda window: window.steps.start)


def whole_cost(cost: WindowCost, first_step: int, tables: WorkerTables) -> WindowCost:
    """The cost of a window; of one that was requested at once, with the steps before as the run has them."""
    if not math.isnan(cost.outside_s):
        return cost
    steps = tables.steps.log.latest
    before = steps[(steps["mode"] == Mode.TRAIN) & (steps["mode_step"] < first_step)][-COMPARED_STEPS - 1 :]
    if len(before) < 2:
        return cost
    seconds = np.diff(before["end_ns"].astype(np.int64)) / np.diff(before["mode_step"]) / 1e9
    return replace(cost, outside_s=float(np.median(seconds)))
