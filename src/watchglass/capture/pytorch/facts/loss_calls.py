"""Fact ``loss_call``: shapes and dtypes of a loss's arguments, their broadcast shape, the source of predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch.events import LossCall
from watchglass.capture.pytorch.losses import ELEMENTWISE
from watchglass.capture.pytorch.tensors.functional_activations import REARRANGED, chain

#: Most different calls that are kept; with more, shapes vary too much for a rule.
_MOST_CALLS = 32
#: Nodes of autograd that only arrange values.
_ARRANGING = (*REARRANGED, "ToCopy", "Clone")
#: Operations of autograd that say something about the range of their values, by beginning of their node's name.
_OPERATIONS = {
    "Softmax": "softmax", "SafeSoftmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "Relu": "relu", "Softplus": "softplus",
    **dict.fromkeys(("Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Convolution"), "weighted_sum"),
}  # fmt: skip


class LossCalls:
    """Records the call of a loss function when none like it was recorded last."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, bool], Any] = {}
        self._records = 0

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned, at a captured step."""
        given = {"input": call.predictions, "target": call.target}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        made_by, over = _made_by(tensors.get("input"))
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        broadcast = _broadcast(shapes) if call.function in ELEMENTWISE else None
        like = (
            _pattern(shapes),
            [tensor.dtype for tensor in tensors.values()],
            made_by,
            over == 1,
            broadcast is not None,
        )
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
            "operation": _OPERATIONS.get((made_by or "").partition("Backward")[0]),
            "normalized_over": over,
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


def _made_by(predictions: Tensor | None) -> tuple[str | None, int | None]:
    """Name of the operation of autograd that made the values, ``"SoftmaxBackward0"``; None outside a graph.

    With it, for a softmax, the size of the axis over which its values add up to one; None for others.
    """
    nodes = chain(predictions.grad_fn, _ARRANGING) if predictions is not None else []
    return (str(nodes[-1].name()), _normalized_over(nodes[-1])) if nodes else (None, None)


def _normalized_over(node: Any) -> int | None:
    """Size of the axis of a softmax, from its node alone: its saved tensors may be packed away."""
    axis, outputs = getattr(node, "_saved_dim", None), getattr(node, "_input_metadata", None)
    if not isinstance(axis, int) or not outputs or "Softmax" not in node.name():
        return None
    shape = outputs[0].shape
    axis = axis - 2**64 if axis >= 2**63 else axis  # a negative axis as unsigned
    return int(shape[axis]) if shape and -len(shape) <= axis < len(shape) else None
