"""The initialization of a model: symmetry and spread of its weights before the first update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.record import Readback
from watchglass.records import facts

#: Three numbers: share of rows that equal the first, whether all elements are equal, their standard deviation.
Symmetry = NDArray[Any] | Readback


def initialization(
    weights: Mapping[str, tuple[Sequence[int], Symmetry | None]], model: int | None
) -> facts.Initialization:
    """The fact. For the recorder's thread: waits for devices.

    Args:
        weights: Shape and numbers of each weight with two or more axes, by name; None for numbers that cannot be read.
        model: Number of their model, if there are several.
    """
    return facts.Initialization({name: _described(*row) for name, row in weights.items()}, model)


def symmetry_of(weight: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers of a weight with two or more axes and at least one element, of which each row makes a unit."""
    flat = weight.reshape(len(weight), -1)
    same = (flat == flat[0]).all(axis=1)
    identical = same[1:].mean() if len(flat) > 1 else 0.0
    return np.array([identical, (flat == flat[0, 0]).all(), flat.std()], np.float64)


def _described(shape: Sequence[int], numbers: Symmetry | None) -> facts.InitialWeight:
    rest = math.prod(shape[2:])
    weight = facts.InitialWeight(tuple(shape), shape[1] * rest, shape[0] * rest)
    if numbers is None:
        return weight
    identical, constant, std = map(float, numbers.resolve() if hasattr(numbers, "resolve") else numbers)
    if constant:
        std = 0.0  # rounding of the mean gives 4e-9
    known = std if math.isfinite(std) else None
    return replace(weight, identical_rows=identical, constant=bool(constant), std=known)
