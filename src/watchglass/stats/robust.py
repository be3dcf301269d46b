"""Baselines that outliers do not move: rolling median and MAD of logarithms."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError

#: Turns a median absolute deviation into a standard deviation where values are normal: 1 / Phi^-1(3/4).
_MAD_TO_STD = 1.482602218505602
#: Least spread, in decades: differences below about 2 % are never worth more than one deviation, else a perfectly
#: steady series would make an alarm of its first rounding error.
_LEAST_SPREAD = 0.01


class RollingBaseline:
    """The usual range of a positive series: median and median absolute deviation of log10 over its last values.

    Norms, losses and update ratios spread over decades and are skewed, so logarithms are compared; medians, so that
    the very outliers looked for do not hide themselves. Values that are not positive and finite never enter.
    """

    window: ClassVar = 64  #: Number of values looked back on.
    warmup: ClassVar = 16  #: Number of values before a result is given.

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=self.window)
        self._fit: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self._logs)

    def update(self, value: float) -> None:
        """Add the next value of the series; NaN, infinities, zero and negative values are omitted."""
        if _is_positive(value):
            self._logs.append(math.log10(value))
            self._fit = None

    @property
    def median(self) -> float | None:
        """Median of the values in the window, in their unit; None during warm-up."""
        return None if len(self) < self.warmup else float(10.0 ** self._fitted()[0])

    @property
    def spread(self) -> float | None:
        """Robust standard deviation of log10 in decades, at least 0.01; None during warm-up."""
        return None if len(self) < self.warmup else self._fitted()[1]

    def z(self, value: float) -> float | None:
        """How many robust deviations ``log10(value)`` lies above the median of the values so far.

        None during warm-up and for a value that is not positive and finite: absolute limits must judge those.
        """
        if len(self) < self.warmup or not _is_positive(value):
            return None
        median, spread = self._fitted()
        return (math.log10(value) - median) / spread

    def _fitted(self) -> tuple[float, float]:
        if self._fit is None:
            middle = median(self._logs)
            mad = median([abs(log - middle) for log in self._logs])
            self._fit = (middle, max(_MAD_TO_STD * mad, _LEAST_SPREAD))
        return self._fit


def median(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The same bits as ``numpy.median`` of finite numbers, several times as fast for the few numbers of a rule.

    Raises:
        InvalidValueError: There is no value.
    """
    if not len(values):
        raise InvalidValueError("a median needs at least 1 value but got none")
    ordered: Sequence[float] | NDArray[np.float64]
    ordered, middle = np.sort(values) if isinstance(values, np.ndarray) else sorted(values), len(values) // 2
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def _is_positive(value: float) -> bool:
    return 0.0 < value < math.inf
