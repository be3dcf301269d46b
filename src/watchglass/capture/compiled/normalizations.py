"""Fact ``running_statistics`` of compiled steps: moving averages of modules that normalise."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from watchglass.capture.arrays import DeferredNumbers, Elements
from watchglass.capture.compiled.collecting import ValuePart
from watchglass.capture.compiled.reading import ByPart, some, whole
from watchglass.capture.facts.running_moments import CHANNELS, ELEMENTS, MOST, Row, RunningMoments
from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import Mode, facts


class NormalizationFacts:
    """Makes the fact at the 1st, 2nd, 4th, 8th ... captured step of a mode. For the training thread.

    Args:
        source: The source of facts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._running = RunningMoments()
        self._counts = dict.fromkeys(Mode, 0)

    def save(self, step: OpenStep, found: ByPart, in_training: bool | None = None) -> None:
        """Add the fact about the modules of which averages were collected.

        Args:
            step: The step.
            found: Its values.
            in_training: Whether the model runs in training mode; None where the mode of the step says it.
        """
        means = {what.place.path: (what, value) for what, value in found.get(ValuePart.MEAN, ())}
        variances = {what.place.path: value for what, value in found.get(ValuePart.VARIANCE, ())}
        if not means:
            return
        self._counts[step.mode] += 1
        if not is_power_of_two(self._counts[step.mode]):
            return
        training = step.mode is Mode.TRAIN
        given = {what.place.path: value for what, value in reversed(found.get(ValuePart.INPUT, ()))}
        rows: list[Row] = []
        for path, (what, value) in list(means.items())[:MOST]:
            mean = some(value, CHANNELS)
            variance = some(variances[path], CHANNELS) if path in variances else None
            if mean is None or variance is None:
                continue
            moments = _moments(given[path], math.prod(value.shape)) if training and path in given else (None, None)
            about = what.normalization or facts.NormalizationState(training=training)
            about = replace(about, module=path, type=what.place.module_type)
            rows.append((about, (mean, variance, *moments, None)))
        if rows:
            whole = training if in_training is None else in_training
            make = functools.partial(self._running.fact, whole, rows)
            step.records.add_fact(DeferredFact(facts.NormalizationStatistics, make), self._source)


def _moments(given: Any, channels: int) -> tuple[Elements | None, Elements | None]:
    """Means and variances of what a module gets, by channel, of some channels; None where they cannot be compared."""
    shape = tuple(given.shape)
    axis = next((at for at in (-1, 1) if len(shape) > 1 and shape[at] == channels), None)
    taken = whole(given) if axis is not None and channels <= CHANNELS else None
    if axis is None or taken is None or math.prod(shape) <= channels:
        return None, None

    @functools.cache
    def read() -> tuple[Any, Any]:
        rows = np.moveaxis(taken.numbers(), axis, -1).reshape(-1, channels)
        rows = rows[:: -(-rows.size // ELEMENTS)].astype(np.float64)
        return rows.mean(axis=0), rows.var(axis=0)

    return Elements(DeferredNumbers(lambda: read()[0])), Elements(DeferredNumbers(lambda: read()[1]))
