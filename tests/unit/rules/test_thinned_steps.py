"""Rules in runs whose steps are too short to record each: what they say of steps is said of all steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from phased_steps import phased
from synthetic_steps import MODULES, evaluation, training
from watchglass.records import Fact, Finding, Mode
from watchglass.rules import Rule, find_rule, learning_rates
from watchglass.tables import StepView
from watchglass.tables.model_views import ModelViews
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import views_of

#: Steps are all recorded up to this one; then one of this many.
WHOLE, INTERVAL = 64, 16


def thinned(path: Path, steps: list[Step]) -> Iterator[StepView]:
    """The views of a run of these steps, of which not all were recorded."""
    build_run(path, steps, modules=MODULES)
    views, all_records = ModelViews(), [view.records for view in views_of(path)]
    for records, after in zip_longest(all_records, all_records[1:]):
        mode, step = records.end.mode, records.end.mode_step
        if step == WHOLE:
            fact = Fact("step_interval", records.end.global_step, "budget", {"interval": INTERVAL})
            records = replace(records, facts=(*records.facts, fact))
        is_last = after is None or after.end.mode is not Mode.TRAIN
        if mode is not Mode.TRAIN or step <= WHOLE or step % INTERVAL == 0 or is_last:
            yield from views.after(records)


def found(rule: str, views: Iterator[StepView]) -> list[Finding]:
    """What an instance of the rule finds, at the end, too."""
    instance: Rule = find_rule(rule)()
    findings, last = [], None
    for last in views:
        findings += instance.check(last)
    assert last is not None
    return [*findings, *instance.finish(last)]


def test_views_know_how_many_steps_they_stand_for(tmp_path: Path) -> None:
    views = list(thinned(tmp_path / "run", training(129)))
    assert [view.covers for view in views] == [1] * 65 + [16] * 4
    assert [view.model_step for view in views] == [*range(65), 80, 96, 112, 128]


def test_a_step_after_an_evaluation_does_not_stand_for_it(tmp_path: Path) -> None:
    steps = training(97)
    steps[81:81] = evaluation(1.0)
    assert [view.covers for view in thinned(tmp_path / "run", steps)][-4:] == [16, 1, 1, 16]


def test_models_that_take_turns_share_the_steps_that_are_not_recorded(tmp_path: Path) -> None:
    build_run(tmp_path / "run", training(WHOLE * 2), modules=MODULES)
    views, found = ModelViews(), list[tuple[int, int, int]]()
    for number, view in enumerate(views_of(tmp_path / "run")):
        records = replace(view.records, end=replace(view.records.end, model=number % 2), rows={})
        if number == WHOLE:
            fact = Fact("step_interval", records.end.global_step, "budget", {"interval": INTERVAL})
            records = replace(records, facts=(*records.facts, fact))
        if number <= WHOLE + 1 or number % INTERVAL < 2:
            found += [(view.model, view.model_step, view.covers) for view in views.after(records)]
    assert found[-6:] == [
        (0, 40, 8), (1, 40, 8), (0, 48, 8), (1, 48, 8), (0, 56, 8), (1, 56, 8),
    ]  # fmt: skip


def test_a_learning_rate_of_zero_counts_steps(tmp_path: Path) -> None:
    steps = training(161, rate=lambda step: 0.1 if step < 81 else 0.0)
    first, *_, last = found("LearningRateZero", thinned(tmp_path / "run", steps))
    assert "for 17 training steps, up to step 112" in first.message
    assert "for 65 training steps, up to step 160" in last.message
    assert first.evidence["since_step"] == 96


def test_the_steps_in_which_a_loss_does_not_fall_are_all_of_them(tmp_path: Path) -> None:
    steps = training(2001, loss=lambda n: 2.3 + 0.1 * (n * 7919 % 13))
    assert "at the start of 2001 steps" in found("LossNotDecreasing", thinned(tmp_path / "run", steps))[-1].message


def test_updates_that_move_nothing_are_all_counted(tmp_path: Path) -> None:
    steps = training(1601, loss=lambda n: 2.3, ratio=lambda step, layer: 1e-6)
    assert "1601 of them move a weight by" in found("WeightUpdateRatio", thinned(tmp_path / "run", steps))[-1].message


def test_a_jump_of_the_rate_has_its_own_step(tmp_path: Path) -> None:
    steps = training(161, rate=lambda step: 1e-3 if step < 130 else 10.0)
    *_, last = thinned(tmp_path / "run", steps)
    jump = learning_rates.jump(last)
    assert jump is not None
    assert jump.step == 144


def test_a_loss_stays_high_for_all_steps(tmp_path: Path) -> None:
    steps = training(401, loss=lambda n: (1.0 if n < 300 else 50.0) + 0.01 * (n % 3))
    messages = [finding.message for finding in found("LossSpike", thinned(tmp_path / "run", steps))]
    assert any("it has stayed there for 81 steps" in message for message in messages)


def test_the_time_of_training_is_that_of_all_steps(tmp_path: Path) -> None:
    """Of steps that were not recorded only the time of all of them together is known."""
    train, evaluated = phased(forward_s=0.1), phased(Mode.EVAL, forward_s=0.1)
    few, many = ([*[train] * 100, *[evaluated] * each] * 20 + [train] for each in (30, 300))
    assert not found("EvaluationBound", thinned(tmp_path / "few", few))
    sentence = found("EvaluationBound", thinned(tmp_path / "many", many))[-1].message
    assert "75 % of the time" in sentence
    assert "after every 100 training steps, which take 10 s" in sentence
