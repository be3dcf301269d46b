"""SaturatedActivation: hidden units that pass no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, fit, update
from synthetic_steps import MODULES, constant_loss, training
from watchglass.config import DEFAULT_COLLECTIONS, Collection, RuleSpec
from watchglass.evaluate import replay
from watchglass.records import ModuleKind, Severity, Status, UnitKind
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite

RULE = "SaturatedActivation"


def activations(steps: int, spread: float, sigmoid: bool = False) -> list[Step]:
    inputs = np.random.default_rng(0).normal(size=(64, 16)) * spread
    outputs = 1 / (1 + np.exp(-inputs)) if sigmoid else np.tanh(inputs)
    return training(steps, loss=constant_loss(2.3), change=lambda n, arrays: arrays.update({"bend.output": outputs}))


class TestSaturatedActivation(RuleSuite):
    rule = find_rule(RULE)
    modules = {**MODULES, "bend": ModuleKind.SATURATING, "curve": ModuleKind.OTHER}  # noqa: RUF012

    def sick(self) -> Sequence[Step]:
        return activations(20, 30.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (activations(20, 60.0, sigmoid=True),)

    def healthy(self) -> Sequence[Step]:
        return activations(20, 2.0)


class TestSaturatedActivationInRealRuns(RealRuns):
    rule = "SaturatedActivation"
    cause = "activation_saturated"

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        """With the inputs of tanh, which the sagemaker calibration judges and the default capture lacks."""
        collections = capture.get("collections", (*DEFAULT_COLLECTIONS, Collection("tanh_input")))
        super().record(run, {**capture, "collections": collections}, sick=sick)

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier(nn.Tanh, depth=1)
        model[0].bias.data += 20.0 if sick else 0.0
        fit(model, watch, rate=0.01, steps=20)


class _Functional(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(16, 16), nn.Linear(16, 4), scale

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.first.weight *= self.scale
        return self.last(torch.tanh(self.first(inputs)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("model", "found"), [
    (_Functional(1.8), True), (_Functional(1.0), False),
    # The last activation of a model is that of its output.
    (nn.Sequential(nn.Linear(16, 4), nn.Tanh()), False),
])  # fmt: skip
def test_functions_without_a_module_are_judged_by_their_inputs(tmp_path: Path, model: nn.Module, found: bool) -> None:
    torch.manual_seed(0)
    if isinstance(model, nn.Sequential):
        model[0].weight.data *= 1e3
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    capture = {**capture_for([RuleSpec(RULE)]), "save_interval": 1}
    with watchglass.watch(model, run=tmp_path / "run", strict=True, **capture):
        for _ in range(12):
            update(model, optimizer, *batch())
    assert bool(replay(str(tmp_path / "run"), [RuleSpec(RULE)]).findings) is found


@pytest.mark.parametrize(("bias", "found"), [(20.0, True), (0.0, False)])
def test_by_default_a_function_is_judged_by_the_layer_before_it(tmp_path: Path, bias: float, found: bool) -> None:
    torch.manual_seed(0)
    model = _Functional(1.0)
    model.first.bias.data += bias
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watchglass.watch(model, run=tmp_path / "run", strict=True, save_interval=1):
        for _ in range(12):
            update(model, optimizer, *batch())
    findings = replay(str(tmp_path / "run"), [RuleSpec(RULE)]).findings
    assert [each.message.partition(" is ")[0] for each in findings] == (
        ["the mean derivative of first (the function after Linear)"] if found else []
    )


def test_units_beyond_the_documented_limits(tmp_path: Path) -> None:
    model = classifier(nn.Tanh, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model[0].bias.data[:9] = -100.0
    with watchglass.watch(model, run=tmp_path / "run", strict=True, **capture_for([RuleSpec(RULE)])):
        update(model, optimizer, *batch())
    units = watchglass.open_run(tmp_path / "run").step(0).units(UnitKind.SATURATED)
    assert units["1.input.0"].tolist() == [True] * 9 + [False] * 7
    (finding,) = replay(str(tmp_path / "run"), [RuleSpec(RULE)], calibration="sagemaker").findings
    assert (finding.severity, finding.step) == (Severity.WARNING, 0)
    assert finding.message.startswith("56 % of the units that go into 1 (Tanh) are beyond its limits at step 0")


def test_without_inputs_of_tanh_the_documented_limits_judge_nothing(tmp_path: Path) -> None:
    with watchglass.watch(model := classifier(nn.Tanh, depth=1), run=tmp_path / "run", strict=True, save_interval=1):
        fit(model, lambda model: None, steps=12)
    statuses = {
        calibration: replay(str(tmp_path / "run"), [RuleSpec(RULE)], calibration=calibration).statuses[0].status
        for calibration in ("default", "sagemaker")
    }
    assert statuses == {"default": Status.NO_ISSUES_FOUND, "sagemaker": Status.NOT_APPLICABLE}
