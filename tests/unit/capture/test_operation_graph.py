"""A graph of no framework feeds the facts about losses and layers, and the rules that read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from watchglass.capture.facts import forward_layers, loss_terms
from watchglass.capture.operation_graph import OperationGraph
from watchglass.records import OPERATIONS, PARAMETER, Operation
from watchglass.rules.graph.forward import ForwardGraph
from watchglass.rules.graph.mistakes import mistakes
from watchglass.rules.graph.terms import data_terms


@dataclass(eq=False)
class Node:
    """An operation as another framework has it: a parameter has a name."""

    word: str
    shape: tuple[int, ...]
    of: tuple[Node | None, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = ""


class Toy(OperationGraph):
    """Its graph."""

    def operands_of(self, node: Node) -> Sequence[tuple[Any, int]]:
        return [(each, 0) for each in node.of]

    def operation_of(self, node: Node) -> Operation:
        return PARAMETER if node.name else OPERATIONS[node.word]

    def parameter_of(self, node: Node) -> tuple[Any, bool]:
        return node, True

    def shape(self, index: int, number: int = 0) -> tuple[int, ...]:
        return () if index < 0 else self.nodes[index].shape

    def setting(self, index: int, name: str) -> Any:
        return self.nodes[index].settings.get(name)


def name_of(node: Any) -> str:
    return str(node.name)


def linear(of: Node | None, name: str, units: int, inputs: int) -> Node:
    return Node("linear", (8, units), (of, Node("", (inputs, units), name=name)))


def test_a_softmax_over_the_batch_is_found_in_any_graph() -> None:
    output = linear(None, "dense/kernel", 4, 6)
    shares = Node("log_softmax", (8, 4), (output,), {"axes": (0,)})
    loss = Node("nll_loss", (), (shares,), {"reduction": "mean"})
    fact = loss_terms.described(Toy(loss), name_of)
    (term,) = fact.terms
    assert [(each.operation, each.layer) for each in term.operations] == [
        ("linear", "dense/kernel"), ("log_softmax", None), ("nll_loss", None),
    ]  # fmt: skip
    (found,) = mistakes(data_terms(fact), (), 8, 0.05, 0)
    assert (found.symptom, found.value, found.limit) == ("normalized_over_batch", 8.0, 4.0)


def test_terms_have_their_factors_in_any_graph() -> None:
    weight = Node("", (6, 4), name="dense/kernel")
    squares = Node("sum", (), (Node("pow", (6, 4), (weight,), {"exponent": 2.0}),), {"axes": (0, 1)})
    penalty = Node("mul", (), (squares, None), {"factor": 0.5})
    difference = Node("sub", (8, 4), (linear(None, "dense/kernel", 4, 6), None))
    error = Node("mean", (), (Node("pow", (8, 4), (difference,), {"exponent": 2.0}),), {"axes": (0, 1)})
    fact = loss_terms.described(Toy(Node("sub", (), (error, penalty), {"alpha": 0.1})), name_of)
    assert [(term.kind, term.coefficient) for term in fact.terms] == [("data", 1.0), ("penalty", -0.05)]
    assert fact.terms[1].operations[0].of == ("parameter",)


def test_layers_without_an_activation_between_them_are_found_in_any_graph() -> None:
    hidden = Node("dropout", (8, 16), (linear(None, "first/kernel", 16, 6),))
    graph = ForwardGraph(forward_layers.described(Toy(linear(hidden, "second/kernel", 4, 16)), name_of))
    assert graph.whole
    assert [(layer.name, layer.inputs, layer.outputs) for layer in graph.layers] == [
        ("first/kernel", 6, 16), ("second/kernel", 16, 4),
    ]  # fmt: skip
    assert [graph.superfluous(pair) for pair in graph.pairs] == [True]
