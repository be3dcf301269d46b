"""Reads collected values, of whichever framework their arrays are. Nothing waits for a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import Elements, arrays_of
from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.facts.input_sketches import Sample, positions

#: Values of one part, each with what it is.
Found = list[tuple[Collected, Any]]
#: The values of a step, by part.
ByPart = Mapping[ValuePart, Found]


def sampled(
    path: str, value: Any, index: NDArray[np.int64] | None = None, shape: tuple[int, ...] | None = None, rows: int = 0
) -> Sample | None:
    """A sample of a value, see :meth:`Sample.of`; None of one that cannot be read now."""
    try:
        arrays = arrays_of(value)
        array = arrays.values(value)
        return None if array is None else Sample.of(arrays, array, path, index, shape, rows)
    except Exception:
        return None  # a class of arrays of the script may raise anything


def some(value: Any, limit: int) -> Elements | None:
    """At most ``limit`` elements of a value, spread over it; None of one that cannot be read now."""
    total = math.prod(value.shape)
    taken = sampled("", value, positions(total, limit)) if total else None
    return None if taken is None or "complex" in taken.dtype else taken.taken


def whole(value: Any) -> Elements | None:
    """All elements of a value, in its shape; None of one that cannot be read now."""
    try:
        arrays = arrays_of(value)
        array = arrays.values(value)
        return None if array is None else arrays.take(array)
    except Exception:
        return None


def is_floating(value: Any) -> bool:
    """Whether a value holds floats."""
    return "float" in str(value.dtype)


def models_in(found: Iterable[tuple[Collected, Any]]) -> list[int]:
    """Numbers of the models that values are of, ascending."""
    return sorted({what.model for what, _ in found})
