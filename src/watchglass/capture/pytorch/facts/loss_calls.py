"""Fact ``loss_call``: shapes and dtypes of a loss's arguments, their broadcast shape, the source of predictions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from watchglass.capture.facts.loss_calls import LossCalls
from watchglass.capture.pytorch.events import LossCall
from watchglass.capture.pytorch.graph import nodes
from watchglass.records import OPERATIONS, Operation, facts

#: Operations that limit the range of their values.
_LIMITING = ("softmax", "log_softmax", "sigmoid", "hardsigmoid", "tanh", "relu", "softplus", "weighted_sum")
_ARRANGING = frozenset(name for name, each in OPERATIONS.items() if each.kind == "arranges")
#: Rearrangements between the predictions and the operation that made them, at most.
_MOST_HOPS = 5


class LossCallFact:
    """Records the call of a loss function when none like it was recorded last."""

    def __init__(self) -> None:
        self._calls = LossCalls()

    def loss_computed(self, call: LossCall) -> None:
        """A loss function has returned, at a captured step."""
        given = {"input": call.predictions, "target": call.target}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        operation, over = _made_by(tensors.get("input"))
        arguments = {
            name: facts.LossArgument(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in tensors.items()
        }
        fact = self._calls.fact(
            call.function, arguments, training=call.training, result=tuple(call.result.shape), operation=operation,
            normalized_over=over, reduction=call.kwargs.get("reduction"),
        )  # fmt: skip
        if fact is not None:
            call.forward.records.add_fact(fact, f"torch.nn.functional.{call.function}")


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
