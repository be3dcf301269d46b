"""Losses of optax: what each call judges and compares it with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from watchglass.capture.compiled.collecting import ObservedLoss
from watchglass.capture.jax.tracing import TRACING


class OptaxLoss(NamedTuple):
    """A loss function: the word of its kind, and whether its predictions are rows of classes."""

    word: str
    of_classes: bool = False


#: Those that are observed, by name.
LOSSES = {
    "softmax_cross_entropy_with_integer_labels": OptaxLoss("cross_entropy", of_classes=True),
    "softmax_cross_entropy": OptaxLoss("cross_entropy", of_classes=True),
    "safe_softmax_cross_entropy": OptaxLoss("cross_entropy", of_classes=True),
    "sigmoid_binary_cross_entropy": OptaxLoss("binary_cross_entropy_with_logits"),
    "squared_error": OptaxLoss("mse_loss"),
    "l2_loss": OptaxLoss("mse_loss"),
    "huber_loss": OptaxLoss("huber_loss"),
}


def losing(original: Callable[..., Any], loss: OptaxLoss) -> Callable[..., Any]:
    """A loss function, given the original: it returns the loss of each row or element."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        if TRACING.traces:
            predictions, labels = (*signature.bind(*args, **kwargs).arguments.values(), None)[:2]
            if hasattr(predictions, "dtype") and hasattr(labels, "dtype"):
                by_class = loss.of_classes and labels.shape in (predictions.shape, predictions.shape[:-1])
                call = ObservedLoss(
                    loss.word, predictions.shape, labels.shape, (str(predictions.dtype), str(labels.dtype)),
                    number=TRACING.losses + 1, by_class=by_class and predictions.ndim > 1, result=value.shape,
                )  # fmt: skip
                if call.by_class:
                    rows = predictions.shape[-1:]
                    labels = labels.reshape(-1, *(rows if labels.shape == predictions.shape else ()))
                    predictions = predictions.reshape(-1, *rows)
                TRACING.lost(call, predictions, labels, value)
        return value

    return call
