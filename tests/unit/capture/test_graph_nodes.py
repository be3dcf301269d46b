"""Nodes of autograd as operations in neutral words."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from watchglass.capture.pytorch.graph import nodes
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.records import LOSSES, OPERATIONS, Operation

LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("made", "word", "name"),
    [
        (lambda x: x.view(-1), "reshape", "reshape"),
        (lambda x: x.double(), "copy", "copy"),
        (lambda x: x.T, "transpose", "transpose"),
        (lambda x: x.transpose(0, 1), "transpose", "transpose"),
        (lambda x: x.permute(1, 0), "transpose", "transpose"),
        (lambda x: x[:, 1:], "slice", "slice"),
        (lambda x: x[[0, 1], LABELS], "index", "index"),
        (lambda x: x.gather(1, LABELS[:, None]), "gather", "gather"),
        (lambda x: 1 - x, "rsub", "sub"),
        (lambda x: x - 1, "sub", "sub"),
        (lambda x: x.log2(), "log2", "log"),
        (lambda x: x.log1p(), "log1p", "log1p"),
        (lambda x: x.expm1(), "expm1", "exp"),
        (lambda x: x.std(), "std", "std"),
        (lambda x: x.var(), "var", "var"),
        (lambda x: F.hardsigmoid(x), "hardsigmoid", "hardsigmoid"),
        (lambda x: F.selu(x), "elu", "elu"),
        (lambda x: x.log_softmax(1), "log_softmax", "log_softmax"),
        (lambda x: F.linear(x, x), "linear", "linear"),
        (lambda x: x[None] @ x.T[None], "bmm", "bmm"),
        (lambda x: F.avg_pool1d(x, 2), "average_pool", "average_pool"),
        (lambda x: F.layer_norm(x, (4,)), "layer_norm", "layer_norm"),
        (lambda x: F.nll_loss(x, LABELS), "nll_loss", "nll_loss"),
        (lambda x: F.smooth_l1_loss(x, x.detach()), "smooth_l1_loss", "smooth_l1_loss"),
        (lambda x: F.binary_cross_entropy_with_logits(x, x.detach()), *["binary_cross_entropy_with_logits"] * 2),
    ],
)  # fmt: skip
def test_a_node_is_an_operation(made: Callable[[Tensor], Tensor], word: str, name: str) -> None:
    results = made(torch.rand(2, 4, requires_grad=True))
    found = [nodes.operation_of(node) for node, _ in nodes.chain(results.grad_fn, 0, OPERATIONS, 8)]
    assert any((each.word, each.name) == (word, name) for each in found), found
    assert OPERATIONS[word].name == name


def test_what_is_not_declared_has_the_name_of_its_node() -> None:
    node = torch.rand(2, 2, requires_grad=True).matrix_exp().grad_fn
    assert (nodes.operation_of(node).name, nodes.operation_of(node).kind) == (node.name(), "unknown")


def test_names_of_nodes_belong_to_one_operation_each_and_these_are_declared() -> None:
    listed = [node for names in nodes._NODES.values() for node in names]
    assert len(listed) == len(set(listed))
    assert {*nodes._NODES, *nodes._BEGINNINGS.values()} <= OPERATIONS.keys()


def test_every_operation_that_compares_is_a_kind_of_loss() -> None:
    assert {each.name for each in OPERATIONS.values() if each.kind == "loss"} <= LOSSES.keys()


def test_ranges_of_operations_hold() -> None:
    x = torch.linspace(-30, 30, 61).repeat(2, 1)
    functions = {name: getattr(torch, name, None) or getattr(F, name, None) for name in OPERATIONS}
    for name in ("relu", "softplus", "exp", "abs", "sigmoid", "hardsigmoid", "tanh", "sin", "atan", "erf", "expm1"):
        operation, values = OPERATIONS[name], functions[name](x)
        assert operation.low <= float(values.min()) <= float(values.max()) <= operation.high + 1e-6, name
    assert OPERATIONS["softmax"].probability
    assert OPERATIONS["log_softmax"].high == 0.0
    assert not OPERATIONS["relu"].probability


def test_a_mark_is_found_at_the_result_that_has_it_while_its_module_lives() -> None:
    module = nn.Linear(2, 2)
    first, second = module(torch.rand(3, 2)).chunk(2, 1)
    nodes.mark(second, nodes.Output(weakref.ref(module), "1", False, False))
    assert nodes.output_path(second.grad_fn, second.output_nr) == "1"
    assert nodes.output_path(first.grad_fn, first.output_nr) is None
    del module
    assert nodes.output_path(second.grad_fn, second.output_nr) is None


def test_a_walk_visits_the_nearest_first_and_goes_where_it_is_told() -> None:
    x = torch.rand(2, requires_grad=True)
    loss = (x.exp() + x.tanh().abs()).sum()
    walk = nodes.Walk(loss.grad_fn, 0, 0, 100)
    seen = []
    for node, _, depth in walk:
        seen.append((depth, nodes.operation_of(node).name))
        if nodes.operation_of(node).name != "abs":
            walk.into(node, depth + 1)
    assert seen == [(0, "sum"), (1, "add"), (2, "exp"), (2, "abs"), (3, "parameter")]


def test_a_graph_knows_the_weights_of_its_layers() -> None:
    layer = nn.Linear(2, 3)
    graph = Graph(layer(torch.rand(4, 2)).sum().grad_fn)
    (at,) = [at for at, each in enumerate(graph.operations) if each.weighted_sum]
    assert [graph.parameters[each] for each in graph.weights(at)] == [layer.weight]
    assert isinstance(graph.operations[at], Operation)
