"""Targets of losses that a script writes with tensor operations, from what autograd saved for the backward.

Two forms are read. A difference to the model's output that is squared or made absolute, ``((model(x) - y) ** 2)``: the
power has saved it, and the target is the output less the difference. And log-probabilities that are looked up by label,
``-logits.log_softmax(1)[range(n), y]`` or ``gather``, or multiplied by one-hot labels. A saved tensor that hooks have
packed (a checkpoint, an offload) is not touched.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.graph.loss_operations import ORDERLY

#: Nodes that are examined from the start of a backward on.
_MOST_NODES = 48


class Difference(NamedTuple):
    """A target that differs from the model's output by a saved tensor."""

    values: Tensor  #: The difference, with the elements of the output in their order.
    sign: int  #: 1 for output - target, -1 for target - output.
    shape: tuple[int, ...]  #: Shape of the output.


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
    walk = nodes.Walk(start, 0, None, _MOST_NODES)
    for node, _, _ in walk:
        found = _difference(node) or _labels(node)
        if found is not None:
            return found
        walk.into(node, None)
    return None


def _difference(node: Any) -> Difference | None:
    if nodes.operation_of(node).name not in ("pow", "abs", "mul"):
        return None
    made, _ = _before(node)
    name = "" if made is None else nodes.operation_of(made).word
    if name not in ("sub", "rsub") or getattr(made, "_saved_alpha", 1) != 1:
        return None
    shape = nodes.shape_of(made)
    for place in range(len(nodes.operands(made))):
        output = _output_before(made, place)
        if output is None:
            continue
        values = nodes.saved_tensor(node, "self")
        # A broadcast would repeat the target, or the output.
        if values is None or values.shape != shape or values.numel() != math.prod(output):
            return None
        first = place == 0 and name != "rsub"
        return Difference(values.detach(), 1 if first else -1, output)
    return None


def _labels(node: Any) -> Labels | None:
    name = nodes.operation_of(node).name
    if name == "index":
        indices, log_shares = nodes.saved_tensors(node, "indices"), _log_shares(node)
        fits = (
            log_shares is not None and len(indices) == 2 and all(each.shape == log_shares.shape[:1] for each in indices)
        )
        return Labels(log_shares, indices[1]) if fits and log_shares is not None else None
    if name == "gather":
        index, log_shares = nodes.saved_tensor(node, "index"), _log_shares(node)
        if index is None or log_shares is None or nodes.axis_of(getattr(node, "_saved_dim", 0), 2) != 1:
            return None
        return Labels(log_shares, index[:, 0]) if index.shape == (len(log_shares), 1) else None
    if name == "mul":
        for place, side in ((0, "other"), (1, "self")):
            log_shares = _log_shares(node, place)
            shares = None if log_shares is None else nodes.saved_tensor(node, side)
            if log_shares is not None and shares is not None and shares.shape == log_shares.shape:
                return Labels(log_shares, shares.detach())
    return None


def _log_shares(node: Any, place: int = 0) -> Tensor | None:
    """The operand of a node, if it is a log-softmax over the last axis of an output of the model, of two axes."""
    made, _ = _before(node, place)
    if made is None or nodes.operation_of(made).name != "log_softmax" or _output_before(made, 0) is None:
        return None
    values = nodes.saved_tensor(made, "result")
    if values is None or values.dim() != 2:
        return None
    return values.detach() if nodes.axis_of(made._saved_dim, 2) == 1 else None


def _output_before(node: Any, place: int) -> tuple[int, ...] | None:
    """Shape of the output of the model that is an operand, in any arrangement or type; None for other operands."""
    made, number = _before(node, place)
    return None if made is None or nodes.output_path(made, number) is None else nodes.shape_of(made, number)


def _before(node: Any, place: int = 0) -> tuple[Any, int]:
    """What made the operand of a node, past operations that only change arrangement or type; or the model's output."""
    below = nodes.operands(node)
    found: tuple[Any, int] = (None, 0)
    if place < len(below):
        for found in nodes.chain(*below[place], ORDERLY, _MOST_NODES):
            if nodes.output_path(*found) is not None:
                break
    return found
