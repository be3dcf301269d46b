"""Fact ``running_statistics``: whether the running statistics of normalisation follow what it normalises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from watchglass.capture.arrays import Elements
from watchglass.records import facts

#: Modules that are recorded, channels of each that are read, and elements of the input from which its moments come.
MOST, CHANNELS, ELEMENTS = 64, 256, 1 << 16
#: A variance below this counts as none.
_LEAST = 1e-12

#: What is known of a module, and its running mean and variance, those of what it normalises, and its count of batches.
Row = tuple[facts.NormalizationState, Sequence[Elements | None]]


class RunningMoments:
    """Compares running statistics with those of the fact before. For the recorder's thread."""

    def __init__(self) -> None:
        # The means of the record before, by module.
        self._last: dict[str, Any] = {}

    def fact(self, training: bool, rows: Sequence[Row]) -> facts.NormalizationStatistics:
        """The fact about some modules of a model, which is trained or not."""
        return facts.NormalizationStatistics(training, tuple(self._module(*row) for row in rows))

    def _module(self, about: facts.NormalizationState, taken: Sequence[Elements | None]) -> facts.NormalizationState:
        arrays: list[Any] = [None if each is None else each.numbers().astype(np.float64) for each in taken]
        mean, variance, input_mean, input_variance, batches = arrays
        before, self._last[about.module] = self._last.get(about.module), mean
        off = ratio = moved = None
        with np.errstate(all="ignore"):
            if before is not None and before.shape == mean.shape:
                moved = _rms((mean - before) / np.sqrt(np.maximum(variance, _LEAST)))
            if input_mean is not None:
                off = _rms((mean - input_mean) / np.sqrt(np.maximum(input_variance, _LEAST)))
                ratio = float(np.median(variance / np.maximum(input_variance, _LEAST)))
        return replace(
            about,
            batches=None if batches is None else int(batches[0]),
            initial=not mean.any() and bool(np.all(variance == 1)),
            moved=_finite(moved),
            mean_off=_finite(off),
            variance_ratio=_finite(ratio),
        )


def _rms(values: Any) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _finite(value: float | None) -> float | None:
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None
