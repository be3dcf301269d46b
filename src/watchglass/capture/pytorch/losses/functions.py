"""Losses and accuracy, from the arguments and results of loss functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.records import loss_kind

#: Elements up to which NumPy computes an accuracy.
_FEW = 1 << 14


def number(value: Tensor) -> Any:
    """A one-element tensor as a float at once on the CPU, else as a readback that needs no wait.

    None where there is no number: inside ``torch.func.vmap`` a tensor stands for many, on the meta device for none.
    """
    value = value.detach()
    if value.is_meta:
        return None
    if value.device.type == "cpu":
        try:
            return float(value)
        except RuntimeError:
            return None
    return DeviceRows(value.reshape(()).to(torch.float32))


def normalised(result: Tensor, predictions: Any, reduction: str) -> Tensor | None:
    """A loss function's result per sample, for any reduction; None where that is not known."""
    if reduction == "none":
        return result.detach().mean() if result.numel() else None
    if result.numel() != 1:
        return None
    if reduction == "sum" and isinstance(predictions, Tensor) and predictions.dim():
        return result.detach() / max(1, predictions.shape[0])
    return result.detach()


def mean_of_terms(
    function: str, result: Tensor, predictions: Any, target: Any, reduction: str, ignored: Any = -100
) -> Tensor | None:
    """A loss function's result as its mean over all terms, whatever its reduction: the same in training and evaluation.

    None where that is not known.
    """
    if reduction == "mean" or not isinstance(predictions, Tensor) or not predictions.dim():
        return normalised(result, predictions, reduction)
    total = result.detach().sum()
    if reduction == "batchmean":
        total = total * predictions.shape[0]
    terms: Any = predictions.shape[0]
    if isinstance(target, Tensor) and loss_kind(function).of_classes:
        axis = 1 if predictions.dim() > 1 else 0
        one_each = target.shape == predictions.shape
        terms = target.numel() // target.shape[axis] if one_each else (target != ignored).sum()
    elif isinstance(target, Tensor) and loss_kind(function).each:
        terms = torch.broadcast_shapes(predictions.shape, target.shape).numel()
    return total / terms if isinstance(terms, Tensor) or terms else None


def is_classification(function: str, predictions: Any, target: Any, inputs: int) -> bool:
    """Whether the predictions of a loss function may be right or wrong, by their shapes.

    Args:
        function: Its name.
        predictions: Its first argument.
        target: Its second.
        inputs: Number of elements that the model was given. As many targets are its reconstruction of them.
    """
    if not loss_kind(function).of_labels or not isinstance(target, Tensor) or not isinstance(predictions, Tensor):
        return loss_kind(function).of_classes
    several = target.dim() > 1 and target.numel() > target.shape[0]
    return predictions.dim() < 3 and not (several and target.numel() == inputs)


def are_labels(target: Tensor) -> Tensor:
    """Whether all targets are 0 or 1, bool[]: others are shares, or grey values."""
    return ((target == 0) | (target == 1)).all()


def accuracy(function: str, predictions: Any, target: Any, ignored: Any = -100) -> tuple[Any, int] | None:
    """Share of right predictions (0 to 1) and how many were judged; None for losses that are not classification.

    Args:
        function: Name of the loss function.
        predictions: Its first argument.
        target: Its second.
        ignored: Label that is none. On a device it is not known how many have it: they count among those judged.
    """
    if not isinstance(predictions, Tensor) or not isinstance(target, Tensor) or not target.numel():
        return None
    with torch.no_grad():
        if loss_kind(function).of_classes and predictions.dim() >= 1:
            axis = 1 if predictions.dim() > 1 else 0
            one_each = predictions.shape[:1] + predictions.shape[2:] == target.shape
            if axis and one_each and (few := few_as_arrays(predictions, target)) is not None:
                return counted(few[0].argmax(axis) == few[1], few[1] != ignored)
            chosen = predictions.argmax(axis)
            if target.shape != chosen.shape:
                return _share(chosen == target.argmax(axis))
            right, valid = chosen == target, target != ignored
            if not target.is_cpu:
                share = number((right & valid).sum() / valid.sum())
                return None if share is None else (share, right.numel())
            right = right if bool(valid.all()) else right[valid]
        elif loss_kind(function).of_labels and predictions.shape == target.shape:
            limit = 0.5 if loss_kind(function).takes == "probabilities" else 0.0
            right = (predictions > limit) == (target > 0.5)
        else:
            return None
        return _share(right)


def counted(right: NDArray[np.bool_], valid: NDArray[np.bool_]) -> tuple[float, int] | None:
    """Share of right predictions among those that are valid, and their number; None where there are none."""
    judged = int(np.count_nonzero(valid))
    return (np.count_nonzero(right & valid) / judged, judged) if judged else None


def few_as_arrays(one: Tensor, other: Tensor) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Both as arrays, if they are plain and so small that NumPy takes a quarter of the time of PyTorch; or None."""
    plain = type(one) is Tensor is type(other) and one.is_cpu and other.is_cpu
    if not plain or max(one.numel(), other.numel()) > _FEW:
        return None
    try:
        return one.detach().numpy(), other.detach().numpy()
    except (RuntimeError, TypeError):  # inside torch.func, or a type that NumPy has not
        return None


def _share(right: Tensor) -> tuple[Any, int] | None:
    share = number(right.float().mean()) if right.numel() else None
    return None if share is None else (share, right.numel())
