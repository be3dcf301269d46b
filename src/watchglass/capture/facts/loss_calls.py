"""Fact ``loss_call``: shapes and dtypes of a loss's arguments, their broadcast shape, the source of predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from watchglass.records import facts, loss_kind

#: Most different calls that are kept; with more, shapes vary too much for a rule.
_MOST_CALLS = 32

Shape = tuple[int, ...]


class LossCalls:
    """Makes the fact of a call of a loss function if none like it was recorded last."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, bool], Any] = {}
        self._records = 0

    def fact(
        self, function: str, arguments: Mapping[str, facts.LossArgument], *, training: bool, result: Shape,
        operation: str | None = None, normalized_over: int | None = None, reduction: str | None = None,
    ) -> facts.ComputedLoss | None:  # fmt: skip
        """The fact; None if the call is like the last one.

        Args:
            function: The loss function.
            arguments: What it was given.
            training: Whether the model is trained.
            result: Shape of its result.
            operation: Name of the operation that made the predictions.
            normalized_over: Of a softmax, the size of the axis over which its values add up to one.
            reduction: As the script gave it.
        """
        shapes = [each.shape for each in arguments.values()]
        broadcast = broadcast_shape(shapes) if loss_kind(function).elementwise else None
        dtypes = [each.dtype for each in arguments.values()]
        like = _pattern(shapes), dtypes, operation, normalized_over == 1, broadcast is not None
        key = function, training
        if self._reported.get(key) == like or self._records >= _MOST_CALLS:
            return None
        self._reported[key] = like
        self._records += 1
        return facts.ComputedLoss(function, arguments, broadcast, operation, normalized_over, reduction, result)


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The broadcast shape, where it is larger than each of the shapes; None otherwise."""
    if len(set(shapes)) < 2:
        return None
    try:
        together = np.broadcast_shapes(*shapes)
    except ValueError:
        return None
    return together if math.prod(together) > max(map(math.prod, shapes)) else None


def _pattern(shapes: Sequence[Shape]) -> tuple[Any, ...]:
    """Shapes without their sizes: the last batch of an epoch, or a longer sequence, is like the others."""
    sizes: dict[int, int] = {1: 1}
    # Each size becomes the order in which it was first seen, so equal ones stay equal.
    return tuple(tuple(sizes.setdefault(size, len(sizes) + 1) for size in shape) for shape in shapes)
