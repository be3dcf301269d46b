"""OutputActivationMismatch: a last activation that does not fit the loss or the targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, fit
from synthetic_steps import training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "OutputActivationMismatch"


def call(function: str, operation: str, shape: Sequence[int] = (32, 4), over: int | None = None) -> dict[str, Any]:
    arguments = {"input": {"shape": list(shape)}, "target": {"shape": list(shape[:1])}}
    data = {"function": function, "arguments": arguments, "operation": operation, "normalized_over": over}
    return {"loss_call": data}


def with_values(steps: list[Step], kind: str, function: str) -> list[Step]:
    sketch = {"function": function, "min": -2.4, "max": 2.6, "mean": 0.1, "std": 1.0, "variance": 1.0}
    return [Step(scalars=step.scalars, facts={**step.facts, kind: sketch}) for step in steps]


class TestOutputActivationMismatch(RuleSuite):
    rule = find_rule(RULE)

    def sick(self) -> Sequence[Step]:
        return training(20, facts={0: call("cross_entropy", "softmax", over=4)})

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            training(20, facts={0: call("binary_cross_entropy_with_logits", "sigmoid")}),
            training(20, facts={0: call("nll_loss", "weighted_sum")}),
            training(20, facts={0: call("mse_loss", "softmax", (32, 1), 1)}),
            with_values(training(20, facts={0: call("mse_loss", "sigmoid")}), "target_sketch", "mse_loss"),
            with_values(training(20, facts={0: call("nll_loss", "")}), "output_sketch", "nll_loss"),
        )

    def healthy(self) -> Sequence[Step]:
        return training(20, facts={0: call("cross_entropy", "weighted_sum")})


class TestOutputActivationMismatchInRealRuns(RealRuns):
    rule = "OutputActivationMismatch"
    cause = "softmax_applied_twice"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        if sick:
            model.append(nn.Softmax(dim=-1))
        fit(model, watch)


Loss = Callable[[Tensor, Tensor], Tensor]


def found_in(run: Path, last: nn.Module, units: int, loss: Loss, steps: int = 12) -> list[tuple[str, str]]:
    """Severity and first cause of each finding about a model that ends with a module."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, units), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    capture = {**capture_for([RuleSpec(RULE)]), "save_interval": 1}
    with watchglass.watch(model, run=run, strict=True, **capture):
        for _ in range(steps):
            inputs, labels = batch()
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
    return [(f.severity.value, "".join(f.causes[:1])) for f in replay(str(run), [RuleSpec(RULE)]).findings]


# Loss functions are found in their module when they are called: before a run begins they are not wrapped yet.


def cross_entropy(out: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(out, labels)


def nll_loss(out: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(out, labels)


def floats(labels: Tensor) -> Tensor:
    return (labels % 2).float()[:, None]


@pytest.mark.parametrize(
    ("last", "units", "loss", "found"),
    [
        (nn.LogSoftmax(1), 4, cross_entropy, ("info", "")),
        (nn.ReLU(), 4, cross_entropy, ("info", "")),
        (nn.Tanh(), 4, cross_entropy, ("warning", "output_out_of_range")),
        (nn.Identity(), 4, nll_loss, ("warning", "logits_as_probabilities")),
        (nn.Softmax(1), 4, nll_loss, ("warning", "logits_as_probabilities")),
        (
            nn.Softmax(1),
            4,
            lambda out, labels: F.kl_div(out, F.one_hot(labels, 4).float(), reduction="batchmean"),
            ("warning", "logits_as_probabilities"),
        ),
        (
            nn.Sigmoid(),
            1,
            lambda out, labels: F.binary_cross_entropy_with_logits(out, floats(labels)),
            ("warning", "sigmoid_applied_twice"),
        ),
        (
            nn.ReLU(),
            1,
            lambda out, labels: F.binary_cross_entropy_with_logits(out, floats(labels)),
            ("warning", "output_out_of_range"),
        ),
        (
            nn.Softmax(1),
            1,
            lambda out, labels: F.binary_cross_entropy(out.squeeze(1), floats(labels)[:, 0]),
            ("error", "softmax_on_one_unit"),
        ),
        (nn.Identity(), 1, lambda out, labels: F.cross_entropy(out, labels * 0), ("error", "softmax_on_one_unit")),
        (
            nn.Sigmoid(),
            1,
            lambda out, labels: F.mse_loss(out, 20.0 * labels[:, None]),
            ("warning", "output_out_of_range"),
        ),
        (nn.ReLU(), 1, lambda out, labels: F.mse_loss(out, labels[:, None] - 1.5), ("warning", "output_out_of_range")),
        (nn.Softmax(1), 4, lambda out, labels: F.mse_loss(out, F.one_hot(labels, 4).float()), ("info", "")),
    ],
)
def test_each_mismatch_has_its_cause(
    run_path: Path, last: nn.Module, units: int, loss: Loss, found: tuple[str, str]
) -> None:
    assert found_in(run_path, last, units, loss) == [found]


@pytest.mark.parametrize(
    ("last", "units", "loss"),
    [
        (nn.Identity(), 4, cross_entropy),
        (nn.LogSoftmax(1), 4, nll_loss),
        (nn.Softmax(1), 4, lambda out, labels: F.nll_loss(out.log(), labels)),
        (nn.Sigmoid(), 1, lambda out, labels: F.binary_cross_entropy(out, floats(labels))),
        (nn.Identity(), 1, lambda out, labels: F.binary_cross_entropy_with_logits(out, floats(labels))),
        (nn.Sigmoid(), 1, lambda out, labels: F.mse_loss(out, floats(labels))),
        (nn.Tanh(), 1, lambda out, labels: F.mse_loss(out, 2 * floats(labels) - 1)),
        # Counts with a little noise below zero.
        (nn.Softplus(), 1, lambda out, labels: F.mse_loss(out, 3 + labels[:, None] + torch.randn(32, 1))),
        # Soft targets of a teacher, and an output that is scaled beyond its activation.
        (nn.Identity(), 4, lambda out, labels: F.cross_entropy(out, F.one_hot(labels, 4).float().softmax(1))),
        (nn.Tanh(), 1, lambda out, labels: F.mse_loss(20 * out, 20.0 * labels[:, None])),
        (nn.LogSoftmax(1), 4, lambda out, labels: F.kl_div(out, F.one_hot(labels, 4).float(), reduction="batchmean")),
        # Class-wise confidences that are turned into logits again.
        (nn.Sigmoid(), 4, lambda out, labels: F.cross_entropy(torch.logit(out), labels)),
    ],
)
def test_what_fits_is_silent(run_path: Path, last: nn.Module, units: int, loss: Loss) -> None:
    assert found_in(run_path, last, units, loss) == []


def test_a_softmax_over_a_length_that_is_one_at_times_is_no_single_unit(run_path: Path) -> None:
    lengths = iter([1, 3, 1, 5, 1, 1, 1, 1, 1, 1, 1, 1])

    def pointed(out: Tensor, labels: Tensor) -> Tensor:
        chosen = torch.softmax(out[:, : next(lengths)], 1)
        return F.mse_loss(chosen, torch.ones_like(chosen) / chosen.shape[1])

    assert found_in(run_path, nn.Identity(), 5, pointed) == []
