"""Calibration ``sagemaker``: the thresholds that SageMaker Debugger documents, for what these rules have of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.cli import main
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import ModuleKind
from watchglass.rules import build_rule, find_rule, rules_of_set
from watchglass.testing import Step, build_run

#: By the names that its documentation uses where they are the same here, else by ours.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "ExplodingTensor": {"only_nan": False},
    "VanishingGradient": {"threshold": 1e-7},
    "DeadRelu": {"threshold_layer": 50.0},
    "PoorWeightInitialization": {"threshold": 10.0, "steps": 10},
    "WeightUpdateRatio": {"large": 10.0, "small": 1e-8},
    "UnchangedTensor": {"num_steps": 3},
    "LossNotDecreasing": {"window": 10, "diff_percent": 0.1},
    "Overfit": {"start_step": 0, "patience": 1, "ratio_threshold": 0.1},
}


def test_every_rule_of_the_set_is_listed() -> None:
    assert set(DOCUMENTED) == set(rules_of_set("sagemaker"))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_parameters_are_the_documented_ones(name: str) -> None:
    rule = build_rule(RuleSpec(name), "sagemaker")
    assert {parameter: getattr(rule, parameter) for parameter in DOCUMENTED[name]} == DOCUMENTED[name]


@pytest.mark.parametrize("name", [n for n in DOCUMENTED if find_rule(n).calibrations])
def test_the_command_line_shows_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", name]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Calibration sagemaker")]
    overrides = find_rule(name).calibrations["sagemaker"]
    assert all(f"{parameter}={value}" in line for parameter, value in overrides.items())


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


def test_what_is_set_comes_before_a_calibration(run_path: Path) -> None:
    assert build_rule(RuleSpec("UnchangedTensor", {"num_steps": 5}), "sagemaker").num_steps == 5  # type: ignore[attr-defined]
