"""Smoothing of a series over steps: an exponential mean that begins without bias and ends where the series breaks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.errors import InvalidValueError
from watchglass.view.series import Series


def smoothed(series: Series, span: float, seams: Iterable[int] = ()) -> Series:
    """The exponential mean over ``span`` steps, at the steps of the series.

    A value ``n`` steps back has the weight ``exp(-n / span)``, so steps that are missing count as time, and thinning
    afterwards changes nothing. Weights are divided by their sum (Kingma and Ba 2015, section 3), so the first mean is
    the first value. The mean starts again after a value that is not finite, which is kept, and at a seam.

    Args:
        series: Steps, ascending, and values.
        span: Steps, above 0.
        seams: Steps at which an attempt continues another one.

    Raises:
        InvalidValueError: The span is not a finite number above 0.
    """
    if not 0 < span < math.inf:
        raise InvalidValueError(f"smooth must be a number of steps above 0, or 0 for no smoothing, but got {span!r}")
    steps, values = series
    restarts = np.zeros(len(steps), np.bool_)
    places = np.searchsorted(steps, np.fromiter(seams, np.int64))
    restarts[places[places < len(steps)]] = True
    found = np.full(len(values), np.nan)
    mean, weight, last = 0.0, 0.0, 0
    for place, (step, value, begins) in enumerate(zip(steps.tolist(), values.tolist(), restarts.tolist(), strict=True)):
        if begins or not math.isfinite(value):
            mean = weight = 0.0
        if not math.isfinite(value):
            found[place] = value
            continue
        kept = math.exp((last - step) / span) if weight else 0.0
        weight = kept * weight + 1.0
        mean += (value - mean) / weight
        last = step
        found[place] = mean
    return steps, found
