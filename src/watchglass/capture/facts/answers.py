"""Which predictions of a loss can be right or wrong, and the share of those that are right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import loss_kind


def is_classification(function: str, predictions: Sequence[int], target: Sequence[int], inputs: int) -> bool:
    """Whether the predictions of a loss function may be right or wrong, by their shapes.

    Args:
        function: Its name.
        predictions: Shape of its predictions.
        target: Shape of its targets.
        inputs: Number of elements that the model was given. As many targets are its reconstruction of them.
    """
    kind = loss_kind(function)
    if not kind.of_labels:
        return kind.of_classes
    several = len(target) > 1 and math.prod(target) > target[0]
    return len(predictions) < 3 and not (several and math.prod(target) == inputs)


def share_of_right(
    function: str, predictions: NDArray[Any], target: NDArray[Any], ignored: int | None = None
) -> float | None:
    """The share of right predictions, 0 to 1; None where none is judged.

    Args:
        function: The loss function.
        predictions: Of a likelihood of classes, a row of classes for each; else of the shape of the target.
        target: The class of each row, or shares of classes; else labels of 0 and 1. Other targets are not evaluated.
        ignored: The class that counts as none.
    """
    kind = loss_kind(function)
    if kind.of_classes:
        chosen = predictions.argmax(axis=-1)
        one_each = target.shape == chosen.shape
        right = chosen == (target if one_each else target.argmax(axis=-1))
        judged = target != ignored if one_each and ignored is not None else np.ones(right.shape, bool)
    elif kind.of_labels and predictions.shape == target.shape and np.isin(target, (0, 1)).all():
        right = (predictions > (0.5 if kind.takes == "probabilities" else 0.0)) == (target > 0.5)
        judged = np.ones(right.shape, bool)
    else:
        return None
    number = int(np.count_nonzero(judged))
    return int(np.count_nonzero(right & judged)) / number if number else None
