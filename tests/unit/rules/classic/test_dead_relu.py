"""DeadRelu: units that are zero on every batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


def many_values(step: int, arrays: dict[str, Any]) -> None:
    """A batch of which each unit has 128 values."""
    for name in [name for name in arrays if name.endswith(".output")]:
        arrays[name] = np.resize(arrays[name], (128, 32))


def found_in(run: Path, captures: int, dead: float) -> list[str]:
    steps = training(captures, dead=lambda n, i: dead if i == 1 else 0.0, change=many_values)
    return [each.message for each in replay(build_run(run, steps, modules=MODULES), [RuleSpec("DeadRelu")]).findings]


def test_of_few_captures_all_but_the_first_must_agree(tmp_path: Path) -> None:
    assert not found_in(tmp_path / "too_few", 2, 0.95)
    assert not found_in(tmp_path / "alive", 5, 0.4)
    (message,) = found_in(tmp_path / "dead", 5, 0.95)
    assert message.endswith("zero for every sample of the last 5 captures up to step 4")


def test_a_layer_that_ends_with_a_relu_counts_as_one(tmp_path: Path) -> None:
    """Keras has activations inside layers: none of the modules is a ReLU."""
    dead = np.arange(32) < 30
    step = Step({"loss": 1.0}, {"hidden.output": np.ones((128, 32))}, units={"hidden.output": dead})
    run = build_run(tmp_path / "run", [step] * 40, modules={"hidden": "Linear"})
    (finding,) = replay(run, [RuleSpec("DeadRelu")]).findings
    assert finding.message.startswith("30 of 32 units of hidden (Linear) were zero for every sample")


class TestDeadRelu(RuleSuite):
    rule = find_rule("DeadRelu")
    modules = MODULES

    def sick(self) -> Sequence[Step]:
        return training(40, dead=lambda n, i: 0.95 if i == 1 else 0.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # A run with few captures, after the first of which the units are dead.
        return (training(6, dead=lambda n, i: 0.95 if i == 1 and n else 0.0, change=many_values),)

    def healthy(self) -> Sequence[Step]:
        return training(400, dead=lambda n, i: 0.4)


class TestDeadReluInRealRuns(RealRuns):
    rule = "DeadRelu"
    cause = "dying_relu"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        if sick:
            nn.init.constant_(model[2].bias, -100.0)
        fit(model, watch)
