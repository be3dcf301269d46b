"""Targets of losses that a script writes with tensor operations, from what autograd saved for the backward.

Two forms are read. A difference to the model's output that is squared or made absolute, ``((model(x) - y) ** 2)``: the
power has saved it, and the target is the output less the difference. And log-probabilities that are looked up by label,
``-logits.log_softmax(1)[range(n), y]`` or ``gather``, or multiplied by one-hot labels. A saved tensor that hooks have
packed (a checkpoint, an offload) is not touched.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from watchglass.capture.operation_graph import CONSTANT, Operand
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.graph.loss_operations import ORDERLY


class Difference(NamedTuple):
    """A target that differs from the model's output by a saved tensor."""

    values: Tensor  #: The difference, with the elements of the output in their order.
    sign: int  #: 1 for output - target, -1 for target - output.
    shape: tuple[int, ...]  #: Shape of the output.


class Labels(NamedTuple):
    """Log-probabilities of the model's output, and labels."""

    log_shares: Tensor  #: Of shape (rows, classes).
    labels: Tensor  #: int64[rows], or shares of the shape of ``log_shares``.


def found_in(graph: Graph) -> Difference | Labels | None:
    """The parts from which a loss is computed; None for other forms.

    Args:
        graph: Its graph, at least from outputs of the model on.
    """
    found = (_difference(graph, at) or _labels(graph, at) for at in range(len(graph) - 1, -1, -1))
    return next((each for each in found if each is not None), None) if graph.complete else None


def _difference(graph: Graph, at: int) -> Difference | None:
    if graph.operations[at].name not in ("pow", "abs", "mul"):
        return None
    made = _before(graph, at).at
    if made == CONSTANT or graph.word(made) not in ("sub", "rsub") or graph.setting(made, "alpha") not in (None, 1):
        return None
    shape = graph.shape(made)
    for place in range(len(graph.below[made])):
        output = _output_before(graph, made, place)
        if output is None:
            continue
        values = nodes.saved_tensor(graph.nodes[at], "self")
        # A broadcast would repeat the target, or the output.
        if values is None or values.shape != shape or values.numel() != math.prod(output):
            return None
        first = place == 0 and graph.word(made) != "rsub"
        return Difference(values.detach(), 1 if first else -1, output)
    return None


def _labels(graph: Graph, at: int) -> Labels | None:
    name, node = graph.operations[at].name, graph.nodes[at]
    if name not in ("index", "gather", "mul"):
        return None
    log_shares = _log_shares(graph, at)
    if name == "index" and log_shares is not None:
        indices = nodes.saved_tensors(node, "indices")
        fits = len(indices) == 2 and all(each.shape == log_shares.shape[:1] for each in indices)
        return Labels(log_shares, indices[1]) if fits else None
    if name == "gather" and log_shares is not None:
        index = nodes.saved_tensor(node, "index")
        if index is None or graph.setting(at, "axes") != (1,) or index.shape != (len(log_shares), 1):
            return None
        return Labels(log_shares, index[:, 0])
    for place, side in ((0, "other"), (1, "self")) if name == "mul" else ():
        log_shares = _log_shares(graph, at, place)
        shares = None if log_shares is None else nodes.saved_tensor(node, side)
        if log_shares is not None and shares is not None and shares.shape == log_shares.shape:
            return Labels(log_shares, shares.detach())
    return None


def _log_shares(graph: Graph, at: int, place: int = 0) -> Tensor | None:
    """The operand of an operation, if it is a log-softmax over the last axis of an output of the model, of two axes."""
    made = _before(graph, at, place).at
    if made == CONSTANT or graph.word(made) != "log_softmax" or _output_before(graph, made, 0) is None:
        return None
    values = nodes.saved_tensor(graph.nodes[made], "result")
    return values.detach() if values is not None and values.dim() == 2 and graph.setting(made, "axes") == (1,) else None


def _output_before(graph: Graph, at: int, place: int) -> tuple[int, ...] | None:
    """Shape of the output of the model that is an operand, in any arrangement or type; None for other operands."""
    made = _before(graph, at, place)
    return None if made.at == CONSTANT or graph.output(*made) is None else graph.shape(*made)


def _before(graph: Graph, at: int, place: int = 0) -> Operand:
    """What made an operand, past operations that only change arrangement or type; or the model's output."""
    below = graph.below[at]
    made = below[place] if place < len(below) else Operand(CONSTANT, 0)
    while made.at != CONSTANT and graph.operations[made.at].name in ORDERLY and graph.output(*made) is None:
        made = graph.below[made.at][0]
    return made
