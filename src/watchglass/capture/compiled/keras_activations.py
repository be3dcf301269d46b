"""Activation functions that layers of Keras end with: loops of Keras and of TensorFlow read the same ones."""

from __future__ import annotations

from typing import Any

from watchglass.records import ModuleKind

#: Kinds of activation functions.
_KINDS = {
    "relu": ModuleKind.RECTIFIER, "relu6": ModuleKind.RECTIFIER, "softmax": ModuleKind.SOFTMAX,
    "log_softmax": ModuleKind.SOFTMAX, "sigmoid": ModuleKind.SATURATING, "tanh": ModuleKind.SATURATING,
    "hard_sigmoid": ModuleKind.SATURATING, "hard_tanh": ModuleKind.SATURATING, "softsign": ModuleKind.SATURATING,
    "log_sigmoid": ModuleKind.SATURATING,
}  # fmt: skip


def activation_of(layer: Any) -> ModuleKind | None:
    """Kind of the activation function of Keras that a layer ends with; None where it has none."""
    function = getattr(layer, "activation", None)
    own = str(getattr(function, "__module__", "")).partition(".")[0] == "keras"
    return _KINDS.get(getattr(function, "__name__", "")) if own else None
