"""Losses and accuracy, from what the loss functions were given and returned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch.reduce import DeviceRows

#: Loss functions whose predictions can be compared with class labels.
_BY_CLASS = ("cross_entropy", "nll_loss")
_BY_SIGN = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_IGNORED = -100


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


def accuracy(function: str, predictions: Any, target: Any) -> tuple[Any, int] | None:
    """Share of right predictions (0 to 1) and how many were judged; None for losses that are not classification."""
    if not isinstance(predictions, Tensor) or not isinstance(target, Tensor) or not target.numel():
        return None
    with torch.no_grad():
        if function in _BY_CLASS and predictions.dim() >= 1:
            axis = 1 if predictions.dim() > 1 else 0
            chosen = predictions.argmax(axis)
            wanted = target if target.shape == chosen.shape else target.argmax(axis)
            right = chosen == wanted
            if wanted.device.type == "cpu" and bool((wanted == _IGNORED).any()):
                right = right[wanted != _IGNORED]
        elif function in _BY_SIGN and predictions.shape == target.shape:
            limit = 0.5 if function == "binary_cross_entropy" else 0.0
            right = (predictions > limit) == (target > 0.5)
        else:
            return None
        share = number(right.float().mean()) if right.numel() else None
        return None if share is None else (share, right.numel())
