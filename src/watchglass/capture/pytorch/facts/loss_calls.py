"""Fact ``loss_call``: shapes and dtypes of a loss's arguments, their broadcast shape, the source of predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch.events import LossCall
from watchglass.capture.pytorch.graph import nodes
from watchglass.records import OPERATIONS, Operation, facts, loss_kind

#: Most different calls that are kept; with more, shapes vary too much for a rule.
_MOST_CALLS = 32
#: Operations that limit the range of their values.
_LIMITING = ("softmax", "log_softmax", "sigmoid", "hardsigmoid", "tanh", "relu", "softplus", "weighted_sum")
_ARRANGING = frozenset(name for name, each in OPERATIONS.items() if each.kind == "arranges")
#: Rearrangements between the predictions and the operation that made them, at most.
_MOST_HOPS = 5


class LossCallFact:
    """Records the call of a loss function when none like it was recorded last."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, bool], Any] = {}
        self._records = 0

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned, at a captured step."""
        given = {"input": call.predictions, "target": call.target}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        operation, over = _made_by(tensors.get("input"))
        shapes = [tuple(tensor.shape) for tensor in tensors.values()]
        broadcast = _broadcast(shapes) if loss_kind(call.function).elementwise else None
        like = (
            _pattern(shapes),
            [tensor.dtype for tensor in tensors.values()],
            operation,
            over == 1,
            broadcast is not None,
        )
        key = (call.function, call.training)
        if self._reported.get(key) == like or self._records >= _MOST_CALLS:
            return
        self._reported[key] = like
        self._records += 1
        arguments = {
            name: facts.LossArgument(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        }
        fact = facts.ComputedLoss(
            call.function, arguments, broadcast, operation, over, call.kwargs.get("reduction"), tuple(call.result.shape)
        )
        call.forward.records.add_fact(fact, f"torch.nn.functional.{call.function}")


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The broadcast shape, where it is larger than each of the shapes; None otherwise."""
    if len(set(shapes)) < 2:
        return None
    try:
        together = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return None
    return tuple(together) if together.numel() > max(torch.Size(shape).numel() for shape in shapes) else None


def _pattern(shapes: list[tuple[int, ...]]) -> tuple[Any, ...]:
    """Shapes without their sizes: the last batch of an epoch, or a longer sequence, is like the others."""
    sizes: dict[int, int] = {1: 1}
    # Each size becomes the order in which it was first seen, so equal ones stay equal.
    return tuple(tuple(sizes.setdefault(size, len(sizes) + 1) for size in shape) for shape in shapes)


def _made_by(predictions: Tensor | None) -> tuple[str | None, int | None]:
    """Name of the operation that made the values, ``"softmax"``; None outside a graph, or for another kind.

    With it, for a softmax, the size of the axis over which its values add up to one; None for others.
    """
    if predictions is None or predictions.grad_fn is None:
        return None, None
    *_, (node, _) = nodes.chain(predictions.grad_fn, predictions.output_nr, _ARRANGING, _MOST_HOPS)
    operation = nodes.operation_of(node)
    made = "weighted_sum" if operation.kind == "matrix" else operation.name
    return (made if made in _LIMITING else None), _normalized_over(node, operation)


def _normalized_over(node: Any, operation: Operation) -> int | None:
    """Size of the axis of a softmax, from its node alone, because its saved tensors may be packed elsewhere."""
    axis = nodes.saved(node, "dim")
    if not isinstance(axis, int) or operation.kind != "softmax":
        return None
    shape = nodes.shape_of(node)
    return shape[nodes.axis_of(axis, len(shape))] if shape else None
