"""Which durations are far longer than the others: of the steps that compile code, or wait for something rare.

A reader that has all durations and a rule that sees one at a time must agree, so both count them by class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Classes for each doubling of a duration, and those that ten times a duration lies above it: 10.2 times at most.
_CLASSES, _FAR_LONGER = 16, 53
#: Largest share of far longer durations: what is more frequent is typical, too.
_RARE = 0.1
# Beyond these the class is the same. NaN, of damaged records, is not longer than anything.
_SHORTEST_S, _LONGEST_S = 1e-9, 1e9


def duration_class(seconds: float) -> int:
    """The class of a duration, sixteen for each doubling."""
    return math.floor(_CLASSES * math.log2(min(max(_SHORTEST_S, seconds), _LONGEST_S)))


def duration_classes(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """The class of each duration, int64 of the same shape."""
    bounded: Any = np.fmin(np.fmax(_SHORTEST_S, seconds), _LONGEST_S)
    return np.asarray(np.floor(_CLASSES * np.log2(bounded)), np.int64)


def last_typical_class(numbers: Mapping[int, float]) -> int:
    """The class beyond which durations are far longer: about ten times the median and more.

    Args:
        numbers: How many durations there are, by class; not empty.

    Returns:
        The highest class of all where more than a tenth are far longer, because what is so frequent is typical.
    """
    ordered = sorted(numbers)
    whole = sum(numbers.values())
    until, middle = 0.0, ordered[-1]
    for each in ordered:
        until += numbers[each]
        if 2 * until >= whole:
            middle = each
            break
    limit = middle + _FAR_LONGER
    longer = sum(number for each, number in numbers.items() if each > limit)
    return limit if longer <= _RARE * whole else ordered[-1]
