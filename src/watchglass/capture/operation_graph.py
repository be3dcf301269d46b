"""The operations from which a loss is computed as plain numbers, read once from the graph of any framework."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from watchglass.records import Operation

#: Nodes that are read at most.
MOST_NODES = 16_384
#: Index of an operand that has no part in the graph: a constant, or data.
CONSTANT = -1
#: Kinds that may have weights, and those that take data beside parameters.
_WEIGHTED = ("matrix", "looks_up", "recurs")
_WITH_DATA = ("looks_up", "recurs", "attends", "unknown")


class Operand(NamedTuple):
    """What an operation takes: the index of the operation that made it, and which of its results."""

    at: int
    number: int


class OperationGraph(ABC):
    """Operations in an order in which operands come before what takes them.

    A framework's own is a subclass, whose methods say what the nodes of that framework are.

    Args:
        start: Its last node; None for an empty graph.
        most: Nodes that are read at most.
    """

    def __init__(self, start: Any, most: int = MOST_NODES) -> None:
        self.complete = True  #: Whether the whole graph was read.
        self.nodes: list[Any] = []  #: Nodes of the framework.
        self.operations: list[Operation] = []  #: Their operations.
        self.below: list[list[Operand]] = []  #: Operands.
        self.parameters: dict[int, Any] = {}  #: Parameters by index.
        self.varying: list[bool] = []  #: Whether the results depend on data; otherwise on parameters alone.
        self._read(start, most)

    @abstractmethod
    def operands_of(self, node: Any) -> Sequence[tuple[Any, int]]:
        """What a node takes: nodes and numbers of their results; None in place of a node for a constant, or data."""

    @abstractmethod
    def operation_of(self, node: Any) -> Operation:
        """The operation of a node; of kind ``parameter`` for a leaf."""

    @abstractmethod
    def parameter_of(self, node: Any) -> tuple[Any, bool]:
        """What a leaf holds, and whether that is a parameter; else it is data."""

    @abstractmethod
    def shape(self, index: int, number: int = 0) -> tuple[int, ...]:
        """Shape of a result; () where it is not known."""

    @abstractmethod
    def setting(self, index: int, name: str) -> Any:
        """A setting of an operation; None where it has none, or that is not known.

        ``axes`` of a softmax or a reduction, counted from the first; ``order`` of a transposition, by axis of the
        result the one before; ``alpha``, by which a sum multiplies its second operand; ``factor``, by which a product
        or quotient multiplies its only operand; ``exponent``, ``min``, ``max``; ``reduction``, ``"none"``, ``"mean"``
        or ``"sum"``; ``training``, 0 for a normalisation that uses averages of earlier batches.
        """

    def factors(self, index: int) -> Sequence[Operand]:
        """The two operands that a product of matrices multiplies."""
        return self.below[index][:2]

    def __len__(self) -> int:
        return len(self.nodes)

    def results(self, index: int) -> list[Operand]:
        """The operands of an operation that are results of others."""
        return [each for each in self.below[index] if each.at != CONSTANT]

    def word(self, index: int) -> str:
        """The word of an operation."""
        return self.operations[index].word

    def size(self, index: int, number: int = 0) -> int:
        """Elements of a result; 1 where that is not known."""
        return math.prod(self.shape(index, number))

    def weights(self, index: int) -> list[int]:
        """Indices of the parameters that an operation multiplies data by, its weight first; none for others."""
        kind, below = self.operations[index].kind, self.below[index]
        if kind == "unknown":
            found = [each.at for each in below if each.at in self.parameters]
            return found if any(len(self.shape(each)) > 1 for each in found) else []
        if kind not in _WEIGHTED or not self.varying[index]:
            return []
        factors = below if kind == "recurs" else self.factors(index)
        fixed = [each.at for each in factors if each.at != CONSTANT and not self.varying[each.at]]
        return [parameter for each in fixed for parameter in self._parameters_before(each)]

    def _parameters_before(self, index: int, most: int = 16) -> list[int]:
        """Parameters from which a value that does not depend on data is computed."""
        waiting = [index]
        for at in waiting:
            waiting += [each.at for each in self.results(at)][: most - len(waiting)]
        return [at for at in waiting if at in self.parameters]

    def _read(self, start: Any, most: int) -> None:
        numbers: dict[Any, int] = {}
        seen: set[Any] = set()
        stack: list[tuple[Any, Any]] = [(start, None)] if start is not None else []
        while stack:
            node, operands = stack.pop()
            if operands is not None:
                numbers[node] = len(self.nodes)
                self._add(node, [Operand(numbers.get(child, CONSTANT), number) for child, number in operands])
            elif node not in seen:
                seen.add(node)
                if len(seen) > most:
                    self.complete = False
                    return
                operands = self.operands_of(node)
                stack.append((node, operands))
                for child, _ in operands:
                    if child is not None and child not in seen:
                        stack.append((child, None))

    def _add(self, node: Any, below: list[Operand]) -> None:
        operation, index = self.operation_of(node), len(self.nodes)
        self.nodes.append(node)
        self.operations.append(operation)
        self.below.append(below)
        varying = False
        if operation.kind == "parameter":
            self.parameters[index], trained = self.parameter_of(node)
            varying = not trained
        else:
            for each in below:
                varying = varying or (each.at != CONSTANT and self.varying[each.at])
            varying = varying or self._takes_data(index)
        self.varying.append(varying)

    def _takes_data(self, index: int) -> bool:
        """Whether an operation takes data in addition to parameters: data have no part in the graph."""
        kind, below = self.operations[index].kind, self.below[index]
        if kind in _WITH_DATA:
            return True
        if kind == "matrix":
            return any(each.at == CONSTANT for each in self.factors(index))
        if kind not in ("adds", "multiplies") or all(each.at != CONSTANT for each in below):
            return False
        # A parameter with a constant of its shape stays a parameter; with a batch it becomes as large as that.
        return self.size(index) > max((self.size(*each) for each in self.results(index)), default=0)
