"""OptimizerMissesParameter: parameters with gradients in no optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synthetic_steps
import watchglass
from real_runs import RealRuns, Watch, batch, classifier, update
from synthetic_steps import LAYERS, MODULES
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def run(*names: str, ratio: float) -> list[Step]:
    """A run in which no optimizer holds these weights, and updates of this size."""
    fact = {"left_out_beside": {"count": len(names), "names": list(names)}}
    return synthetic_steps.training(30, ratio=lambda n, i: ratio if i == 0 else 1e-3, facts={0: {"membership": fact}})


def beyond(
    *, looks: int, sampled: int = 512, least: float = -0.25, most: float = 0.25, training: bool = True,
    optimizer: str | None = None,
) -> list[Step]:  # fmt: skip
    """A run in which no optimizer holds a linear layer of a second module, with uniform weights."""
    row = {
        "owner": "Encoder", "name": "fc.weight", "shape": [32, 16] if sampled > 2 else [2], "kind": "linear",
        "training": training, "optimizer": optimizer, "sampled": sampled, "min": least, "max": most,
        "std": (most - least) / 12**0.5,
    }  # fmt: skip
    fact = {"backward": 1, "count": 1}
    facts = {n: {"unheld_parameters": {**fact, "parameters": [{**row, "looks": n + 1}]}} for n in range(looks)}
    return synthetic_steps.training(30, facts=facts)


class TestOptimizerMissesParameter(RuleSuite):
    rule = find_rule("OptimizerMissesParameter")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return run(f"{LAYERS[0]}.weight", ratio=0.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # A bias, of which nothing is captured.
        # A run that ends early.
        short = run(f"{LAYERS[0]}.weight", ratio=0.0)[:3]
        zeros = beyond(looks=3, sampled=2, least=0.0, most=0.0)
        return (run(f"{LAYERS[0]}.bias", ratio=1e-3), short, beyond(looks=3), zeros)

    def healthy(self) -> Sequence[Step]:
        # The script updates both itself.
        return run(f"{LAYERS[0]}.weight", f"{LAYERS[0]}.bias", ratio=1e-3)


@pytest.mark.parametrize(
    "steps",
    [
        # Values that change, a pretrained module, one in evaluation mode, one of another optimizer.
        beyond(looks=1),
        beyond(looks=4, most=0.5),
        beyond(looks=4, training=False),
        beyond(looks=4, optimizer="optimizer_2"),
    ],
)
def test_modules_that_are_trained_elsewhere_are_no_findings(run_path: Path, steps: list[Step]) -> None:
    assert replay(build_run(run_path, steps), [RuleSpec("OptimizerMissesParameter")]).findings == ()


class TestOptimizerMissesParameterInRealRuns(RealRuns):
    rule = "OptimizerMissesParameter"
    cause = "parameter_not_in_optimizer"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin freezes what its optimizer does not hold, with weights that are no fresh ones."""
        model = classifier()
        nn.init.orthogonal_(model[0].weight)
        for parameter in model[0].parameters():
            parameter.requires_grad_(sick)
        optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.05)
        watch(model)
        for _ in range(20):
            update(model, optimizer, *batch())


class TestUnfrozenLateInRealRuns(RealRuns):
    rule = "OptimizerMissesParameter"
    cause = "parameter_not_in_optimizer"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Layers are unfrozen so late that no capture shows them again; the twin gives them to its optimizer."""
        model = classifier()
        nn.init.orthogonal_(model[0].weight)
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.05)
        watch(model)
        for number in range(44):
            if number == 40:
                model[0].requires_grad_(True)
                if not sick:
                    optimizer.add_param_group({"params": model[0].parameters()})
            update(model, optimizer, *batch())


class TestAHeadThatIsReplacedInRealRuns(RealRuns):
    """The optimizer of the second stage was made before the head was replaced: all else that it holds is frozen."""

    rule = "OptimizerMissesParameter"
    cause = "parameter_not_in_optimizer"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        watch(model)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(20):
            update(model, optimizer, *batch())
        for parameter in model[:-1].parameters():
            parameter.requires_grad = False
        late = None if sick else torch.nn.Linear(16, 2)
        if late is not None:
            model[-1] = late
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        if late is None:
            model[-1] = torch.nn.Linear(16, 2)
        for _ in range(40):
            inputs, labels = batch()
            update(model, optimizer, inputs, labels % 2)


class TestOptimizerMissesASecondModuleInRealRuns(RealRuns):
    rule = "OptimizerMissesParameter"
    cause = "parameter_not_in_optimizer"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The twin keeps its first layers fixed, with weights that are no fresh ones."""
        layers, model = [nn.Linear(16, 16) for _ in range(2)], classifier(depth=1)
        for layer in layers:
            if not sick:
                nn.init.uniform_(layer.weight, -0.1, 0.3)
        watch(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(20):
            inputs, labels = batch()
            for layer in layers:
                inputs = inputs + layer(inputs).relu() / 4
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_unfrozen_weights_that_the_script_updates_itself(run_path: Path) -> None:
    """One layer after the other, so that the parameters in no optimizer are recorded again."""
    model = classifier()
    model[:4].requires_grad_(False)
    optimizer = torch.optim.SGD(model[4:].parameters(), lr=0.05)

    def update_unfrozen(model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model[:4].parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad

    rules = [RuleSpec("OptimizerMissesParameter")]
    with watchglass.watch(model, run=run_path, strict=True, save_interval=1, **capture_for(rules)):
        for number in range(30):
            model[2].requires_grad_(number >= 10)
            model[0].requires_grad_(number >= 20)
            update(model, optimizer, *batch(), clip=update_unfrozen)
    assert replay(run_path, rules).findings == ()
