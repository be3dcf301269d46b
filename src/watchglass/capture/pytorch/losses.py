"""Losses and accuracy, from what the loss functions were given and returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch.reduce import DeviceRows

#: Loss functions whose predictions can be compared with class labels.
_BY_CLASS = ("cross_entropy", "nll_loss")
_BY_SIGN = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


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
    """A loss function's result per sample, whatever its reduction; None where that cannot be told."""
    if reduction == "none":
        return result.detach().mean() if result.numel() else None
    if result.numel() != 1:
        return None
    if reduction == "sum" and isinstance(predictions, Tensor) and predictions.dim():
        return result.detach() / max(1, predictions.shape[0])
    return result.detach()


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
        if function in _BY_CLASS and predictions.dim() >= 1:
            axis = 1 if predictions.dim() > 1 else 0
            chosen = predictions.argmax(axis)
            if target.shape != chosen.shape:
                return _share(chosen == target.argmax(axis))
            right, valid = chosen == target, target != ignored
            if not target.is_cpu:
                share = number((right & valid).sum() / valid.sum())
                return None if share is None else (share, right.numel())
            right = right if bool(valid.all()) else right[valid]
        elif function in _BY_SIGN and predictions.shape == target.shape:
            limit = 0.5 if function == "binary_cross_entropy" else 0.0
            right = (predictions > limit) == (target > 0.5)
        else:
            return None
        return _share(right)


def _share(right: Tensor) -> tuple[Any, int] | None:
    share = number(right.float().mean()) if right.numel() else None
    return None if share is None else (share, right.numel())
