"""Fact ``loss_call``: shapes and dtypes of a loss's arguments, their broadcast shape, the source of predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch.events import LossCall
from watchglass.capture.pytorch.tensors.functional_activations import REARRANGED, chain

#: Most different calls that are kept; with more, shapes vary too much for a rule.
_MOST_CALLS = 32
#: Losses that compare element by element, so that their arguments broadcast.
_ELEMENTWISE = frozenset(
    {
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss", "hinge_embedding_loss",
        "multilabel_soft_margin_loss",
    }
)  # fmt: skip
#: Nodes of autograd that only arrange values.
_ARRANGING = (*REARRANGED, "ToCopy", "Clone")


class LossCalls:
    """Records the call of a loss function when none like it was recorded last."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, bool], Any] = {}
        self._records = 0

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned, at a captured step."""
        given = {"input": call.predictions, "target": call.target}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        made_by = _made_by(tensors.get("input"))
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        broadcast = _broadcast(shapes) if call.function in _ELEMENTWISE else None
        like = (_pattern(shapes), [tensor.dtype for tensor in tensors.values()], made_by, broadcast is not None)
        key = (call.function, call.training)
        if self._reported.get(key) == like or self._records >= _MOST_CALLS:
            return
        self._reported[key] = like
        self._records += 1
        data = {
            "function": call.function,
            "arguments": {
                name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
                for name, tensor in tensors.items()
            },
            "broadcast": broadcast,
            "made_by": made_by,
            "reduction": call.kwargs.get("reduction"),
            "result": list(call.result.shape),
        }
        call.forward.records.facts.append(("loss_call", f"torch.nn.functional.{call.function}", data))


def _broadcast(shapes: list[tuple[int, ...]]) -> list[int] | None:
    """The broadcast shape, where it is larger than each of the shapes; None otherwise."""
    if len(set(shapes)) < 2:
        return None
    try:
        together = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None
    return list(together) if together.numel() > max(torch.Size(shape).numel() for shape in shapes) else None


def _pattern(shapes: list[tuple[int, ...]]) -> tuple[Any, ...]:
    """Shapes without their sizes: the last batch of an epoch, or a longer sequence, is like the others."""
    sizes: dict[int, int] = {1: 1}
    # Each size becomes the order in which it was first seen, so equal ones stay equal.
    return tuple(tuple(sizes.setdefault(size, len(sizes) + 1) for size in shape) for shape in shapes)


def _made_by(predictions: Tensor | None) -> str | None:
    """Name of the operation of autograd that made the values, ``"SoftmaxBackward0"``; None outside a graph."""
    nodes = chain(predictions.grad_fn, _ARRANGING) if predictions is not None else []
    return str(nodes[-1].name()) if nodes else None
