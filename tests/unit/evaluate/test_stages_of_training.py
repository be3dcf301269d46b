"""A rule that starts with each stage, or each task, of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from synthetic_steps import GRADIENT, MODULES, RATIO, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run

RULES = '''
from watchglass.records import Mode, Severity
from watchglass.rules import Needs, Rule, state

class Whole(Rule):
    """Counts the steps that an instance has seen."""
    needs = (Needs(scalars=("loss",)),)
    count: int = state(int)
    def check(self, view):
        self.count += view.mode is Mode.TRAIN
        return ()
    def finish(self, view):
        known = len(view.series("loss", Mode.TRAIN))
        yield self.finding(view, severity=Severity.INFO, subject=f"{view.mode_step}", value=self.count, limit=known,
                           message="end")

class ByStage(Whole):
    """The same for each stage."""
    starts_with = "stage"

class ByTask(Whole):
    """The same for each task."""
    starts_with = "task"
'''


def _steps(second: float) -> list[Step]:
    """A new optimizer from step 30 on, with losses that fall from another start."""
    begins = {30: {"stage": {"begins_with": "optimizer", "trained": 4}}}
    return training(50, noise=0.0, loss=lambda n: 2.0 * 0.9**n if n < 30 else second * 0.9 ** (n - 30), facts=begins)


def _found(run: Path, tmp_path: Path, rule: str, steps: Sequence[Step]) -> list[tuple[int, float | None, float | None]]:
    (tmp_path / "rules.py").write_text(RULES)
    specs = [RuleSpec(f"{tmp_path / 'rules.py'}:{rule}")]
    found: list[Finding] = list(replay(build_run(run, steps, modules=MODULES), specs).findings)
    return [(finding.step, finding.value, finding.limit) for finding in found]


def test_each_stage_has_an_instance_and_an_end(run_path: Path, tmp_path: Path) -> None:
    assert _found(run_path, tmp_path, "ByStage", _steps(0.09)) == [(29, 30.0, 30.0), (49, 20.0, 20.0)]


def test_a_stage_that_goes_on_is_the_same_task(run_path: Path, tmp_path: Path) -> None:
    assert _found(run_path, tmp_path, "ByTask", _steps(0.09)) == [(49, 50.0, 20.0)]


def test_a_stage_with_another_loss_is_another_task(run_path: Path, tmp_path: Path) -> None:
    assert _found(run_path, tmp_path, "ByTask", _steps(2.0)) == [(29, 30.0, 30.0), (49, 20.0, 20.0)]


def test_other_rules_have_one_instance(run_path: Path, tmp_path: Path) -> None:
    assert [found[:2] for found in _found(run_path, tmp_path, "Whole", _steps(2.0))] == [(49, 50.0)]


def _increasing(run: Path, steps: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(run, steps, modules=MODULES), [RuleSpec("LossIncreasing")]).findings)


def _two_stages(second: float, slope: float) -> list[Step]:
    begins = {300: {"stage": {"begins_with": "parameters", "trained": 2}}}
    return training(
        600, noise=0.05, facts=begins, loss=lambda n: 2.3 * 0.98**n + 0.01 if n < 300 else second + slope * (n - 300)
    )


def test_a_second_head_that_begins_high_does_not_make_the_loss_rise(run_path: Path) -> None:
    assert not _increasing(run_path, _two_stages(0.7, -0.0005))


def test_a_loss_that_rises_in_a_second_stage_is_found(run_path: Path) -> None:
    assert _increasing(run_path, _two_stages(0.7, 0.02))


def test_a_loss_that_jumps_and_stays_without_a_new_stage_is_found(run_path: Path) -> None:
    assert _increasing(run_path, training(600, loss=lambda n: 2.3 * 0.98**n if n < 300 else 1.5))


def _other_scale(*, staged: bool) -> list[Step]:
    """A second stage whose loss and gradients are on another scale, and steady."""
    facts = {160: {"stage": {"begins_with": "optimizer", "trained": 4}}} if staged else None
    return training(
        320, noise=0.02, facts=facts,
        loss=lambda n: 0.2 if n < 160 else 9.0,
        gradient=lambda n, i: GRADIENT(n, i) * (1 if n < 160 else 300),
    )  # fmt: skip


def test_gradients_of_a_new_stage_are_not_compared_with_those_before(run_path: Path) -> None:
    whole = build_run(run_path, _other_scale(staged=False), modules=MODULES)
    assert replay(whole, [RuleSpec("ExplodingGradient")]).findings, "without a new stage such gradients are a finding"
    staged = build_run(run_path.with_name("staged"), _other_scale(staged=True), modules=MODULES)
    assert not replay(staged, [RuleSpec("ExplodingGradient")]).findings


@pytest.mark.parametrize(
    "rule",
    [
        "AdamSecondMomentStale", "AlwaysClipping", "ExplodingGradient", "GradientNormSpike", "OutputLogitDrift",
        "PenaltyDominates", "SaturatedActivation", "VanishingGradient", "WeightUpdateRatio",
    ],
)  # fmt: skip
def test_rules_that_compare_with_the_start_begin_again_with_a_stage(rule: str) -> None:
    assert find_rule(rule).starts_with == "stage"


def test_a_first_loss_of_an_earlier_stage_is_not_the_start(run_path: Path) -> None:
    """Half of the updates are tiny in the second stage, whose loss stands still: the first one had fallen."""
    steps = training(
        700, noise=0.0, facts={300: {"stage": {"begins_with": "parameters", "trained": 2}}},
        loss=lambda n: 5.0 * 0.98**n if n < 300 else 0.7, ratio=lambda n, i: RATIO(n, i) if n < 300 else 1e-8,
        due=lambda n: True,
    )  # fmt: skip
    (finding,) = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec("WeightUpdateRatio")]).findings
    assert finding.since >= 300
    assert "after 0.7 at the start" in finding.message
