"""Fact ``training_flags`` of Keras, where the mode is an argument of a call: how the layers ran that depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from watchglass.capture.compiled.keras_normalizations import runs_in_training
from watchglass.record import OpenStep
from watchglass.records import Mode, facts

_DROPPING = ("Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D", "SpatialDropout2D",
             "SpatialDropout3D")  # fmt: skip
#: Layers whose own ``call``, which is public, takes the mode.
MODAL = tuple(
    {
        next(cls for cls in layer.__mro__ if "call" in vars(cls))
        for name in (*_DROPPING, "BatchNormalization", "RNN")
        if (layer := getattr(keras.layers, name, None)) is not None
    }
)
_MOST_NAMED = 32

#: Of the layers that depend on the mode, by their paths: their type, and whether they ran in training mode.
Modes = dict[str, tuple[str, bool]]


def mode_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool | None:
    """Whether a layer of :data:`MODAL`, whose ``call`` gets these arguments, runs in training mode.

    None of one that does the same in both modes: that drops nothing, or is frozen and normalises.
    """
    layer = args[0]
    if isinstance(layer, keras.layers.RNN):
        cell, args = layer.cell, args[:1]  # its second argument is a state
        depends = bool(getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0))
    elif isinstance(layer, keras.layers.BatchNormalization):
        depends = bool(layer.trainable)
    else:
        depends = bool(getattr(layer, "rate", getattr(layer, "stddev", 1)))
    return runs_in_training(args, kwargs) if depends else None


def any_in_training(modes: Modes) -> bool | None:
    """Whether any of these runs in training mode; None of none."""
    return any(training for _, training in modes.values()) if modes else None


class TrainingModes:
    """Makes the fact about one model when it has changed. For the training thread."""

    def __init__(self) -> None:
        self._reported: dict[Mode, facts.TrainingFlags] = {}

    def save(self, step: OpenStep, modes: Modes, name: str, frozen: int) -> None:
        """Add the fact if it is another one than at the step of this mode before.

        Args:
            step: The step.
            modes: How the layers of the model ran.
            name: Name of the class of the model.
            frozen: How many of its weights an optimizer may not change.
        """
        whole = any_in_training(modes)
        different = [(path, kind, training) for path, (kind, training) in modes.items() if training != whole]
        sensitive: dict[str, tuple[int, int]] = {}
        for kind, training in modes.values():
            on, off = sensitive.get(kind, (0, 0))
            sensitive[kind] = (on + training, off + (not training))
        fact = facts.TrainingFlags(
            name, whole, len(modes), sum(training for _, training in modes.values()), tuple(different[:_MOST_NAMED]),
            len(different), sensitive, frozen, step.mode is Mode.TRAIN,
        )  # fmt: skip
        if self._reported.get(step.mode) != fact:
            self._reported[step.mode] = fact
            step.records.add_fact(fact, "keras")
