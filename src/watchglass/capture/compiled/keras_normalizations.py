"""Moving averages of Keras's batch normalizations: loops of Keras and of TensorFlow read the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watchglass.capture.compiled.collecting import ValuePart
from watchglass.records import facts


def averages_of(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[ValuePart, Any, facts.NormalizationState]]:
    """The moving averages of a batch normalization, as variables, whose ``call`` gets these arguments.

    None of a layer that is frozen: its averages stay as they are on purpose.

    Args:
        args: The layer, what it normalizes, and maybe more.
        kwargs: Arguments by name.
    """
    layer = args[0]
    if not layer.trainable:
        return
    # Keras's momentum is the share of what was there before.
    momentum = round(1.0 - float(layer.momentum), 9)
    about = facts.NormalizationState(training=runs_in_training(args, kwargs), momentum=momentum)
    yield ValuePart.MEAN, layer.moving_mean, about
    yield ValuePart.VARIANCE, layer.moving_variance, about


def runs_in_training(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a layer whose ``call`` gets these arguments, itself and its inputs first, runs in training mode."""
    training = kwargs.get("training", args[2] if len(args) > 2 else None)
    return bool(training) if isinstance(training, (bool, int)) else training is not None  # a tensor may say so
