"""PoorWeightInitialization: units that are alike, and scales that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, initialization, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import ModuleKind, Severity
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite


class TestPoorWeightInitialization(RuleSuite):
    rule = find_rule("PoorWeightInitialization")
    modules = MODULES
    severity = Severity.ERROR

    def sick(self) -> Sequence[Step]:
        return training(20, facts={0: {"initialization": initialization(same=("stem", "middle", "readout"))}})

    def healthy(self) -> Sequence[Step]:
        # A last layer of zeros is on purpose.
        return training(20, facts={0: {"initialization": initialization(same=("readout",))}})


class TestPoorWeightInitializationInRealRuns(RealRuns):
    rule = "PoorWeightInitialization"
    cause = "identical_initialization"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        # A last layer of zeros is on purpose.
        nn.init.zeros_(model[-1].weight)
        if sick:
            for parameter in model.parameters():
                nn.init.constant_(parameter, 0.1)
        fit(model, watch)


def test_rounding_behind_dead_units_is_no_bad_scale(run_path: Path) -> None:
    constant_output = np.full((8, 8), 0.1, dtype=np.float32) + np.float32(1e-8)
    steps = [
        Step(
            scalars={"loss": 2.3},
            statistics={"stem.output": np.random.default_rng(0).normal(size=(8, 8)), "readout.output": constant_output},
            facts={"initialization": initialization(())},
        )
    ]
    assert replay(build_run(run_path, steps, modules=MODULES)).findings == ()


@pytest.mark.parametrize(("loss", "found"), [(21.0, True), (5.0, False)])
def test_large_weights_show_in_a_loss_that_the_model_computes(run_path: Path, loss: float, found: bool) -> None:
    large = {
        f"{name}.weight": {"shape": [32, 32], "fan_in": 32, "identical_rows": 0.0, "constant": False, "std": 2.0}
        for name in ("stem", "middle", "readout")
    }
    facts = {
        "initialization": {"tensors": large},
        "output_sketch": {"function": "cross_entropy", "columns": 128, "loss": loss},
    }
    steps = training(20, facts={0: facts}, loss=lambda n: loss)
    findings = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("PoorWeightInitialization")]).findings
    assert bool(findings) is found
    assert all(f"the loss starts at {loss:.3g}, where guessing gives ln(128 classes)" in f.message for f in findings)


@pytest.mark.parametrize(("value", "found"), [(0.1, True), (0.0, False)])
def test_tables_of_one_value_are_found(run_path: Path, value: float, found: bool) -> None:
    """All words have one vector. Tables of zeros may be added to something."""
    names = ("centre", "context")
    alike = {"shape": [50, 8], "fan_in": 8, "identical_rows": 1.0, "constant": True, "std": 0.0}
    facts = {"initialization": {"tensors": {f"{name}.weight": alike for name in names}}}
    arrays = {f"{name}.weight": np.full((50, 8), value, np.float32) for name in names}
    steps = [Step(scalars={"loss": 0.7}, statistics=arrays, facts=facts if n == 0 else {}) for n in range(4)]
    run = build_run(run_path, steps, modules=dict.fromkeys(names, ModuleKind.EMBEDDING))
    assert bool(replay(run, [RuleSpec("PoorWeightInitialization")]).findings) is found


@pytest.mark.parametrize(("error", "found"), [(400.0, 1), (2.0, 0)])
def test_large_weights_show_in_the_first_squared_error(run_path: Path, error: float, found: int) -> None:
    large = {
        f"{name}.weight": {"shape": [32, 32], "fan_in": 32, "identical_rows": 0.0, "constant": False, "std": 2.0}
        for name in ("stem", "middle", "readout")
    }
    facts = {"initialization": {"tensors": large}, "output_sketch": {"squared_error": error, "constant_error": 1.0}}
    steps = training(20, facts={0: facts}, loss=lambda n: error)
    findings = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("PoorWeightInitialization")]).findings
    assert len(findings) == found
    assert all("squared error starts at 400" in finding.message for finding in findings)


@pytest.mark.parametrize(
    ("std", "columns", "error", "found"),
    [
        pytest.param(10.0, 32, 1.0, True, id="far too large"),
        pytest.param(2.0, 32, 400.0, True, id="large, and the first loss shows it"),
        pytest.param(2.0, 32, 1.0, False, id="large, without effect"),
        pytest.param(1.0, 32, 400.0, False, id="as a framework makes them"),
        pytest.param(10.0, 1, 1.0, False, id="one quantity a row"),
    ],
)
def test_embeddings_that_start_too_large_are_found(
    run_path: Path, std: float, columns: int, error: float, found: bool
) -> None:
    shape = [50, columns]
    table = {"shape": shape, "fan_in": columns, "identical_rows": 0.0, "constant": False, "std": std}
    facts = {
        "initialization": {"tensors": {"words.weight": table}},
        "output_sketch": {"squared_error": error, "constant_error": 1.0},
    }
    values = np.random.default_rng(0).normal(0.0, std, shape)
    steps = [
        Step(scalars={"loss": error}, statistics={"words.weight": values}, facts=facts if n == 0 else {})
        for n in range(4)
    ]
    run = build_run(run_path, steps, modules={"words": ModuleKind.EMBEDDING})
    findings = replay(run, [RuleSpec("PoorWeightInitialization")]).findings
    assert bool(findings) is found
    assert all(f"words.weight start with a spread of {std:.3g}" in finding.message for finding in findings)
    assert all(("squared error starts at 400" in finding.message) is (error == 400.0) for finding in findings)
