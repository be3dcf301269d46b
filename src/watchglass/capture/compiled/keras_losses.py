"""Losses of Keras by the names of their classes and functions: loops of Keras and of TensorFlow use the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_BINARY = "binary_cross_entropy"
#: Words of losses by class, where they take logits, and where they take probabilities or values.
_KINDS: Mapping[str, tuple[str, str]] = {
    "MeanSquaredError": ("mse_loss", "mse_loss"),
    "MeanAbsoluteError": ("l1_loss", "l1_loss"),
    "Huber": ("huber_loss", "huber_loss"),
    "KLDivergence": ("kl_div", "kl_div"),
    "BinaryCrossentropy": (f"{_BINARY}_with_logits", _BINARY),
    "CategoricalCrossentropy": ("cross_entropy", "nll_loss"),
    "SparseCategoricalCrossentropy": ("cross_entropy", "nll_loss"),
}
#: The class by the name of the function.
FUNCTIONS: Mapping[str, str] = {
    "mean_squared_error": "MeanSquaredError", "mean_absolute_error": "MeanAbsoluteError", "huber": "Huber",
    "kl_divergence": "KLDivergence", "binary_crossentropy": "BinaryCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
}  # fmt: skip
_REDUCTIONS = {"sum_over_batch_size": "mean", "mean_with_sample_weight": "mean", "mean": "mean", "sum": "sum"}
_PACKAGES = ("keras", "tf_keras")
#: Words of losses of which a prediction is a row of classes, and of those with predictions collected as logarithms.
BY_CLASS, LOGARITHMS = ("cross_entropy", "nll_loss"), ("nll_loss", "kl_div")


class KerasLoss(NamedTuple):
    """What the settings of a loss say, as fields of :class:`~watchglass.capture.compiled.collecting.ObservedLoss`."""

    function: str
    reduction: str
    ignored: int | None
    smoothing: float


def of_object(loss: Any) -> KerasLoss | None:
    """What a ``keras.losses.Loss`` is, or one that is derived from a known one; None for another kind.

    Of a function of Keras, as ``compile(loss="mse")`` takes it, Keras makes an object that has it as ``fn``.
    """
    function = getattr(loss, "fn", None)
    ours = [cls.__name__ for cls in type(loss).__mro__ if _is_of_keras(cls)]
    ours += [FUNCTIONS.get(str(getattr(function, "__name__", "")), "")] if _is_of_keras(function) else []
    name = next((each for each in ours if each in _KINDS), None)
    if name is None:
        return None
    settings = {each: getattr(loss, each, None) for each in ("from_logits", "ignore_class", "label_smoothing")}
    reduction = _REDUCTIONS.get(str(getattr(loss, "reduction", None) or "none"), "none")
    return _described(name, reduction, settings)


def of_function(name: str, given: Mapping[str, Any]) -> KerasLoss:
    """What one of :data:`FUNCTIONS` is, with its arguments by name."""
    return _described(FUNCTIONS[name], "none", given)


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape of an array that may be symbolic: -1 for a length that is open."""
    return tuple(int(length or -1) for length in array.shape)


def _is_of_keras(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _PACKAGES


def _described(name: str, reduction: str, given: Mapping[str, Any]) -> KerasLoss:
    function = _KINDS[name][not given.get("from_logits")]
    return KerasLoss(function, reduction, given.get("ignore_class"), float(given.get("label_smoothing") or 0.0))
