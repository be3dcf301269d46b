"""Loss functions of TensorFlow and of Keras: their kinds, and what they judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from watchglass.capture.compiled.collecting import ObservedLoss

_BINARY = "binary_cross_entropy"
#: Words of losses by class of Keras, where they take logits, and where they take probabilities or values.
_KINDS: Mapping[str, tuple[str, str]] = {
    "MeanSquaredError": ("mse_loss", "mse_loss"),
    "MeanAbsoluteError": ("l1_loss", "l1_loss"),
    "Huber": ("huber_loss", "huber_loss"),
    "BinaryCrossentropy": (f"{_BINARY}_with_logits", _BINARY),
    "CategoricalCrossentropy": ("cross_entropy", "nll_loss"),
    "SparseCategoricalCrossentropy": ("cross_entropy", "nll_loss"),
}
#: The same by the name of a function of Keras.
_FUNCTIONS = {
    "mean_squared_error": "MeanSquaredError", "mean_absolute_error": "MeanAbsoluteError", "huber": "Huber",
    "binary_crossentropy": "BinaryCrossentropy", "categorical_crossentropy": "CategoricalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
}  # fmt: skip
#: Functions of ``tf.nn`` that are observed, by name: the word, and whether a prediction is a row of classes.
_NN = {
    "sparse_softmax_cross_entropy_with_logits": ("cross_entropy", True),
    "softmax_cross_entropy_with_logits": ("cross_entropy", True),
    "sigmoid_cross_entropy_with_logits": (f"{_BINARY}_with_logits", False),
}
#: Names of functions that are observed, of ``tf.nn`` and of ``keras.losses``.
NN_FUNCTIONS, KERAS_FUNCTIONS = tuple(_NN), tuple(_FUNCTIONS)
_REDUCTIONS = {"sum_over_batch_size": "mean", "mean_with_sample_weight": "mean", "mean": "mean", "sum": "sum"}


class JudgedCall(NamedTuple):
    """What a loss function got, and what is known of its kind."""

    call: ObservedLoss
    predictions: Any
    labels: Any


def of_function(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> JudgedCall | None:
    """A call of a function of ``tf.nn`` or ``keras.losses``; None where it has no tensors."""
    given = dict(zip(("labels", "predictions"), args, strict=False)) | dict(kwargs)
    labels = given.get("labels", given.get("y_true"))
    predictions = given.get("predictions", given.get("logits", given.get("y_pred")))
    if name in _NN:
        word, by_class = _NN[name]
    else:
        word = _KINDS[_FUNCTIONS[name]][not given.get("from_logits", False)]
        by_class = word in ("cross_entropy", "nll_loss")
    return _described(word, predictions, labels, number, by_class=by_class, reduction="none", given=given)


def of_object(loss: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> JudgedCall | None:
    """A call of a ``keras.losses.Loss``; None for an unknown kind."""
    given = dict(zip(("y_true", "y_pred", "sample_weight"), args, strict=False)) | dict(kwargs)
    known = next((_KINDS[cls.__name__] for cls in type(loss).__mro__ if cls.__name__ in _KINDS), None)
    if known is None:
        return None
    word = known[not getattr(loss, "from_logits", False)]
    reduction = _REDUCTIONS.get(str(getattr(loss, "reduction", None) or "none"), "none")
    settings = {name: getattr(loss, name, None) for name in ("label_smoothing", "ignore_class")}
    return _described(
        word, given.get("y_pred"), given.get("y_true"), number, by_class=word in ("cross_entropy", "nll_loss"),
        reduction=reduction, given=given | settings,
    )  # fmt: skip


def as_collected(call: ObservedLoss, predictions: Any, labels: Any) -> tuple[Any, Any]:
    """Predictions and labels of a call as rows of classes, and probabilities of classes as their logarithms.

    Outside of the graph of the script, so that the graph has no further operation.
    """
    with tf.init_scope():
        if call.function == "nll_loss":
            predictions = tf.math.log(tf.maximum(predictions, 1e-7))
        if call.by_class:
            classes = predictions.shape[-1]
            predictions = tf.reshape(predictions, (-1, classes))
            shares = len(call.labels) == len(call.predictions) and call.labels[-1] == classes and classes > 1
            labels = tf.reshape(labels, (-1, classes) if shares else (-1,))
    return predictions, labels


def _described(
    word: str, predictions: Any, labels: Any, number: int, *, by_class: bool, reduction: str, given: Mapping[str, Any]
) -> JudgedCall | None:
    if not (tf.is_tensor(predictions) and hasattr(labels, "shape") and hasattr(labels, "dtype")):
        return None
    shape, label_shape = _shape(predictions), _shape(labels)
    call = ObservedLoss(
        word, shape, label_shape, (_dtype(predictions), _dtype(labels)), number, by_class and bool(shape),
        reduction=reduction,
        operation=_last_operation(predictions),
        ignored=given.get("ignore_class"),
        smoothing=float(given.get("label_smoothing") or 0.0),
        weighted=given.get("sample_weight") is not None,
    )  # fmt: skip
    return JudgedCall(call, predictions, labels)


def _last_operation(predictions: Any) -> str | None:
    if not tf.is_symbolic_tensor(predictions):
        return None
    name = str(predictions.op.type).lower()
    return name if name in ("softmax", "logsoftmax", "sigmoid") else None


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(int(length or -1) for length in array.shape)


def _dtype(array: Any) -> str:
    return str(getattr(array.dtype, "name", array.dtype))
