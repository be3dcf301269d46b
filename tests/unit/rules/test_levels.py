"""How far losses and norms are from where they began, and rules that say only what is so of losses without a ratio.

Decisions stay the same when a loss is multiplied with a number above zero, and where it has no ratio also when a
constant is added. Every number in a sentence is computed here again from the series.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import levels
from watchglass.testing import Step, build_run

Series = NDArray[np.float64]


def noise(count: int, size: float, seed: int = 0) -> Series:
    return np.random.default_rng(seed).normal(size=count) * size


def steps_of(losses: Sequence[float] | Series, norms: Sequence[float] | Series | None = None) -> list[Step]:
    return [
        Step(scalars={"loss": float(loss), **({"gradient_norm": float(norms[n])} if norms is not None else {})})
        for n, loss in enumerate(losses)
    ]


def found(path: Path, rule: str, steps: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(path, steps), [RuleSpec(rule)]).findings)


# Series that people have, all healthy.


def towards_nothing(count: int = 400) -> Series:
    """From 2.3 down to 1e-8 within a few steps, and wavering there."""
    return 2.3 * np.maximum(10.0 ** -np.arange(count), 1e-8) * np.exp(noise(count, 1.5))


def hinge(count: int = 400) -> Series:
    """Down to exactly zero, with a sample now and then inside the margin."""
    return np.maximum(0.0, 1.0 - np.arange(count) / 40 + noise(count, 0.2))


def likelihood(count: int = 400) -> Series:
    """A negative log-likelihood of densities: from 1.4 down below zero."""
    return 1.4 - 5 * (1 - np.exp(-np.arange(count) / 60)) + noise(count, 0.15)


def policy(count: int = 600) -> Series:
    """The loss of a policy: around zero, ever larger as the returns grow."""
    return noise(count, 1.0) * (0.2 + np.arange(count) / 50)


def critic(count: int = 600) -> Series:
    """The loss of a Wasserstein critic: from nothing to some negative value and slowly back."""
    course = np.arange(count)
    return -2 * np.exp(-course / 200) * (1 - np.exp(-course / 10)) + noise(count, 0.1)


def classifier(count: int = 400) -> Series:
    return 2.3 * np.exp(-np.arange(count) / 100) + 0.1 + np.abs(noise(count, 0.05))


HEALTHY: list[Callable[[], Series]] = [towards_nothing, hinge, likelihood, policy, critic, classifier]


@pytest.mark.parametrize("make", HEALTHY)
def test_healthy_losses_of_all_kinds_have_no_finding(run_path: Path, make: Callable[[], Series]) -> None:
    assert [finding.message for finding in found(run_path, "LossIncreasing", steps_of(make()))] == []


@pytest.mark.parametrize("make", HEALTHY)
def test_growing_gradients_are_no_fault_while_a_loss_of_any_kind_is_well(
    run_path: Path, make: Callable[[], Series]
) -> None:
    losses = make()
    norms = 1e-3 * 1.05 ** np.arange(len(losses)) * np.exp(noise(len(losses), 0.2, seed=1))
    assert [finding.message for finding in found(run_path, "ExplodingGradient", steps_of(losses, norms))] == []


def diverging(losses: Series, begin: int, factor: float = 1.25) -> Series:
    """The same, but from one step on each loss is higher by a growing amount."""
    grown = 0.05 * factor ** np.arange(len(losses) - begin)
    return np.concatenate([losses[:begin], losses[begin:] + grown])


@pytest.mark.parametrize("make", [likelihood, critic, hinge, classifier])
def test_a_loss_of_any_kind_that_diverges_is_found(run_path: Path, make: Callable[[], Series]) -> None:
    findings = found(run_path, "LossIncreasing", steps_of(diverging(make(), 300)))
    assert findings
    assert min(finding.step for finding in findings) >= 300
    assert any(finding.severity is Severity.ERROR for finding in findings)


@pytest.mark.parametrize("make", [likelihood, critic, classifier, towards_nothing])
@pytest.mark.parametrize("factor", [1e-6, 0.3, 1e6])
def test_decisions_do_not_depend_on_the_scale_of_a_loss(
    run_path: Path, tmp_path: Path, make: Callable[[], Series], factor: float
) -> None:
    losses = diverging(make(), 300)
    plain = found(run_path, "LossIncreasing", steps_of(losses))
    scaled = found(tmp_path / "scaled", "LossIncreasing", steps_of(losses * factor))
    assert decisions(plain) == decisions(scaled)


@pytest.mark.parametrize("make", [likelihood, critic])
@pytest.mark.parametrize("shift", [-7.0, -100.0])
def test_without_a_ratio_decisions_do_not_depend_on_a_constant(
    run_path: Path, tmp_path: Path, make: Callable[[], Series], shift: float
) -> None:
    losses = diverging(make() - 200.0, 300, factor=1.1)[:380]
    assert losses.max() < 0
    plain = found(run_path, "LossIncreasing", steps_of(losses))
    shifted = found(tmp_path / "shifted", "LossIncreasing", steps_of(losses + shift))
    kinds = ("diverged", "rises")
    assert decisions(plain, kinds) == decisions(shifted, kinds)


def decisions(findings: Sequence[Finding], kinds: Sequence[str] = ("",)) -> list[tuple[int, int, int, Severity]]:
    meant = [each for each in findings if any(kind in each.message for kind in kinds)]
    return [(each.step, each.last_step, each.count, each.severity) for each in meant]


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]\d+)?", text)]


@pytest.mark.parametrize("make", [classifier, likelihood])
def test_every_number_of_a_divergence_is_one_of_the_series(run_path: Path, make: Callable[[], Series]) -> None:
    losses = diverging(make(), 300)
    finding = min(found(run_path, "LossIncreasing", steps_of(losses)), key=lambda each: each.step)
    assert "diverged" in finding.message
    now, over, step, rise, began = numbers(finding.message)
    assert (over, step) == (5, finding.step)
    last = losses[finding.step - 4 : finding.step + 1]
    start = float(np.sort(losses[:8])[3])
    earlier = losses[max(0, finding.step - 4 - 64) : finding.step - 4]
    unit = max(levels.spread(losses[:8].tolist()), levels.spread(earlier.tolist()))
    expected = np.median(last) / start if losses[: finding.step].min() > 0 else (np.median(last) - start) / unit
    assert (now, rise, began) == pytest.approx((np.median(last), expected, start), rel=6e-3)
    assert finding.value is not None
    assert finding.limit is not None
    assert finding.value >= finding.limit


def test_a_loss_that_rises_again_is_reported_with_its_windows(run_path: Path) -> None:
    losses = np.concatenate([classifier(300), 1.2 + np.abs(noise(200, 0.05))])
    (finding,) = [each for each in found(run_path, "LossIncreasing", steps_of(losses)) if "rises" in each.message]
    now, step, best = numbers(finding.message)
    windows = [float(np.median(losses[begin : begin + 16])) for begin in range(0, finding.step + 1, 16)]
    assert step == finding.step
    assert (now, best) == pytest.approx((windows[-1], min(windows[:-1])), rel=6e-3)


def test_a_gradient_that_explodes_beside_a_negative_loss_says_what_both_did(run_path: Path) -> None:
    losses = diverging(likelihood(), 300, factor=1.5)[:330]
    norms = np.concatenate([np.full(300, 0.5), 0.5 * 3.0 ** np.arange(30)])
    findings = found(run_path, "ExplodingGradient", steps_of(losses, norms))
    first = min(findings, key=lambda each: each.step)
    assert "-fold since the start" in first.message or "robust deviations" in first.message
    if "-fold" in first.message:
        growth, norm, step, now, spreads, began = numbers(first.message.replace("-fold", ""))
        assert (growth, norm) == pytest.approx((norms[first.step] / 0.5, norms[first.step]), rel=6e-3)
        assert (step, began) == pytest.approx((first.step, float(np.sort(losses[:3])[1])), rel=6e-3)
        assert now == pytest.approx(losses[first.step], rel=6e-3)
        assert spreads > levels.CERTAIN


def test_a_gradient_jump_beside_a_negative_loss_that_does_not_rise_is_none(run_path: Path) -> None:
    """Twice of -3 is below it: a rise to half is no doubling, and no rise at all is none either."""
    losses = -3 + noise(200, 0.05)
    norms = np.concatenate([np.ones(150), np.full(50, 200.0)]) * np.exp(noise(200, 0.05, seed=1))
    assert found(run_path, "ExplodingGradient", steps_of(losses, norms)) == []


@pytest.mark.parametrize("shift", [0.0, -1.0, -5.0])
def test_nan_after_calm_steps_is_calm_whatever_the_level_of_the_loss(run_path: Path, shift: float) -> None:
    losses = [*(1.0 + shift + noise(40, 0.02)), float("nan")]
    (finding,) = found(run_path, "ExplodingTensor", steps_of(losses))
    assert "calm_before" in finding.evidence["symptoms"]
    assert "rose_before" not in finding.evidence["symptoms"]


@pytest.mark.parametrize("shift", [0.0, -5.0])
def test_nan_after_a_rise_has_risen_whatever_the_level_of_the_loss(run_path: Path, shift: float) -> None:
    losses = [*(1.0 + shift + noise(40, 0.02)), 4.0 + shift, 20.0 + shift, 300.0 + shift, float("nan")]
    (finding,) = found(run_path, "ExplodingTensor", steps_of(losses))
    assert "rose_before" in finding.evidence["symptoms"]


# Overfit


def evaluated(train: Callable[[int], float], validation: Callable[[int], float], count: int = 20) -> list[Step]:
    steps = []
    for epoch in range(count):
        steps += [Step(scalars={"loss": train(epoch)})] * 5
        steps.append(Step(scalars={"loss": validation(epoch)}, mode=Mode.EVAL))
    return steps


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (100.0, 0.0), (1.0, -3.0), (1.0, -30.0), (0.01, -1.0)])
def test_overfitting_is_found_at_any_level(run_path: Path, scale: float, shift: float) -> None:
    steps = evaluated(
        lambda n: scale * (2.0 * math.exp(-n / 5)) + shift,
        lambda n: scale * (2.0 * math.exp(-min(n, 8) / 5) + 0.2 * max(0, n - 8)) + shift,
    )
    (finding,) = found(run_path, "Overfit", steps)
    loss, step, best, at, before, now = numbers(finding.message)
    epoch = round((step - 4) / 5)
    assert (at, epoch * 5 + 4) == (8 * 5 + 4, step)
    expected = [scale * (2.0 * math.exp(-8 / 5) + 0.2 * (epoch - 8)) + shift, scale * 2.0 * math.exp(-8 / 5) + shift]
    trained = [scale * 2.0 * math.exp(-8 / 5) + shift, scale * 2.0 * math.exp(-epoch / 5) + shift]
    assert [loss, best, before, now] == pytest.approx([*expected, *trained], rel=6e-3, abs=1e-3)
    assert finding.value is not None
    assert finding.limit is not None
    assert finding.value > finding.limit > best - 1e-3 * abs(best)


@pytest.mark.parametrize("shift", [0.0, -0.37, -5.0])
def test_a_validation_loss_that_wavers_near_its_best_is_no_overfitting(run_path: Path, shift: float) -> None:
    wavering = noise(40, 0.01)
    steps = evaluated(
        lambda n: 2.0 * math.exp(-n / 5) + shift, lambda n: 0.37 + 1.6 * math.exp(-n / 2) + shift + wavering[n], 40
    )
    assert found(run_path, "Overfit", steps) == []


# The measures themselves


def test_the_level_is_no_least_value() -> None:
    first = [2.3, 0.01, 2.2, 2.4, 2.1]
    assert levels.level(first, lowest=0.01) == 2.2
    assert levels.level([2.3, 4e4], lowest=2.3) == 2.3
    assert levels.level([2.3, 4e4, 4e13], lowest=2.3) == 2.3
    assert levels.level([-2.3, 4e4, 4e13], lowest=-2.3) == 4e4


@pytest.mark.parametrize("factor", [1e-3, 7.0])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_spreads_are_the_same_at_any_scale_and_level(factor: float, shift: float) -> None:
    first, now = [-1.0, 0.2, -0.3, 0.4, 0.0, 0.6, -0.5, 0.1], 5.0
    plain = levels.rise(first, now, lowest=-1.0)
    other = levels.rise([factor * (x - shift) for x in first], factor * (now - shift), lowest=factor * (-1.0 - shift))
    assert plain.times is None
    assert other.times is None
    assert other.spreads == pytest.approx(plain.spreads)


def test_values_that_do_not_differ_have_no_spread_to_measure_by() -> None:
    assert levels.rise([0.0] * 8, 1.0, lowest=0.0).spreads == 0


@pytest.mark.parametrize(
    ("first", "now", "lowest", "expected"),
    [
        ([2.0] * 8, 1.0, 1.0, 0.5),
        ([2.0] * 8, 4.0, 2.0, -1.0),
        ([0.1, -0.1, 0.2, -0.2], -5.0, -5.0, 1.0),
        ([0.1, -0.1, 0.2, -0.2], 0.0, -0.2, 0.0),
    ],
)
def test_progress(first: list[float], now: float, lowest: float, expected: float) -> None:
    assert levels.progress(first, now, lowest=lowest) == pytest.approx(expected)
