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
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from watchglass.capture.operation_graph import CONSTANT, Operand
from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.graph.loss_operations import ARRANGING, BY_WORD, REDUCTIONS, Traced, given_constants
from watchglass.capture.pytorch.saving.reduce import version_of

#: Operations of an expression that are followed at most.
_MOST_OPERATIONS = 64
#: Tensors of an expression between two calls of a model that are followed at most.
_MOST_FOLLOWED = 256
#: Relative difference of scales that are the same.
_SAME = 1e-6
#: A tensor that does not come from the model's outputs.
_OTHER = 0


class Unknown(Exception):
    """An operation that is not followed, or a model's parameter, is part of an expression."""


class Expression(NamedTuple):
    """How a loss is computed from a model's outputs.

    What only scales the loss at the end is left out: a sign, a division by the number of micro-batches. An evaluation
    need not have it.
    """

    key: int  #: Number of the expression without its scale.
    sign: float  #: 1 or -1: that of the scale.
    #: What the training loss is divided by to be comparable: the scale without its sign, and the number of elements of
    #: a sum.
    divisor: float
    summed: bool  #: Whether it is a sum over all of a batch.
    #: Of what an evaluation has the training loss: the value ("batch"), of a sum the mean per "row" or "element", or
    #: nothing ("").
    per: str


class Expressions:
    """Numbers expressions: those with the same operations on the same outputs have the same number."""

    def __init__(self) -> None:
        self._keys: dict[Any, int] = {}
        #: Operations that are part of one.
        self.operations: set[Traced] = set()

    def output(self, path: str) -> int | None:
        """Number of an output of a model, None where no loss is computed from it."""
        return self._keys.get(("output", path))

    def known(self, operation: Traced, constants: Sequence[Any], operands: Sequence[Any]) -> int | None:
        """Number of the result of an operation on these operands, None where it is no part of a loss."""
        return self._keys.get((operation.name, *constants, *operands))

    def read(self, graph: Graph, number: int) -> tuple[nn.Module, Expression] | None:
        """The expression of a loss, and the model; None where it holds other operations, parameters or several models.

        Args:
            graph: The graph of the loss, at least from outputs of models on.
            number: Which result of its last operation is the loss.
        """
        reading = _Reading(graph, self.number)
        try:
            sign, scale, root = reading.unscaled(Operand(len(graph) - 1, number))
            key = reading.key_of(root)
            summed = reading.summed(root)
        except Unknown:
            return None
        if len(reading.modules) != 1 or not scale > 0:
            return None
        self.operations.update(reading.followed.values())
        elements, rows = summed or (1, 1)
        kinds = (("row", 1.0), ("row", 1 / rows), ("element", 1 / elements)) if summed else (("batch", 1.0),)
        per = next((kind for kind, one in kinds if abs(scale / one - 1) < _SAME), "")
        expression = Expression(key, sign, scale * elements, summed is not None, per)
        return reading.modules.pop(), expression

    def number(self, *key: Any) -> int:
        """Number of an expression: its operation with constants and operands, or an output with its path."""
        return self._keys.setdefault(key, len(self._keys) + 1)


class _Reading:
    """One reading of the operations of a loss."""

    def __init__(self, graph: Graph, number: Callable[..., int]) -> None:
        self._graph, self._number, self._left = graph, number, _MOST_OPERATIONS
        self.modules: set[nn.Module] = set()
        #: By index the operations on outputs, the last one first.
        self.followed: dict[int, Traced] = {}

    def key_of(self, operand: Operand) -> int:
        """Number of the expression from a result down to the outputs."""
        self._left -= 1
        graph, at = self._graph, operand.at
        if at == CONSTANT:
            return _OTHER
        output = nodes.marks_of(graph.nodes[at]).get(operand.number)
        if output is not None and (module := output.module()) is not None:
            self.modules.add(module)
            return self._number("output", output.path)
        operation, below = BY_WORD.get(graph.word(at)), graph.below[at]
        if operation is None or self._left < 0 or not 0 < len(below) <= operation.operands:
            raise Unknown
        self.followed[at] = operation
        if operation is ARRANGING:
            return self.key_of(below[0])
        values = [(graph.setting(at, each.setting), each.default) for each in operation.constants]
        constants = [default if value is None else value for value, default in values]
        # A number is no operand of the nodes of some operations.
        operands: list[Any] = [*map(self.key_of, below), *[_OTHER] * (operation.operands - len(below))]
        if operation.numbers:
            for place, name in enumerate(("self", "other")):
                if operands[place] == _OTHER:
                    operands[place] = _other(graph.nodes[at], name)
        return self._number(operation.name, *constants, *operands)

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
        return _OTHER
    number = nodes.number_of(value)
    if number is None:
        raise Unknown  # on a device: it would have to be waited for
    return "number", number


class OperationTracer:
    """Traces the operations of a script on the outputs of one call of a model in an evaluation.

    Args:
        expressions: Expressions of the training losses.
        expression: That of the model.
        tensors: Outputs of the model, with paths.
        found: Called with what a loss was reduced from, the loss, and whether that is the only one so far.
    """

    def __init__(
        self,
        expressions: Expressions,
        expression: Expression,
        tensors: Iterable[tuple[str, Tensor]],
        found: Callable[[Tensor, Tensor, bool], None],
    ) -> None:
        self._expressions = expressions
        self._expression = expression
        self._found = found
        self._losses: list[weakref.ref[Tensor]] = []
        # By identity: the tensor, its version and its number.
        self._followed: dict[int, tuple[weakref.ref[Tensor], int, int]] = {}
        for path, tensor in tensors:
            key = expressions.output(path)
            if key is not None and type(tensor) is Tensor and not tensor.is_nested:
                self._follow(tensor, key)

    def __bool__(self) -> bool:
        return bool(self._followed)

    def observed(self, operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """An operation made ``result``."""
        first = args[0] if args else kwargs.get("input")
        if not isinstance(first, Tensor):
            return
        key = self._key(first)
        if operation is ARRANGING:
            if key and result is not first:
                self._follow(result, key)
            return
        operands: list[Any] = [key]
        if operation.operands > 1:
            other = args[1] if len(args) > 1 else kwargs.get("other")
            operands.append(self._key(other) if isinstance(other, Tensor) else _OTHER)
            if operation.numbers:
                operands = [self._number(at, value) for at, value in zip(operands, (first, other), strict=True)]
        if not any(type(each) is int and each for each in operands):
            return
        constants = given_constants(operation, args, kwargs, first)
        made = None if constants is None else self._expressions.known(operation, constants, operands)
        if made is None:
            return
        self._follow(result, made)
        if made == self._expression.key and result.numel() == 1:
            self._loss(first, result)

    def _number(self, key: Any, value: Any) -> Any:
        number = nodes.number_of(value) if key == _OTHER else None
        return key if number is None else ("number", number)

    def _loss(self, terms: Tensor, result: Tensor) -> None:
        if any(before() is result for before in self._losses):
            return  # observed twice: a function of PyTorch calls another
        self._losses.append(weakref.ref(result))
        self._found(terms, result, len(self._losses) == 1)

    def _follow(self, tensor: Tensor, key: int) -> None:
        if len(self._followed) < _MOST_FOLLOWED:
            self._followed[id(tensor)] = weakref.ref(tensor), version_of(tensor), key

    def _key(self, tensor: Tensor) -> int:
        known = self._followed.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != version_of(tensor):
            return _OTHER
        return known[2]
