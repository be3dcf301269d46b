"""The initialization of a model: symmetry and spread of its weights before the first update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from watchglass.record import Readback

#: Three numbers: share of rows that equal the first, whether all elements are equal, their standard deviation.
Symmetry = NDArray[Any] | Readback


def initialization(
    weights: Mapping[str, tuple[Sequence[int], Symmetry | None]], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Data of the ``initialization`` fact. For the recorder's thread: waits for devices.

    Args:
        weights: Shape and numbers of each weight with two or more axes, by name; None for numbers that cannot be read.
        about: Further entries of the fact.
    """
    return {
        "tensors": {name: {**_fans(shape), **_spread_of(numbers)} for name, (shape, numbers) in weights.items()},
        **about,
    }


def _fans(shape: Sequence[int]) -> dict[str, Any]:
    rest = math.prod(shape[2:])
    return {"shape": list(shape), "fan_in": shape[1] * rest, "fan_out": shape[0] * rest}


def _spread_of(numbers: Symmetry | None) -> dict[str, Any]:
    if numbers is None:
        return {}
    identical, constant, spread = map(float, numbers.resolve() if hasattr(numbers, "resolve") else numbers)
    return {"identical_rows": identical, "constant": bool(constant), "std": spread if math.isfinite(spread) else None}
