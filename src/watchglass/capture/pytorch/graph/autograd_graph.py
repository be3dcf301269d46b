"""Autograd's graph of the start of a backward, and where a backward runs through."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor, is_grad_enabled, nn

from watchglass.capture.operation_graph import MOST_NODES, Operand, OperationGraph
from watchglass.capture.pytorch.graph import nodes
from watchglass.records import PARAMETER

#: Kinds of layers, and of what is not known.
_LAYERS = ("matrix", "looks_up", "recurs", "normalizes", "unknown")
#: Nodes of products that something is added to: it is the first operand, before the two factors.
_ADDING = ("Addmm", "Baddbmm", "Addbmm", "Addmv")
_REDUCTIONS = ("none", "mean", "sum")
#: Operations on outputs of modules that are read at most.
_MOST_OF_OUTPUTS = 256


class Graph(OperationGraph):
    """Operations of autograd's nodes. It keeps them alive, so it may not outlive the callback that reads it."""

    operands_of = staticmethod(nodes.operands)
    operation_of = staticmethod(nodes.operation_of)

    def parameter_of(self, node: Any) -> tuple[Any, bool]:
        """The tensor of a leaf, and whether it is a parameter of a module."""
        return node.variable, isinstance(node.variable, nn.Parameter)

    def shape(self, index: int, number: int = 0) -> tuple[int, ...]:
        """Shape of a result."""
        return () if index < 0 else nodes.shape_of(self.nodes[index], number)

    def setting(self, index: int, name: str) -> Any:
        """A setting of an operation."""
        node = self.nodes[index]
        if name == "factor":
            return nodes.factor_of(node)
        value = nodes.saved(node, "dim" if name == "axes" else name)
        if name in ("axes", "order"):
            of = next(iter(self.results(index)), None)
            axes = 0 if of is None else len(self.shape(*of))
            return nodes.axes_of(value, axes) if name == "axes" else nodes.order_of(node, axes)
        if name == "reduction":
            return _REDUCTIONS[value] if isinstance(value, int) and 0 <= value < len(_REDUCTIONS) else None
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def output(self, index: int, number: int) -> str | None:
        """Path of the output of a living module that a result is."""
        return nodes.output_path(self.nodes[index], number)

    def factors(self, index: int) -> Sequence[Operand]:
        """The two operands that a product of matrices multiplies."""
        first = int(self.nodes[index].name().startswith(_ADDING))
        return self.below[index][first : first + 2]

    def saved(self, index: int, name: str, default: Any = None) -> Any:
        """A number that a node has saved, or several; ``default`` for anything else."""
        return nodes.saved(self.nodes[index], name, default)


class BackwardStart:
    """Where a backward starts, with the graph below, which is read once for all who need it, when the first asks.

    It may not outlive the start of the backward.
    """

    def __init__(self, node: Any) -> None:
        self.node = node  #: The node that made the loss; None without a graph.

    @cached_property
    def graph(self) -> Graph:
        """The graph that ends at the node."""
        return Graph(self.node)

    @cached_property
    def of_outputs(self) -> Graph:
        """The graph, at least from outputs of modules on; incomplete where it has many operations there."""
        known: Graph | None = vars(self).get("graph")
        return known if known is not None and known.complete else _OfOutputs(self.node, _MOST_OF_OUTPUTS)


class _OfOutputs(Graph):
    """Operations on outputs of modules."""

    @staticmethod
    def operands_of(node: Any) -> Sequence[tuple[Any, int]]:
        """What a node takes; nothing for one that made such an output."""
        return () if any(each.module() is not None for each in nodes.marks_of(node).values()) else nodes.operands(node)


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
    walk = nodes.Walk(tensor.grad_fn, tensor.output_nr, False, MOST_NODES, by_state=True)
    for node, _, used in walk:
        if any(each.apart for each in nodes.marks_of(node).values()):
            continue
        operation = nodes.operation_of(node)
        if operation is PARAMETER:
            if used and wanted(node.variable):
                return True
            continue
        kind = operation.kind
        walk.into(node, kind in _LAYERS or (used and kind == "arranges"))
    return False
