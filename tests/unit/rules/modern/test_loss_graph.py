"""LossGraph: hand-written losses that do something else than is meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from loss_terms import terms_of
from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import training
from watchglass.capture.facts.loss_terms import described
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import capture_for, find_rule
from watchglass.rules.graph.mistakes import mistakes
from watchglass.rules.graph.terms import LossTerm
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "LossGraph"


def graph(*operations: dict[str, Any], coefficient: float = 1.0) -> dict[str, Any]:
    """A fact about one term, whose first operation is the last layer with four classes for 32 samples."""
    layer = {"operation": "linear", "shape": [32, 4], "layer": "readout.weight"}
    term = {"kind": "data", "whole": True, "coefficient": coefficient, "operations": [layer, *operations]}
    return {"loss_graph": {"terms": [term], "batch": 32, "complete": True}}


def softmax(axis: int, name: str = "log_softmax", of: int = 0) -> dict[str, Any]:
    size = (32, 4)[axis]
    return {"operation": name, "shape": [32, 4], "of": [of], "axis": axis, "size": size, "axis_of_output": axis}


NLL = {"operation": "nll_loss", "shape": [], "of": [1], "reduction": "mean", "elements": 128, "rows": 32}


class TestLossGraph(RuleSuite):
    rule = find_rule(RULE)
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(20, facts={0: graph(softmax(0), NLL)})

    def healthy(self) -> Sequence[Step]:
        return training(20, facts={0: graph(softmax(1), NLL)})


class TestLossGraphInRealRuns(RealRuns):
    rule = "LossGraph"
    cause = "loss_on_wrong_axis"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(40):
            inputs, labels = batch()
            logs = model(inputs).log_softmax(0 if sick else 1)
            loss = -(F.one_hot(labels, 4) * logs).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


Loss = Callable[[Tensor, Tensor], Tensor]


def found_in(run: Path, loss: Loss, units: int = 4, rate: float = 0.01, steps: int = 12) -> list[tuple[str, str]]:
    """Severity and first cause of each finding about a loss of the outputs of a linear layer."""
    torch.manual_seed(0)
    model = nn.Linear(16, units)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with watchglass.watch(model, run=run, strict=True, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        for _ in range(steps):
            inputs, labels = batch()
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
        # A run ends with an evaluation.
        with torch.no_grad():
            model(inputs)
    return [(f.severity.value, "".join(f.causes[:1])) for f in replay(str(run), [RuleSpec(RULE)]).findings]


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, 4).float()


def of_five(labels: Tensor) -> Tensor:
    return F.one_hot(labels.view(4, 8), 5).float()


def binary(share: Tensor, labels: Tensor) -> Tensor:
    target = one_hot(labels)
    return -(target * share.log() + (1 - target) * (1 - share).log()).mean()


class Weight(nn.Module):
    """The weight of a task, which is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(()))

    @classmethod
    def of(cls, out: Tensor) -> Tensor:
        """One, from a parameter."""
        return cls().logarithm.exp()


def picked(out: Tensor, labels: Tensor) -> Tensor:
    return out[torch.arange(len(labels)), labels]


def shares(out: Tensor, axis: int) -> Tensor:
    exponentials = (out - out.max()).exp()
    return exponentials / (exponentials.sum(axis, keepdim=True) + 1e-9)


def pixels(labels: Tensor) -> Tensor:
    return (labels % 3)[:, None, None].expand(-1, 4, 4)


def overlap(out: Tensor, target: Tensor) -> Tensor:
    return 1 - (2 * (out * target).sum(1) / (out.sum(1) + target.sum(1) + 1)).mean()


def similarities(out: Tensor) -> Tensor:
    return F.normalize(out, dim=1) @ F.normalize(out.flip(0), dim=1).T


def focal(shares: Tensor, target: Tensor) -> Tensor:
    right = shares * target + (1 - shares) * (1 - target)
    return (-((1 - right) ** 2) * (right + 1e-8).log()).mean()


@pytest.mark.parametrize(
    ("loss", "units", "found"),
    [
        (lambda out, y: F.nll_loss(F.log_softmax(out, 0), y), 4, ("error", "loss_on_wrong_axis")),
        (lambda out, y: -(one_hot(y) * out.softmax(0).log()).sum(1).mean(), 4, ("warning", "loss_on_wrong_axis")),
        (lambda out, y: F.nll_loss(out.T.log_softmax(1).T, y), 4, ("error", "loss_on_wrong_axis")),
        (lambda out, y: -(one_hot(y) * out.clamp(min=1e-7).log()).mean(), 4, ("warning", "logits_as_probabilities")),
        (lambda out, y: binary(out.clamp(1e-6, 1 - 1e-6), y), 4, ("warning", "logits_as_probabilities")),
        (lambda out, y: F.nll_loss(out.softmax(1).log_softmax(1), y), 4, ("warning", "softmax_applied_twice")),
        (lambda out, y: binary(out.sigmoid().sigmoid(), y), 4, ("warning", "sigmoid_applied_twice")),
        (lambda out, y: F.cross_entropy(out.clamp(-1, 1), y), 4, ("warning", "output_out_of_range")),
        (lambda out, y: ((out - y) ** 2).mean(), 1, ("error", "loss_broadcasts")),
        (lambda out, y: (y[:, None] - out.squeeze()).abs().mean(), 1, ("error", "loss_broadcasts")),
        (lambda out, y: ((out.mean(0) - one_hot(y)) ** 2).mean(), 4, ("error", "outputs_averaged")),
        (lambda out, y: -(one_hot(y) * out.log_softmax(1).mean(0)).sum(1).mean(), 4, ("error", "outputs_averaged")),
        (lambda out, y: F.cross_entropy(out, y, reduction="sum"), 4, ("info", "")),
        (lambda out, y: F.cross_entropy(out, y, reduction="sum") * Weight.of(out), 4, ("info", "")),
        # Four sequences of eight positions and five classes.
        (lambda out, y: F.cross_entropy(out.view(4, 5, 8), y.view(4, 8)), 5, ("warning", "loss_on_wrong_axis")),
        (lambda out, y: F.cross_entropy(out.view(5, 32).T, y), 5, ("warning", "loss_on_wrong_axis")),
        (lambda out, y: -(of_five(y) * out.view(4, 8, 5).log_softmax(1)).sum(2).mean(), 5,
         ("warning", "loss_on_wrong_axis")),
        (lambda out, y: F.nll_loss(out.view(4, 8, 5).log_softmax(0).view(32, 5), y), 5,
         ("error", "loss_on_wrong_axis")),
        (lambda out, y: F.nll_loss(out.view(4, 8, 5).log_softmax(1).view(32, 5), y), 5,
         ("error", "loss_on_wrong_axis")),
        (lambda out, y: F.nll_loss(out.log_softmax(0), y), 32, ("error", "loss_on_wrong_axis")),
        (lambda out, y: -shares(out, 0).gather(1, y[:, None]).log().mean(), 4, ("warning", "loss_on_wrong_axis")),
        (lambda out, y: -picked(out - out.logsumexp(0), y).mean(), 4, ("warning", "loss_on_wrong_axis")),
        (lambda out, y: -out.view(4, 8, 5).log_softmax(1).gather(2, y.view(4, 8, 1) % 5).mean(), 5,
         ("warning", "loss_on_wrong_axis")),
        # Images of four by four pixels.
        (lambda out, y: F.nll_loss(out.view(32, 3, 4, 4).log_softmax(3), pixels(y)), 48,
         ("error", "loss_on_wrong_axis")),
        (lambda out, y: -picked(out, y).mean(), 4, ("warning", "logits_as_probabilities")),
        (lambda out, y: -(one_hot(y) * out).sum(1).mean(), 4, ("warning", "logits_as_probabilities")),
        (lambda out, y: -picked((out.relu() + 1e-7).log(), y).mean(), 4, ("warning", "logits_as_probabilities")),
        (lambda out, y: F.nll_loss(F.batch_norm(out, None, None, training=True), y), 4,
         ("warning", "logits_as_probabilities")),
        (lambda out, y: F.binary_cross_entropy(out.clamp(1e-6, 1 - 1e-6), one_hot(y)), 4,
         ("warning", "logits_as_probabilities")),
        (lambda out, y: overlap(out, one_hot(y)), 4, ("warning", "logits_as_probabilities")),
        (lambda out, y: focal(out.clamp(1e-4, 1 - 1e-4), one_hot(y)), 4, ("warning", "logits_as_probabilities")),
    ],
)  # fmt: skip
def test_each_mistake_has_its_cause(run_path: Path, loss: Loss, units: int, found: tuple[str, str]) -> None:
    assert found_in(run_path, loss, units) == [found]


@pytest.mark.parametrize(
    ("loss", "units"),
    [
        (lambda out, y: -(one_hot(y) * out.softmax(1).clamp(min=1e-7).log()).sum(1).mean(), 4),
        (lambda out, y: binary(out.sigmoid(), y), 4),
        # Moments of the outputs, with those of the targets.
        (lambda out, y: ((out.mean(0) - one_hot(y).mean(0)) ** 2).mean(), 4),
        (lambda out, y: ((out - out.mean(0) - one_hot(y)) ** 2).mean(), 4),
        # Contrast of samples, in both directions.
        (lambda out, y: -(similarities(out).log_softmax(0) + similarities(out).log_softmax(1)).diag().mean(), 4),
        # A ranking of all samples, and a pooling over them.
        (lambda out, y: -(y[:, None].float().softmax(0) * out.log_softmax(0)).sum(), 1),
        (lambda out, y: (((out.softmax(0) * out).sum(0)) ** 2).sum(), 4),
        # A rate with its logarithm, and a variance with its own.
        (lambda out, y: (out.clamp(min=1e-3) - y[:, None] * out.clamp(min=1e-3).log()).mean(), 1),
        # Ratios of depths.
        (lambda out, y: ((out.clamp(min=1e-3).log() - y[:, None].clamp(min=1).log()) ** 2).mean(), 1),
        # The logarithm of a spread, clamped as usual, and pairs of samples on purpose.
        (lambda out, y: (out.clamp(-20, 2).exp() - out.clamp(-20, 2)).mean(), 1),
        (lambda out, y: F.softplus(out - out.T).mean(), 1),
        (lambda out, y: ((out[:, None] - y.view(1, -1, 1)) ** 2).mean(), 1),
        (lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y), 4),
        # Sequences: with axes swapped as they should be, and weights of a pooling over positions.
        (lambda out, y: F.cross_entropy(out.view(4, 8, 5).transpose(1, 2), y.view(4, 8)), 5),
        (lambda out, y: F.cross_entropy(out.view(4, 8, 5).mT.reshape(4, 5, 2, 4), y.view(4, 2, 4)), 5),
        (lambda out, y: F.cross_entropy((out.view(4, 8, 5).softmax(1) * out.view(4, 8, 5)).sum(1), y[:4]), 5),
        # The beginnings and ends of spans, whose classes are positions.
        (lambda out, y: F.nll_loss(out.view(4, 8, 2).log_softmax(1), y[:8].view(4, 2)), 2),
        (lambda out, y: F.cross_entropy(out.view(4, 8, 2), y[:8].view(4, 2)), 2),
        (lambda out, y: -out.view(4, 8, 2).log_softmax(1).gather(1, y[:8].view(4, 1, 2) % 8).mean(), 2),
        # Similarities of as many samples as units.
        (lambda out, y: -(out @ out.T / 100).log_softmax(0).diag(1).mean(), 32),
        (lambda out, y: -picked(shares(out, 1), y).log().mean(), 4),
        (lambda out, y: (out.logsumexp(1) - picked(out, y)).mean(), 4),
        (lambda out, y: out.logsumexp(1).mean() - picked(out, y).mean(), 4),
        (lambda out, y: overlap(out.softmax(1), one_hot(y)), 4),
        (lambda out, y: focal(out.sigmoid().clamp(1e-4, 1 - 1e-4), one_hot(y)), 4),
        # Brightness of pixels.
        (lambda out, y: (out.clamp(1e-4, 1) - one_hot(y)).abs().mean(), 4),
        # Counts by the logarithm of their rate, a margin between two outputs, a score.
        (lambda out, y: (out.exp() - one_hot(y) * out).mean(), 4),
        (lambda out, y: (out[:, 0] - picked(out, y)).mean(), 4),
        (lambda out, y: -out.mean(), 1),
        # Two heads of four classes.
        (lambda out, y: F.cross_entropy(out.view(32, 2, 4).transpose(1, 2), y[:, None].expand(-1, 2)), 8),
    ],
)  # fmt: skip
def test_what_is_meant_is_silent(run_path: Path, loss: Loss, units: int) -> None:
    assert [found for found in found_in(run_path, loss, units) if found[0] != "info"] == []


def test_a_sum_is_a_warning_where_its_updates_are_too_large(run_path: Path) -> None:
    found = found_in(run_path, lambda out, y: F.cross_entropy(out, y, reduction="sum"), rate=0.5, steps=40)
    assert found == [("warning", "loss_summed_over_batch")]


@pytest.mark.parametrize(("rate", "severity"), [(1e-7, "warning"), (1e-3, "info")])
def test_a_sum_is_a_warning_where_the_loss_has_not_fallen(run_path: Path, rate: float, severity: str) -> None:
    found = found_in(run_path, lambda out, y: F.cross_entropy(out, y, reduction="sum"), rate=rate, steps=80)
    assert [each[0] for each in found] == [severity]


def accumulated(run: Path, divisor: float, *, micro: int = 4, rate: float = 0.5, adam: bool = False) -> list[Any]:
    """Findings of a run that adds the gradients of micro-batches: severity, first cause, message."""
    torch.manual_seed(0)
    model = classifier()
    kind = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3 if adam else rate)
    rules = [RuleSpec("LossGraph")]
    with watchglass.watch(model, run=run, save_interval=1, strict=True, **capture_for(rules)):
        for _ in range(40):
            optimizer.zero_grad()
            for _ in range(micro):
                inputs, labels = batch(16)
                (F.cross_entropy(model(inputs), labels) / divisor).backward()
            optimizer.step()
    return [(f.severity.value, (f.causes or ("",))[0], f.message) for f in replay(run, rules).findings]


def test_micro_batches_that_are_not_divided_are_a_warning_where_updates_are_too_large(run_path: Path) -> None:
    ((severity, cause, message),) = accumulated(run_path / "sick", 1.0, rate=5.0)
    assert (severity, cause) == ("warning", "accumulation_not_divided")
    assert "the gradients of 4 micro-batches are added, each of a mean over its samples and" in message
    assert message.endswith("; for a mean, a learning rate of 5 acts as 20")
    # Only the first few graphs of a step are read.
    ((_, _, message),) = accumulated(run_path / "many", 1.0, rate=5.0, micro=16)
    assert "the gradients of 16 micro-batches are added" in message
    assert message.endswith("; for a mean, a learning rate of 5 acts as 80")
    ((severity, _, message),) = accumulated(run_path / "slow", 1.0, rate=0.02)
    assert severity == "info"
    assert message.endswith("the sum grows with their number")


@pytest.mark.parametrize("settings", [{"divisor": 4.0}, {"divisor": 1.0, "micro": 2}, {"divisor": 1.0, "adam": True}])
def test_micro_batches_are_silent_where_they_are_divided_few_or_of_no_consequence(
    run_path: Path, settings: dict[str, Any]
) -> None:
    assert accumulated(run_path, **settings) == []


@pytest.mark.parametrize(("axis", "found"), [(1, []), (2, ["normalized_over_batch"]), (3, ["normalized_over_batch"])])
def test_an_overlap_of_pixels_needs_probabilities_of_classes(axis: int, found: list[str]) -> None:
    target = F.one_hot(torch.arange(64).view(4, 4, 4) % 3, 3).movedim(3, 1).float()
    shares = nn.Conv2d(1, 3, 1)(torch.randn(4, 1, 4, 4)).softmax(axis)
    both, either = (shares * target).sum((2, 3)), shares.sum((2, 3)) + target.sum((2, 3))
    graph = Graph((1 - (2 * both / (either + 1)).mean()).grad_fn)
    terms = [LossTerm(term) for term in described(graph, lambda parameter: "").terms]
    assert [each.symptom for each in mistakes(terms, (), 4, 0.05, 0)] == found


@pytest.mark.parametrize(
    ("arranged", "found"),
    [
        (lambda out: out.reshape(-1, 3), ["normalized_over_batch"]),
        (lambda out: out.permute(0, 2, 3, 1).reshape(-1, 3), []),
        (lambda out: out.flatten(2).mT.reshape(-1, 3), []),
    ],
)
def test_classes_of_pixels_are_channels(arranged: Callable[[Tensor], Tensor], found: list[str]) -> None:
    out = nn.Conv2d(1, 3, 1)(torch.randn(4, 1, 6, 6))
    terms = terms_of(F.cross_entropy(arranged(out), torch.arange(144) % 3))
    assert [each.symptom for each in mistakes(terms, (), 4, 0.05, 0)] == found
