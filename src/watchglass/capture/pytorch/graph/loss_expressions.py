"""Losses that a script writes with tensor operations: the expression of the training loss, found in evaluations too.

``((model(x) - y) ** 2).mean()`` calls no loss function. At captured training steps autograd's graph is read from the
start of a backward down to the model's outputs: it shows each operation and its numbers. In an evaluation the same
operations are observed (``loss_operations.py``), and their results are followed from the
model's outputs on. A value that exactly the same operations made, the only one since the model was called, is the loss
of that call. So a metric in the same evaluation (an absolute error next to a squared one, an accuracy) is never taken
for the loss.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import nn

from watchglass.capture.operation_graph import CONSTANT, Operand
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.graph.loss_operations import ARRANGING, BY_WORD, REDUCTIONS, Traced

#: Operations of an expression that are followed at most.
_MOST_OPERATIONS = 64
#: Relative difference of scales that are the same.
_SAME = 1e-6
#: An operation, constants and operands; ``("output", path)``; ``("number", value)``; or :data:`OTHER`.
Key = tuple[Any, ...]
#: A tensor that does not come from the model's outputs.
OTHER: Key = ()


class Unknown(Exception):
    """An operation that is not followed, or a model's parameter, is part of an expression."""


class Expression(NamedTuple):
    """How a loss is computed from a model's outputs.

    What only scales the loss at the end is left out: a sign, a division by the number of micro-batches. An evaluation
    need not have it.
    """

    #: The expression without its scale: an operation with its constants and operands, which are expressions, too.
    key: Key
    sign: float  #: 1 or -1: that of the scale.
    #: What the training loss is divided by to be comparable: the scale without its sign, and the number of elements of
    #: a sum.
    divisor: float
    summed: bool  #: Whether it is a sum over all of a batch.
    #: Of what an evaluation has the training loss: the value ("batch"), of a sum the mean per "row" or "element", or
    #: nothing ("").
    per: str
    operations: frozenset[Traced]  #: Its operations, and those that only arrange.
    parts: frozenset[Key]  #: It, and all expressions that it is made of.


def read(graph: Graph, number: int) -> tuple[nn.Module, Expression] | None:
    """The model whose outputs a loss is made of, and how; None for other operations, parameters or several models.

    Args:
        graph: The graph of the loss, at least from outputs of models on.
        number: Which result of its last operation is the loss.
    """
    reading = _Reading(graph)
    try:
        sign, scale, root = reading.unscaled(Operand(len(graph) - 1, number))
        key = reading.key_of(root)
        summed = reading.summed(root)
    except Unknown:
        return None
    if len(reading.modules) != 1 or not scale > 0:
        return None
    elements, rows = summed or (1, 1)
    kinds = (("row", 1.0), ("row", 1 / rows), ("element", 1 / elements)) if summed else (("batch", 1.0),)
    per = next((kind for kind, one in kinds if abs(scale / one - 1) < _SAME), "")
    operations = frozenset((*reading.followed.values(), ARRANGING))
    found = Expression(key, sign, scale * elements, summed is not None, per, operations, frozenset(reading.parts))
    return reading.modules.pop(), found


class _Reading:
    """One reading of the operations of a loss."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._left = graph, _MOST_OPERATIONS
        self.modules: set[nn.Module] = set()
        self.parts: set[Key] = set()
        #: By index the operations on outputs, the last one first.
        self.followed: dict[int, Traced] = {}

    def key_of(self, operand: Operand) -> Key:
        """The expression from a result down to the outputs."""
        self._left -= 1
        graph, at = self._graph, operand.at
        if at == CONSTANT:
            return OTHER
        output = nodes.marks_of(graph.nodes[at]).get(operand.number)
        if output is not None and (module := output.module()) is not None:
            self.modules.add(module)
            return self._part("output", output.path)
        operation, below = BY_WORD.get(graph.word(at)), graph.below[at]
        if operation is None or self._left < 0 or not 0 < len(below) <= operation.operands:
            raise Unknown
        self.followed[at] = operation
        if operation is ARRANGING:
            return self.key_of(below[0])
        values = [(graph.setting(at, each.setting), each.default) for each in operation.constants]
        constants = [default if value is None else value for value, default in values]
        # A number is no operand of the nodes of some operations.
        operands: list[Any] = [*map(self.key_of, below), *[OTHER] * (operation.operands - len(below))]
        if operation.numbers:
            for place, name in enumerate(("self", "other")):
                if operands[place] == OTHER:
                    operands[place] = _other(graph.nodes[at], name)
        return self._part(operation.name, *constants, *operands)

    def _part(self, *key: Any) -> Key:
        self.parts.add(key)
        return key

    def unscaled(self, operand: Operand) -> tuple[float, float, Operand]:
        """Sign and scale at the end of an expression, and the result before them."""
        graph, sign, scale = self._graph, 1.0, 1.0
        while operand.at != CONSTANT:
            at, below = operand.at, graph.results(operand.at)
            operation = BY_WORD.get(graph.word(at))
            factor: float | None = -1.0 if operation is not None and operation.name == "neg" else None
            if operation is not None and operation.numbers and len(below) == 1:
                factor = graph.setting(at, "factor")
            if len(below) != 1 or (factor is None and operation is not ARRANGING):
                break
            if factor is not None:
                sign, scale = (sign if factor > 0 else -sign), scale * abs(factor)
            operand = below[0]
        return sign, scale, operand

    def summed(self, root: Operand) -> tuple[int, int] | None:
        """Elements and rows of what an expression is the sum of, None where it is none.

        Raises:
            Unknown: There is a sum over the batch inside of it, or one of what is no longer a batch: what it is worth
                for a sample is not known.
        """
        found = None
        for at, operation in self.followed.items():
            if operation.name not in REDUCTIONS:
                continue
            shape, axes = self._graph.shape(*self._graph.below[at][0]), self._graph.setting(at, "axes")
            if shape and 0 not in axes:
                continue
            if operation.name == "sum" and at == root.at and shape and len(axes) == len(shape):
                found = max(1, math.prod(shape)), max(1, shape[0])
            elif operation.name == "sum" or found is not None:
                raise Unknown
        return found


def _other(node: Any, name: str) -> Any:
    """An operand that does not come from the model, where autograd keeps it: a number counts, a tensor may be any."""
    value = nodes.saved_tensor(node, name)
    if value is None:
        raise Unknown
    if value.dim():
        return OTHER
    number = nodes.number_of(value)
    if number is None:
        raise Unknown  # on a device: it would have to be waited for
    return "number", number
