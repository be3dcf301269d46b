"""Loss functions of TensorFlow and of Keras: their kinds, and what they judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from watchglass.capture.compiled import keras_losses
from watchglass.capture.compiled.collecting import ObservedLoss
from watchglass.capture.compiled.keras_losses import BY_CLASS, LOGARITHMS, KerasLoss, shape_of

#: Functions of ``tf.nn`` that are observed, by name: the word.
_NN = {
    "sparse_softmax_cross_entropy_with_logits": "cross_entropy",
    "softmax_cross_entropy_with_logits": "cross_entropy",
    "sigmoid_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}
#: Names of functions that are observed, of ``tf.nn`` and of ``keras.losses``.
NN_FUNCTIONS, KERAS_FUNCTIONS = tuple(_NN), tuple(keras_losses.FUNCTIONS)


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
    if name not in _NN:
        return _described(keras_losses.of_function(name, given), predictions, labels, number, given=given)
    return _described(KerasLoss(_NN[name], "none", None, 0.0), predictions, labels, number, given=given)


def of_object(loss: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int) -> JudgedCall | None:
    """A call of a ``keras.losses.Loss``; None for an unknown kind."""
    given = dict(zip(("y_true", "y_pred", "sample_weight"), args, strict=False)) | dict(kwargs)
    kind = keras_losses.of_object(loss)
    if kind is None:
        return None
    return _described(kind, given.get("y_pred"), given.get("y_true"), number, given=given)


def as_collected(call: ObservedLoss, predictions: Any, labels: Any) -> tuple[Any, Any]:
    """Predictions and labels of a call as rows of classes, and probabilities of classes as their logarithms.

    Outside of the graph of the script, so that the graph has no further operation.
    """
    with tf.init_scope():
        if call.function in LOGARITHMS:
            predictions = tf.math.log(tf.maximum(predictions, 1e-7))
        if call.by_class:
            classes = predictions.shape[-1]
            predictions = tf.reshape(predictions, (-1, classes))
            shares = len(call.labels) == len(call.predictions) and call.labels[-1] == classes and classes > 1
            labels = tf.reshape(labels, (-1, classes) if shares else (-1,))
    return predictions, labels


def _described(
    kind: KerasLoss, predictions: Any, labels: Any, number: int, *, given: Mapping[str, Any]
) -> JudgedCall | None:
    if not (tf.is_tensor(predictions) and hasattr(labels, "shape") and hasattr(labels, "dtype")):
        return None
    shape = shape_of(predictions)
    call = ObservedLoss(
        kind.function, shape, shape_of(labels), (_dtype(predictions), _dtype(labels)), number,
        kind.function in BY_CLASS and bool(shape),
        reduction=kind.reduction,
        operation=_last_operation(predictions),
        ignored=kind.ignored,
        smoothing=kind.smoothing,
        weighted=given.get("sample_weight") is not None,
    )  # fmt: skip
    return JudgedCall(call, predictions, labels)


def _last_operation(predictions: Any) -> str | None:
    if not tf.is_symbolic_tensor(predictions):
        return None
    name = str(predictions.op.type).lower()
    return name if name in ("softmax", "logsoftmax", "sigmoid") else None


def _dtype(array: Any) -> str:
    return str(getattr(array.dtype, "name", array.dtype))
