"""Autograd's graph as plain numbers: what each operation is, what it takes, and whether it depends on the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, is_grad_enabled, nn

from watchglass.capture.pytorch.graph import nodes
from watchglass.records import Operation

#: Nodes that are read at most.
_MOST_NODES = 16_384
#: Index of an operand that has no part in the graph: a constant, or data.
CONSTANT = -1
#: Kinds that may have weights; those of layers, and of what is not known; and those that take data beside parameters.
_WEIGHTED = ("matrix", "looks_up", "recurs")
_LAYERS = (*_WEIGHTED, "normalizes", "unknown")
_WITH_DATA = ("looks_up", "recurs", "attends", "unknown")
#: Nodes of products that something is added to: it is the first operand, before the two factors.
_ADDING = ("Addmm", "Baddbmm", "Addbmm", "Addmv")


class Operand(NamedTuple):
    """What an operation takes: the index of the operation that made it, and which of its results."""

    at: int
    number: int


class Graph:
    """Operations in an order in which operands come before what takes them.

    Attributes:
        complete: Whether the whole graph was read.
        nodes: Nodes of autograd.
        operations: Their operations.
        below: Operands.
        parameters: Parameters by index.
        varying: Whether the results depend on data; otherwise on parameters alone.

    Args:
        start: Its last node.
        names: Finds the name of a parameter; "" for one of no model.
    """

    def __init__(self, start: Any, names: Callable[[Tensor], str] = lambda parameter: "") -> None:
        self.complete = True
        self.nodes: list[Any] = []
        self.operations: list[Operation] = []
        self.below: list[list[Operand]] = []
        self.parameters: dict[int, Tensor] = {}
        self.varying: list[bool] = []
        self._names = names
        self._read(start)

    def __len__(self) -> int:
        return len(self.nodes)

    def shape(self, index: int, number: int = 0) -> tuple[int, ...]:
        """Shape of a result; () where it is not known."""
        return () if index == CONSTANT else nodes.shape_of(self.nodes[index], number)

    def results(self, index: int) -> list[Operand]:
        """The operands of an operation that are results of others."""
        return [each for each in self.below[index] if each.at != CONSTANT]

    def name(self, index: int) -> str:
        """Name of a parameter; "" for one of no model."""
        return self._names(self.parameters[index])

    def word(self, index: int) -> str:
        """The word of an operation."""
        return self.operations[index].word

    def saved(self, index: int, name: str, default: Any = None) -> Any:
        """A number that an operation has saved, or several; ``default`` for anything else."""
        return nodes.saved(self.nodes[index], name, default)

    def factor(self, index: int) -> float | None:
        """The number that an operation multiplies its only operand by; None where it is not known at once."""
        side = "other" if self.below[index][0].at != CONSTANT else "self"
        number = nodes.number_of(nodes.saved_tensor(self.nodes[index], side))
        if number is None or self.operations[index].name == "mul":
            return number
        return 1 / number if number and side == "other" else None

    def weights(self, index: int) -> list[int]:
        """Indices of the parameters that an operation multiplies data by, its weight first; none for others."""
        kind, below = self.operations[index].kind, self.below[index]
        if kind == "unknown":
            found = [each.at for each in below if each.at in self.parameters]
            return found if any(self.parameters[each].dim() > 1 for each in found) else []
        if kind not in _WEIGHTED or not self.varying[index]:
            return []
        factors = below if kind == "recurs" else self._factors(index)
        fixed = [each.at for each in factors if each.at != CONSTANT and not self.varying[each.at]]
        return [parameter for each in fixed for parameter in self._parameters_of(each)]

    def _parameters_of(self, index: int, most: int = 16) -> list[int]:
        """Parameters from which a value that does not depend on data is computed."""
        waiting, found = [index], []
        for _ in range(most):
            if not waiting:
                break
            at = waiting.pop(0)
            if at in self.parameters:
                found.append(at)
            waiting += [each.at for each in self.results(at)]
        return found

    def _factors(self, index: int) -> list[Operand]:
        below, first = self.below[index], int(self.nodes[index].name().startswith(_ADDING))
        return below[first : first + 2]

    def _read(self, start: Any) -> None:
        numbers: dict[Any, int] = {}
        seen: set[Any] = set()
        stack: list[tuple[Any, Any]] = [(start, None)]
        while stack:
            node, operands = stack.pop()
            if operands is not None:
                numbers[node] = len(self.nodes)
                self._add(node, [Operand(numbers.get(child, CONSTANT), number) for child, number in operands])
                continue
            if node in seen:
                continue
            seen.add(node)
            if len(seen) > _MOST_NODES:
                self.complete = False
                return
            operands = nodes.operands(node)
            stack.append((node, operands))
            stack += [(child, None) for child, _ in operands if child is not None and child not in seen]

    def _add(self, node: Any, below: list[Operand]) -> None:
        operation, index = nodes.operation_of(node), len(self.nodes)
        self.nodes.append(node)
        self.operations.append(operation)
        self.below.append(below)
        if operation is nodes.PARAMETER:
            self.parameters[index] = node.variable
            self.varying.append(not is_parameter(node.variable))
        else:
            varying = any(each.at != CONSTANT and self.varying[each.at] for each in below)
            self.varying.append(varying or self._takes_data(index))

    def _takes_data(self, index: int) -> bool:
        """Whether an operation takes data in addition to parameters: data have no part in the graph."""
        kind, below = self.operations[index].kind, self.below[index]
        if kind in _WITH_DATA:
            return True
        if kind == "matrix":
            return any(each.at == CONSTANT for each in self._factors(index))
        if kind not in ("adds", "multiplies") or all(each.at != CONSTANT for each in below):
            return False
        # A parameter with a constant of its shape stays a parameter; with a batch it becomes as large as that.
        sizes = [math.prod(self.shape(*each)) for each in self.results(index)]
        return math.prod(self.shape(index)) > max(sizes, default=0)


def differentiates() -> bool:
    """In a hook on a tensor outside of any backward: whether ``torch.autograd.grad`` runs with ``create_graph=True``.

    What it returns may be a part of the loss: a gradient penalty, the inner step of MAML, the residual of a
    differential equation. The backward of that need not run through the tensor itself: of a network of linear layers
    and ReLU, the gradients depend on the weights alone.
    """
    return is_grad_enabled()


def reaches(tensor: Tensor, wanted: Callable[[Tensor], bool]) -> bool:
    """Whether a backward from a tensor runs through a layer of wanted parameters beside the outputs that are apart.

    A penalty on parameters is no layer.
    """
    # The state is whether what a node gives is an operand of a layer.
    walk = nodes.Walk(tensor.grad_fn, tensor.output_nr, False, _MOST_NODES, by_state=True)
    for node, _, used in walk:
        if any(each.apart for each in nodes.marks_of(node).values()):
            continue
        operation = nodes.operation_of(node)
        if operation is nodes.PARAMETER:
            if used and wanted(node.variable):
                return True
            continue
        kind = operation.kind
        walk.into(node, kind in _LAYERS or (used and kind == "arranges"))
    return False


def is_parameter(tensor: Tensor) -> bool:
    """Whether a leaf of the graph is a parameter of a module."""
    return isinstance(tensor, nn.Parameter)
