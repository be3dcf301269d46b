"""Calibration ``sagemaker``: the conditions and thresholds that SageMaker Debugger documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.cli import main
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Mode, ModuleKind
from watchglass.rules import build_rule, find_rule
from watchglass.testing import Step, build_run

DOCUMENTED: dict[str, dict[str, Any]] = {
    "ExplodingTensor": {"only_nan": False},
    "VanishingGradient": {"threshold": 1e-7},
    "DeadRelu": {"threshold_inactivity": 1.0, "threshold_layer": 50.0},
    "PoorWeightInitialization": {"threshold": 10.0, "distribution_range": 0.001, "patience": 5, "steps": 10},
    "WeightUpdateRatio": {"large_threshold": 10.0, "small_threshold": 1e-8, "epsilon": 1e-9},
    "UnchangedTensor": {"num_steps": 3, "rtol": 1e-5, "atol": 1e-8, "equal_nan": False},
    "LossNotDecreasing": {"num_steps": 10, "diff_percent": 0.1, "increase_threshold_percent": 5.0, "mode": "GLOBAL"},
    "SaturatedActivation": {"threshold_layer": 50.0},
    "AllZero": {"threshold": 100.0},
    "TensorVariance": {"max_threshold": None, "min_threshold": None},
    "StalledTraining": {"threshold": 1800.0},
    "SimilarAcrossRuns": {"other_run": ""},
    "TreeDepth": {"depth": 4},
    "FeatureImportanceOverweight": {"threshold": 0.8, "nfeatures": 3},
    "Overtraining": {"patience_train": 5, "patience_validation": 10, "delta": 0.01},
    "Overfit": {"start_step": 0, "patience": 1, "ratio_threshold": 0.1},
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_parameters_are_the_documented_ones(name: str) -> None:
    rule = build_rule(RuleSpec(name), "sagemaker")
    assert rule.name == name
    assert {parameter: getattr(rule, parameter) for parameter in DOCUMENTED[name]} == DOCUMENTED[name]


@pytest.mark.parametrize("name", [n for n in DOCUMENTED if find_rule(n).calibrations])
def test_the_command_line_shows_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", name]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Calibration sagemaker")]
    assert all(f"{parameter}={value}" in line for parameter, value in DOCUMENTED[name].items())


def first_steps(run: str, spec: RuleSpec) -> list[int]:
    return [finding.step for finding in replay(run, [spec], calibration="sagemaker").findings]


def test_unchanged_tensors_are_found_at_the_third_of_three_equal_steps(run_path: Path) -> None:
    weight = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    moving = [Step(scalars={"loss": 1.0}, statistics={"fc.weight": weight + n}) for n in range(3)]
    still = [Step(scalars={"loss": 1.0}, statistics={"fc.weight": weight}) for _ in range(3)]
    modules = {"fc": "Linear"}
    assert first_steps(build_run(run_path / "still", still, modules=modules), RuleSpec("UnchangedTensor")) == [2]
    assert first_steps(build_run(run_path / "two", still[:2], modules=modules), RuleSpec("UnchangedTensor")) == []
    assert first_steps(build_run(run_path / "moving", moving, modules=modules), RuleSpec("UnchangedTensor")) == []


@pytest.mark.parametrize(("mean", "found"), [(0.9e-7, [0]), (2e-7, [])])
def test_a_vanishing_gradient_is_found_at_its_first_capture(run_path: Path, mean: float, found: list[int]) -> None:
    gradient = np.full((4, 4), mean, np.float32)
    step = Step(scalars={"loss": 1.0}, statistics={"gradient/a.weight": gradient, "gradient/b.weight": gradient})
    run = build_run(run_path, [step], modules={"a": ModuleKind.LINEAR, "b": ModuleKind.LINEAR})
    assert first_steps(run, RuleSpec("VanishingGradient")) == found


def losses(values: Mapping[int, float]) -> list[Step]:
    """Training steps up to the last one of these, of which only they have a loss."""
    return [Step(scalars={"loss": values[step]} if step in values else {}) for step in range(max(values) + 1)]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (dict.fromkeys(range(25), 1.0), [10]),
        ({step: 0.999**step for step in range(25)}, []),
        # A small increase is allowed, a large one is not.
        ({step: 1.004 ** (step / 2) for step in range(25)}, []),
        ({step: 1.01**step for step in range(25)}, [10]),
        # Losses of every third step: 12 is compared with 0, and 24 with 12.
        ({0: 1.0, 3: 0.5, 6: 0.5, 9: 0.5, 12: 0.9, 15: 9.0, 18: 9.0, 21: 9.0, 24: 0.9}, [24]),
    ],
)
def test_a_loss_is_compared_every_ten_steps(run_path: Path, values: dict[int, float], found: list[int]) -> None:
    assert first_steps(build_run(run_path, losses(values)), RuleSpec("LossNotDecreasing")) == found


@pytest.mark.parametrize(("validation", "found"), [(1.09, []), (1.11, [10])])
def test_a_gap_of_ten_percent_is_overfitting(run_path: Path, validation: float, found: list[int]) -> None:
    steps = [Step(scalars={"loss": 1.0})] * 10 + [Step(scalars={"loss": validation}, mode=Mode.EVAL)]
    run = build_run(run_path, [*steps, Step(scalars={"loss": 1.0})])
    assert first_steps(run, RuleSpec("Overfit")) == found


@pytest.mark.parametrize(("units", "active", "found"), [(5, 0, []), (6, 0, [0]), (6, 1, [0]), (6, 2, [])])
def test_a_layer_is_dead_where_most_units_have_less_than_a_percent_of_activity(
    run_path: Path, units: int, active: int, found: list[int]
) -> None:
    output = np.ones((150, 10), np.float32)
    output[active:, :units] = 0
    step = Step(
        scalars={"loss": 1.0}, raw={"bend.output": output}, units={"bend.output": ~output.any(0)},
        statistics={"bend.output": output},
    )  # fmt: skip
    run = build_run(run_path, [step], modules={"bend": ModuleKind.RECTIFIER})
    assert first_steps(run, RuleSpec("DeadRelu")) == found


@pytest.mark.parametrize(
    ("spread", "gradient", "falls", "about"),
    [
        (1.0, 1.0, True, []),
        (3.0, 1.0, True, []),
        (4.0, 1.0, True, ["weights"]),
        (1.0, 1e-4, True, ["gradients"]),
        (1.0, 1.0, False, ["loss"]),
    ],
)
def test_an_initialization_is_judged_by_variances_gradients_and_loss(
    run_path: Path, spread: float, gradient: float, falls: bool, about: list[str]
) -> None:
    normal = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    steps = [
        Step(
            scalars={"loss": 0.9**n if falls else 1.0},
            statistics={"a.weight": normal, "b.weight": spread * normal, "gradient/a.weight": gradient * normal},
        )
        for n in range(10)
    ]
    run = build_run(run_path, steps, modules={"a": ModuleKind.LINEAR, "b": ModuleKind.LINEAR})
    found = replay(run, [RuleSpec("PoorWeightInitialization")], calibration="sagemaker").findings
    assert [finding.evidence["subject"] for finding in found] == about


@pytest.mark.parametrize(("ratio", "found"), [(1e-9, [0]), (1e-7, []), (9.0, []), (11.0, [0])])
def test_updates_are_compared_with_their_weights(run_path: Path, ratio: float, found: list[int]) -> None:
    weight = np.full((4, 4), 0.1, np.float32)
    step = Step(scalars={"loss": 1.0}, statistics={"fc.weight": weight, "update/fc.weight": ratio * weight})
    run = build_run(run_path, [step], modules={"fc": ModuleKind.LINEAR})
    assert first_steps(run, RuleSpec("WeightUpdateRatio")) == found


def test_what_is_set_comes_before_a_calibration(run_path: Path) -> None:
    assert build_rule(RuleSpec("UnchangedTensor", {"num_steps": 5}), "sagemaker").num_steps == 5  # type: ignore[attr-defined]
