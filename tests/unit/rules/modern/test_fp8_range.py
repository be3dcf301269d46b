"""Fp8Range: tensors of float8 that saturate, overflow or vanish."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from float8_layers import Linear8
from real_runs import RealRuns, Watch, classifier, fit
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def scaled(scale: float, dtype: str = "float8_e4m3fn", steps: int = 6, *, name: str = "encoder.output") -> list[Step]:
    """Captures of normally distributed values, times a scale, after a cast that saturates as PyTorch's does."""
    kind = np.dtype(getattr(ml_dtypes, dtype))
    largest = float(ml_dtypes.finfo(kind).max) if "e4m3" in dtype else np.inf
    made = []
    for step in range(steps):
        values = np.random.default_rng(step).normal(size=4096) * scale
        made.append(Step(statistics={name: np.clip(values, -largest, largest).astype(kind)}))
    return made


class TestFp8Range(RuleSuite):
    rule = find_rule("Fp8Range")

    def sick(self) -> Sequence[Step]:
        return scaled(300.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (
            scaled(0.01),
            scaled(60000.0, "float8_e5m2", name="gradient/encoder.weight"),
            scaled(1e-5, "float8_e5m2", name="encoder.weight"),
            scaled(300.0, "float8_e4m3fnuz"),
        )

    def healthy(self) -> Sequence[Step]:
        return scaled(100.0)


def findings(run_path: Path, steps: list[Step]) -> list[Any]:
    return list(replay(TestFp8Range().build(run_path, steps), [RuleSpec("Fp8Range")]).findings)


@pytest.mark.parametrize(
    ("steps", "severity", "message"),
    [
        (scaled(26000.0, "float8_e5m2"), Severity.WARNING, "at the largest number of float8_e5m2 at step 2"),
        (scaled(300.0), Severity.ERROR, "% of encoder.output are infinite or at"),
        (scaled(60000.0, "float8_e5m2"), Severity.ERROR, "are infinite or at the largest number of float8_e5m2"),
        (scaled(0.01), Severity.WARNING, "of the others are below the smallest number of full precision"),
    ],
)
def test_it_says_what_is_out_of_range(run_path: Path, steps: list[Step], severity: Severity, message: str) -> None:
    (finding,) = findings(run_path, steps)
    assert finding.severity is severity
    assert message in finding.message


def test_a_scale_from_the_maximum_is_fine(run_path: Path) -> None:
    """The largest elements lie exactly at the largest number; of evenly spread ones there are many near it."""
    even = np.linspace(-448, 448, 4096).astype(ml_dtypes.float8_e4m3fn)
    assert not findings(run_path, [Step(statistics={"encoder.output": even})] * 6)


def test_zeros_of_a_relu_have_not_vanished(run_path: Path) -> None:
    rectified = np.maximum(np.random.default_rng(0).normal(size=4096) * 100, 0).astype(ml_dtypes.float8_e4m3fn)
    assert not findings(run_path, [Step(statistics={"encoder.output": rectified})] * 6)


def test_other_dtypes_are_not_judged(run_path: Path) -> None:
    steps = [Step(statistics={"encoder.output": np.full(64, 448.0, np.float32)})] * 6
    evaluation = replay(TestFp8Range().build(run_path, steps), [RuleSpec("Fp8Range")])
    assert evaluation.statuses[0].reason.startswith(
        "nothing that was captured is of float8, and no cast to it was seen"
    )


def casts(share: float, name: str = "encoder.cast_overflow.float8_e4m3fn.0", steps: int = 6) -> list[Step]:
    """Captures of what a cast loses."""
    return [Step(statistics={name: np.array(share, np.float32)})] * steps


@pytest.mark.parametrize(
    ("steps", "severity", "message"),
    [
        (
            casts(0.3), Severity.ERROR,
            "30 % of the elements that encoder casts to float8_e4m3fn in the forward are at or beyond its largest "
            "number, 448, at step 2",
        ),
        (
            casts(0.05, "cast_overflow.backward.float8_e5m2.3"), Severity.WARNING,
            "5 % of the elements that the model casts to float8_e5m2 in the backward are at or beyond its largest "
            "number, 57344, at step 2",
        ),
        (
            casts(0.4, "a.b.cast_underflow.backward.float8_e5m2.0"), Severity.WARNING,
            "40 % of the nonzero elements that a.b casts to float8_e5m2 in the backward become zero at step 2",
        ),
    ],
)  # fmt: skip
def test_it_says_what_a_cast_loses(run_path: Path, steps: list[Step], severity: Severity, message: str) -> None:
    (finding,) = findings(run_path, steps)
    assert (finding.severity, finding.message) == (severity, message)


def test_a_cast_that_loses_little_is_fine(run_path: Path) -> None:
    """A scale from the maximum puts an element there; a lost hundredth in two captures of three is no finding."""
    assert not findings(run_path, casts(0.005))
    assert not findings(run_path, casts(0.05, "encoder.cast_underflow.float8_e4m3fn.0"))
    assert not findings(run_path, [*casts(0.3, steps=2), *casts(0.0, steps=1), *casts(0.3, steps=2)])


class _ToFloat8(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).to(torch.float8_e4m3fn)


class _FromFloat8(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x.float() / self.scale


class TestFp8RangeInRealRuns(RealRuns):
    rule = "Fp8Range"
    severity = Severity.ERROR
    cause = "float8_scale_wrong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Inputs of float8 with a fixed scale, which is a hundred times too large, or fits."""
        scale = 10_000.0 if sick else 100.0
        fit(nn.Sequential(_ToFloat8(scale), _FromFloat8(scale), *classifier()), watch)


class TestFp8RangeOfCastsInForwards(RealRuns):
    rule = "Fp8Range"
    severity = Severity.ERROR
    cause = "float8_scale_wrong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The scale of inputs is twenty times too large, and a clamp hides that nothing becomes infinite."""
        fit(nn.Sequential(Linear8(16, 2000.0 if sick else 60.0, 0.0, bias=True), nn.ReLU(), *classifier()), watch)


class TestFp8RangeOfCastsInBackwards(RealRuns):
    rule = "Fp8Range"
    cause = "float8_scale_wrong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Gradients are cast without a scale, and most vanish; or with one from their maximum."""
        fit(nn.Sequential(Linear8(16, 60.0, 1e-3 if sick else 0.0, bias=True), nn.ReLU(), *classifier()), watch)
