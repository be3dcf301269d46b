"""AlwaysClipping: clipping that is never idle, or leaves nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from real_runs import RealRuns, Watch, batch, classifier, fit, update
from synthetic_steps import constant_loss, sampled
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Severity
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


def clipped(steps: Sequence[Step], norm: float) -> list[Step]:
    """With norms before clipping."""
    return [Step(scalars={**step.scalars, "gradient_norm_before_clip": norm}, facts=step.facts) for step in steps]


def counts(limit: float, exceeded: int) -> dict[int, dict[str, dict[str, object]]]:
    fact = {"function": "clip_grad_norm_", "max_norm": limit, "calls": 32, "compared": 32, "exceeded": exceeded}
    return {step: {"clip": fact} for step in range(0, 160, 32)}


class TestAlwaysClipping(RuleSuite):
    rule = find_rule("AlwaysClipping")

    def sick(self) -> Sequence[Step]:
        slow = {"update": 1e-6}
        return clipped(sampled(160, lambda n: slow, facts=counts(1e-4, 32), loss=constant_loss(2.3)), 3.0)

    def healthy(self) -> Sequence[Step]:
        return clipped(sampled(160, lambda n: {}, facts=counts(1.0, 32)), 3.0)


def scaled(*calls: str, limit: float = 1.0, norm: float = 3e4, scale: float | None = 65536.0) -> list[Step]:
    """Steps with these calls after each backward; the scale of a scaler that is switched off is not recorded."""
    order = ["backward", *calls, "scaler.step", "optimizer.step", "scaler.update", "optimizer.zero_grad"]
    fact = {"orders": [{"calls": [[call, 1] for call in order], "times": 4}], "rounds": 4, "objects": {}}
    clip = {"function": "clip_grad_norm_", "max_norm": limit, "calls": 1, "compared": 1, "exceeded": 1}
    scalars = {"gradient_norm_before_clip": norm, **({} if scale is None else {"loss_scale": scale})}
    facts: dict[int, dict[str, Any]] = {0: {"clip": clip}, 1: {"calls": fact}}
    return [
        Step(scalars={**step.scalars, **scalars}, facts=step.facts)
        for step in sampled(6, lambda n: {"update": 1e-6}, facts=facts, loss=constant_loss(2.3))
    ]


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (scaled("clip_grad_norm_"), ["clipped_before_unscaling"]),
        (scaled("scaler.unscale_", "clip_grad_norm_", norm=3.0), []),
        (scaled("clip_grad_norm_", scale=None), []),  # a scaler that is switched off
        (scaled("clip_grad_norm_", limit=65536.0), []),  # a limit that is scaled as well
        (scaled("clip_grad_norm_", norm=20.0, scale=8.0), []),
    ],
)
def test_clipping_before_unscaling(run_path: Path, steps: list[Step], found: list[str]) -> None:
    findings = replay(TestAlwaysClipping().build(run_path, steps), [RuleSpec("AlwaysClipping")]).findings
    assert [symptom for finding in findings for symptom in finding.evidence["symptoms"]] == found


@pytest.mark.parametrize(
    ("norm", "severity", "begin"),
    [(3.0, Severity.INFO, "100 % of"), (math.inf, Severity.WARNING, "the norm of the gradient is infinite")],
)
def test_clipping_at_every_step(run_path: Path, norm: float, severity: Severity, begin: str) -> None:
    """By a usual norm it is noted; by an infinite one nothing is left."""
    suite = TestAlwaysClipping()
    run = suite.build(run_path, clipped(sampled(160, lambda n: {}, facts=counts(1.0, 32)), norm))
    (finding,) = replay(run, [RuleSpec("AlwaysClipping")]).findings
    assert (finding.severity, finding.message.startswith(begin)) == (severity, True)


class TestAlwaysClippingInRealRuns(RealRuns):
    rule = "AlwaysClipping"
    cause = "clipping_too_strong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        limit = 1e-4 if sick else 1.0
        fit(classifier(), watch, steps=60, clip=lambda model: nn.utils.clip_grad_norm_(model.parameters(), limit))


class TestElementsAtALimitInRealRuns(RealRuns):
    rule = "AlwaysClipping"
    cause = "clipping_too_strong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The script clips each element itself."""

        def clip(model: nn.Module) -> None:
            for each in model.parameters():
                each.grad.clamp_(*((-1e-6, 1e-6) if sick else (-1, 1)))

        fit(classifier(), watch, steps=60, clip=clip)


class TestNormAtALimitInRealRuns(RealRuns):
    rule = "AlwaysClipping"
    cause = "clipping_too_strong"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The script gives each gradient one norm; the twin learns with the same norm at another rate."""

        def clip(model: nn.Module) -> None:
            norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
            for each in model.parameters():
                each.grad.mul_(1e-4 / norm)

        fit(classifier(), watch, steps=60, rate=0.05 if sick else 500.0, clip=clip)


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))


@pytest.mark.parametrize("make", [classifier, _small])
def test_a_gradient_that_stays_as_it_is_was_not_clipped(run_path: Path, make: Callable[[], nn.Sequential]) -> None:
    """All data at each step, at a rate that hardly moves a weight."""
    model = make()
    inputs = torch.randn(64, model[0].in_features)
    targets = torch.randn(64, model[-1].out_features) + 4
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    rules = [RuleSpec("AlwaysClipping")]
    with watchglass.watch(model, run=run_path, strict=True, save_interval=1, **capture_for(rules)):
        for _ in range(40):
            update(model, optimizer, inputs, targets, loss=nn.MSELoss())
    assert replay(run_path, rules).findings == ()


class TestClippingBeforeUnscalingInRealRuns(RealRuns):
    rule = "AlwaysClipping"
    cause = "clipped_while_scaled"

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu")
        watch(model)
        for _ in range(60):
            inputs, labels = batch()
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
            if not sick:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
