"""Loss functions of Keras: their kinds, and what they judge; the losses of batches, out of running means."""

from __future__ import annotations

from typing import Any

import keras

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.compiled.collecting import ObservedLoss
from watchglass.capture.compiled.keras_losses import BY_CLASS, LOGARITHMS, of_object, shape_of


def observed_loss(
    loss: Any, labels: Any, predictions: Any, weights: Any, last: str | None, number: int
) -> tuple[ObservedLoss, Any, Any] | None:
    """What a call of a loss function is, with its predictions and labels as they are collected.

    Args:
        loss: A ``keras.losses.Loss``.
        labels: Its first argument.
        predictions: Its second argument.
        weights: Its third argument.
        last: The activation that made the predictions, ``"softmax"``; None where it is not known.
        number: Number of the call in its step.

    Returns:
        None for a loss of an unknown kind, or of several arrays.
    """
    kind = of_object(loss)
    if kind is None or not (hasattr(labels, "shape") and hasattr(predictions, "shape")):
        return None
    if kind.function not in BY_CLASS and abs(len(labels.shape) - len(predictions.shape)) == 1:
        labels = _like(labels, predictions)
    shape, label_shape = shape_of(predictions), shape_of(labels)
    by_class = kind.function in BY_CLASS and getattr(loss, "axis", -1) in (-1, len(shape) - 1)
    operation = last
    dtypes = _dtype(predictions), _dtype(labels)
    if kind.function in LOGARITHMS:
        predictions = keras.ops.log(keras.ops.maximum(predictions, keras.config.epsilon()))
        operation = "log_softmax" if last == "softmax" else None
    if by_class:
        predictions = keras.ops.reshape(predictions, (-1, shape[-1]))
        labels = keras.ops.reshape(labels, (-1, shape[-1]) if label_shape == shape else (-1,))
    observed = ObservedLoss(
        kind.function, shape, label_shape, dtypes, number, by_class,
        reduction=kind.reduction,
        operation=operation,
        normalized_over=shape[-1] if operation in ("softmax", "log_softmax") and shape else None,
        ignored=kind.ignored,
        smoothing=kind.smoothing,
        weighted=weights is not None,
    )  # fmt: skip
    return observed, predictions, labels


class RunningMeans:
    """The values of single batches, out of means over an epoch so far. For the training thread, which waits for none.

    Both are float32, so a loss is as exact as 1e-7 times the number of the batch in its epoch.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[Any, Any]] = {}
        self._weights: dict[str, float] = {}

    def reset(self) -> None:
        """Keras has reset its running means."""
        self._before.clear()
        self._weights.clear()

    def weight(self, name: str) -> float:
        """What the batch that a mean has counted last counts in it; 1 where that is not known yet."""
        return self._weights.get(name, 1.0)

    def batch(self, name: str, mean: Any, count: Any) -> DeferredNumbers | float:
        """The value of the batch that a mean has counted last; computed later, if any number is still an array.

        Args:
            name: Its name.
            mean: The mean with it.
            count: The weights of all batches with it.
        """
        before = self._before.get(name)
        self._before[name] = mean, count
        counted = 0 if before is None else before[1]
        if isinstance(count, (int, float)) and isinstance(counted, (int, float)) and count > counted:
            self._weights[name] = float(count - counted)
        if isinstance(mean, float) and isinstance(count, float):
            return _last(before, mean, count)
        return DeferredNumbers(lambda: _last(before, mean, count), 8)


def _last(before: tuple[Any, Any] | None, mean: Any, count: Any) -> float:
    now, counted = _number(mean), _number(count)
    if before is None:
        return now
    older, until = map(_number, before)
    if not counted > until:  # reset by the script, or not updated
        return now
    return (now * counted - older * until) / (counted - until)


def _like(labels: Any, predictions: Any) -> Any:
    """Labels with the axis of one element that the predictions have, or without their own, as Keras compares them."""
    if predictions.shape[-1] == 1 and len(labels.shape) < len(predictions.shape):
        return keras.ops.expand_dims(labels, -1)
    return keras.ops.squeeze(labels, -1) if labels.shape[-1] == 1 else labels


def _number(value: Any) -> float:
    return value if isinstance(value, float) else float(keras.ops.convert_to_numpy(value))


def _dtype(array: Any) -> str:
    return str(keras.backend.standardize_dtype(array.dtype))
