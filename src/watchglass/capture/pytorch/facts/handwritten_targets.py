"""Targets of losses that a script writes with tensor operations, from what autograd saved for the backward.

Two forms are read. A difference to the model's output that is squared or made absolute, ``((model(x) - y) ** 2)``: the
power has saved it, and the target is the output less the difference. And log-probabilities that are looked up by label,
``-logits.log_softmax(1)[range(n), y]`` or ``gather``, or multiplied by one-hot labels. A saved tensor that hooks have
packed (a checkpoint, an offload) is not touched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from watchglass.capture.pytorch.graph.autograd_graph import axis_of, saved_tensor, saved_tensors, shape_of
from watchglass.capture.pytorch.graph.loss_operations import ARRANGING
from watchglass.capture.pytorch.losses.loss_outputs import output_path

#: Nodes that are examined from the start of a backward on.
_MOST_NODES = 48
_POWERS = ("PowBackward", "AbsBackward", "MulBackward")


class Difference(NamedTuple):
    """A target that differs from the model's output by a saved tensor.

    Attributes:
        values: The difference, with the elements of the output in their order.
        sign: 1 for output - target, -1 for target - output.
        shape: Shape of the output.
    """

    values: Tensor
    sign: int
    shape: tuple[int, ...]


class Labels(NamedTuple):
    """Log-probabilities of the model's output, and labels.

    Attributes:
        log_shares: Of shape (rows, classes).
        labels: int64[rows], or shares of the shape of ``log_shares``.
    """

    log_shares: Tensor
    labels: Tensor


def found_behind(start: Any) -> Difference | Labels | None:
    """The parts from which a loss is computed; None for other forms.

    Args:
        start: Autograd's node that made the loss.
    """
    waiting, seen = [start], set()
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        found = _difference(node) or _labels(node)
        if found is not None:
            return found
        waiting += [child for child, _ in node.next_functions]
    return None


def _difference(node: Any) -> Difference | None:
    if not node.name().startswith(_POWERS) or not node.next_functions:
        return None
    made, _ = _before(*node.next_functions[0])
    name = "" if made is None else made.name()
    if not name.startswith(("SubBackward", "RsubBackward")) or getattr(made, "_saved_alpha", 1) != 1:
        return None
    shape = shape_of(made)
    for place, (child, number) in enumerate(made.next_functions):
        output = _before(child, number)
        if output[0] is None or output_path(*output) is None:
            continue
        values = saved_tensor(node, "self")
        # A broadcast would repeat the target, or the output.
        if values is None or values.shape != shape or values.numel() != _size(shape_of(*output)):
            return None
        first = place == 0 and not name.startswith("Rsub")
        return Difference(values.detach(), 1 if first else -1, shape_of(*output))
    return None


def _labels(node: Any) -> Labels | None:
    name = node.name()
    if name.startswith("IndexBackward"):
        indices = saved_tensors(node, "indices")
        log_shares = _log_shares(node.next_functions[0])
        fits = (
            log_shares is not None and len(indices) == 2 and all(each.shape == log_shares.shape[:1] for each in indices)
        )
        return Labels(log_shares, indices[1]) if fits and log_shares is not None else None
    if name.startswith("GatherBackward"):
        index, log_shares = saved_tensor(node, "index"), _log_shares(node.next_functions[0])
        if index is None or log_shares is None or axis_of(getattr(node, "_saved_dim", 0), 2) != 1:
            return None
        return Labels(log_shares, index[:, 0]) if index.shape == (len(log_shares), 1) else None
    if name.startswith("MulBackward"):
        for place, side in ((0, "other"), (1, "self")):
            log_shares = _log_shares(node.next_functions[place]) if len(node.next_functions) > place else None
            shares = None if log_shares is None else saved_tensor(node, side)
            if log_shares is not None and shares is not None and shares.shape == log_shares.shape:
                return Labels(log_shares, shares.detach())
    return None


def _log_shares(made: tuple[Any, int]) -> Tensor | None:
    """The result of a log-softmax over the last axis of an output of the model, of two axes."""
    node, _ = _before(*made)
    if node is None or not node.name().startswith("LogSoftmaxBackward"):
        return None
    output = _before(*node.next_functions[0])
    values = saved_tensor(node, "result")
    if output[0] is None or output_path(*output) is None or values is None or values.dim() != 2:
        return None
    return values.detach() if axis_of(node._saved_dim, 2) == 1 else None


def _before(node: Any, number: int) -> tuple[Any, int]:
    """The operation that made a value, past those that only change its arrangement or type; or the model's output."""
    for _ in range(_MOST_NODES):
        if node is None or output_path(node, number) is not None:
            break
        name = node.name()
        if not name.startswith(tuple(f"{each}Backward" for each in ARRANGING.nodes)) or not node.next_functions:
            break
        node, number = node.next_functions[0]
    return node, number


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size
