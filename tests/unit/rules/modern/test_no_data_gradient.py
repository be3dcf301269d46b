"""NoDataGradient: gradients that are zero, or those of a penalty alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import watchglass
from real_runs import RealRuns, Watch, batch, classifier
from synthetic_steps import constant, sampled, training
from watchglass.config import RuleSpec
from watchglass.diagnose import diagnose
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestNoDataGradient(RuleSuite):
    rule = find_rule("NoDataGradient")

    def sick(self) -> Sequence[Step]:
        return training(40, gradient=constant(0.0))

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return [
            sampled(60, lambda n: {"gradient_weight": 1.0}),
            sampled(60, lambda n: {"gradient_weight": [1.0, 1.0, 0.1]}),
        ]

    def healthy(self) -> Sequence[Step]:
        # A penalty beside the data, and a layer whose units are dead.
        return sampled(
            100,
            lambda n: {"gradient_weight": [0.99, None, 0.1], "zero_gradient": [0.0, 1.0, 0.0]},
            gradient=lambda step, layer: 0.0 if layer == 1 else float(np.exp(-step / 50)),
        )


class TestNoDataGradientInRealRuns(RealRuns):
    rule = "NoDataGradient"
    cause = "graph_detached"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The outputs are detached, so that only the penalty on the weights has a gradient."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        watch(model)
        for _ in range(40):
            inputs, labels = batch()
            out = model(inputs)
            penalty = sum((parameter**2).sum() for parameter in model.parameters())
            loss = F.cross_entropy(out.detach() if sick else out, labels) + 1e-3 * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_a_penalty_that_is_left_once_weights_have_shrunk_is_no_cut(run_path: Path) -> None:
    steps = sampled(100, lambda n: {"gradient_weight": 0.9 if n < 16 else 1.0})
    assert not replay(build_run(run_path, steps), [RuleSpec("NoDataGradient")]).findings


def test_gradients_without_finite_elements_are_not_zero(tmp_path: Path) -> None:
    def overflow(step: int, arrays: dict[str, Any]) -> None:
        for name in [name for name in arrays if name.startswith("gradient/")]:
            arrays[name] = np.full((16, 16), np.nan)

    path = build_run(tmp_path / "run", training(40, change=overflow))
    assert not replay(path, [RuleSpec("NoDataGradient")]).findings


def test_a_weight_of_one_element_is_parallel_to_every_gradient(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=tmp_path / "run", strict=True, **capture_for([RuleSpec("NoDataGradient")])):
        for _ in range(40):
            inputs = torch.rand(32, 1) + 1
            loss = F.mse_loss(model(inputs), -5 * inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not replay(str(tmp_path / "run"), [RuleSpec("NoDataGradient")]).findings


@pytest.mark.parametrize("penalty", [0.0, 1e-3])
def test_gradients_that_exist_and_are_zero_do_not_come_of_a_graph_that_is_cut(run_path: Path, penalty: float) -> None:
    """All units of a ReLU on the output are dead."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(classifier(), torch.nn.ReLU())
    with torch.no_grad():
        model[0][-1].bias.fill_(-100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rules = [
        RuleSpec("NoDataGradient"),
        RuleSpec("DeadRelu"),
        RuleSpec("UnchangedTensor"),
        RuleSpec("VanishingGradient"),
    ]
    with watchglass.watch(model, run=run_path, save_interval=1, strict=True, **capture_for(rules)):
        for _ in range(40):
            inputs, labels = batch()
            loss = F.cross_entropy(model(inputs), labels)
            if penalty:
                loss = loss + penalty * sum((parameter**2).sum() for parameter in model.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = replay(str(run_path), rules).findings
    (mine,) = (each for each in found if each.rule == "NoDataGradient")
    assert mine.symptoms == ("zero_gradients_everywhere",)
    (diagnosis,) = diagnose(found)
    assert diagnosis.causes[0].cause.id == "dying_relu"
    assert diagnosis.step == 0
    assert not {"graph_detached", "detached_parameters"} & {each.cause.id for each in diagnosis.causes}
