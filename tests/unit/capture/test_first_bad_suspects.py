"""Which operations of a loss are looked at before each backward, and how often."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from watchglass.capture.pytorch.first_bad.lines import OperationLines, ways_of
from watchglass.capture.pytorch.first_bad.suspects import Suspects
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.saving.norm_interval import NormInterval


def pace(step_ns: float) -> NormInterval:
    """For steps of this length, of which 1 % may go to looks."""
    plan: Any = SimpleNamespace(budget=SimpleNamespace(step_ns=step_ns, share=0.01))
    return NormInterval(plan, 1.0, 64)


def suspects_of(loss: Tensor, step_ns: float = 1e12) -> Suspects:
    graph = Graph(loss.grad_fn)
    found = Suspects(pace(step_ns))
    found.learn(0, 0, graph, ways_of(graph), OperationLines())
    return found


def outputs(scale: float = 1.0) -> Tensor:
    return torch.full((4, 3), scale, requires_grad=True)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x.square().sum(), []),
        (lambda x: torch.nn.functional.cross_entropy(x, torch.zeros(4, dtype=torch.long)), []),
        (lambda x: (x / x.norm()).sum() + x.log().sum(), []),
        (lambda x: x.sqrt().sum(), ["SqrtBackward0"]),
        (lambda x: (x + 1).acosh().sum(), ["AcoshBackward0"]),
        (lambda x: (x**1.5).sum() + (x**0.5).sum(), ["PowBackward0"]),
        (lambda x: torch.where(x > 0, x.log(), x).sum(), ["LogBackward0"]),
        (lambda x: torch.where(x > 0, x / 2, x).sum(), []),
        (lambda x: torch.where(x > 0, 1 / x, x).sum(), ["ReciprocalBackward0"]),
    ],
)
def test_only_operations_whose_gradient_may_be_infinite_are_looked_at(
    function: Callable[[Tensor], Tensor], names: list[str]
) -> None:
    assert [suspect.name for suspect in suspects_of(function(outputs())).all] == names


def test_an_operation_is_found_again_in_the_graph_of_another_step() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x * 2).square().sum(1).sqrt().mean()

    suspects = suspects_of(loss(outputs()))
    assert not suspects.are_bad(loss(outputs(3.0)).grad_fn)
    assert suspects.are_bad(loss(outputs(0.0)).grad_fn)
    # Another loss has another operation in its place, or none.
    assert not suspects.are_bad(outputs(0.0).square().sum().grad_fn)


def test_the_root_of_something_negative_in_a_branch_that_is_not_taken_is_bad() -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.where(x > 0, x.sqrt(), x).sum()

    suspects = suspects_of(loss(outputs()))
    assert not suspects.are_bad(loss(outputs(2.0)).grad_fn)
    assert suspects.are_bad(loss(outputs(-2.0)).grad_fn)


def test_an_operation_with_false_alarms_is_dropped() -> None:
    suspects = suspects_of(outputs().sqrt().sum())
    bad: Any = outputs(0.0).sqrt().sum().grad_fn
    for _ in range(3):
        assert suspects.are_bad(bad)
        suspects.alarmed()
    assert not suspects.are_bad(bad)


def test_looks_are_as_rare_as_the_budget_demands() -> None:
    bad: Any = outputs(0.0).sqrt().sum().grad_fn
    often, seldom = suspects_of(outputs().sqrt().sum()), suspects_of(outputs().sqrt().sum(), step_ns=1.0)
    assert all(often.are_bad_if_affordable(bad) for _ in range(100))
    assert sum(seldom.are_bad_if_affordable(bad) for _ in range(640)) < 20


def test_the_first_graphs_of_each_model_are_read_and_one_in_each_doubling_of_its_steps() -> None:
    graph = Graph(outputs().sqrt().sum().grad_fn)
    suspects, read = Suspects(pace(1e12)), []
    for step in range(100):
        if suspects.wants(0, step):
            suspects.learn(0, step, graph, ways_of(graph), OperationLines())
            read.append(step)
    assert read == [0, 1, 2, 6, 14, 30, 62]
    assert suspects.wants(1, 63)
    assert len(suspects.all) == 1


@pytest.mark.parametrize("depth", [40, 60, 200])
def test_an_operation_deep_in_the_graph_is_looked_at(depth: int) -> None:
    def loss(x: Tensor) -> Tensor:
        values = x.square().sum(1).sqrt()
        for _ in range(depth):
            values = values + 1
        return values.mean()

    suspects = suspects_of(loss(outputs()))
    assert [suspect.name for suspect in suspects.all] == ["SqrtBackward0"]
    assert suspects.are_bad(loss(outputs(0.0)).grad_fn)


def test_complex_values_have_no_extremes_and_are_not_looked_at() -> None:
    def loss(x: Tensor) -> Tensor:
        spectrum = torch.fft.fft(x)
        chosen = torch.where(spectrum.abs() > 1, spectrum.log() / spectrum, spectrum)
        return (spectrum.sqrt() + spectrum.exp() + chosen).abs().sum()

    suspects = suspects_of(loss(outputs()))
    assert all(not suspect.name.startswith(("Exp", "Log", "Sqrt", "Div")) for suspect in suspects.all)
    # The script may go on with another type of numbers in the same place.
    of_numbers = suspects_of(outputs().exp().abs().sum())
    assert not of_numbers.are_bad(torch.complex(outputs(), outputs()).exp().abs().sum().grad_fn)
