"""Several models in one run: a rule judges each by itself, and what it finds names the model."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from moments import views_shown
from synthetic_steps import evaluation, in_turns, modules, of_model, training, with_evaluations
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.diagnose import diagnose
from watchglass.evaluate import Follower, PartialEvaluation, merge, replay, replay_part
from watchglass.records import MOST_MODELS, UNITS, Finding, Mode, Role, Severity, Status
from watchglass.rules import build_rule, default_rules, signals
from watchglass.store import LocalStore
from watchglass.testing import Batch, RunBuilder, Step, build_run
from watchglass.testing.rule_suite import views_of


def falling(start: float, steps: int = 120, floor: float = 0.01, **more: object) -> list[Step]:
    return training(steps, loss=lambda n: start * 0.97**n + floor, **more)  # type: ignore[arg-type]


def diverging(steps: int = 120) -> list[Step]:
    """A loss that grows without bound from step 40 on, with its gradient."""
    return training(
        steps,
        loss=lambda n: 1.0 * 0.97**n if n < 40 else 0.3 * 1.3 ** (n - 40),
        gradient=lambda n, layer: 1e-2 if n < 40 else 1e-2 * 1.3 ** (n - 40),
    )


def validation(step: int) -> float:
    return 2.0 * 0.97**step


#: The same data evaluated by an averaged copy, which lags behind.
AVERAGED = of_model(evaluation(3.5, 1), 1)


def built(path: Path, *steps: Step) -> Path:
    build_run(path, steps, modules=modules(3))
    return path


def test_each_model_has_a_view_with_its_own_tensors_series_and_past(run_path: Path) -> None:
    turns = in_turns(falling(2.0, 4), of_model(falling(50.0, 4), 1))
    turns[0] = Step(**{**vars(turns[0]), "facts": {"optimizer": {"type": "SGD"}}})
    turns[1] = Step(**{**vars(turns[1]), "facts": {"optimizer": {"type": "Adam", "model": 1}}})
    first, second = [], []
    for view in views_of(built(run_path, *turns)):
        (second if view.model else first).append(view.model_step)
        names = {each.replace("gradient/", "").replace("update/", "") for each in view.statistics().names}
        assert names
        assert all(name.startswith("model_2.") == bool(view.model) for name in names)
        assert {row.tensor.model for row in view.rows(UNITS)} == {view.model}
        series = view.series("loss")
        assert len(series) == view.model_step + 1
        assert series[-1] == view.scalar("loss")
        assert (series > 20).all() == bool(view.model)
        assert view.recorded_name("loss") == ("model_2/loss" if view.model else "loss")
        assert list(view.scalars(Role.LOSS)) == ["loss"]
        assert len(view.baseline(("scalar", "loss"))) == view.model_step
        assert view.latest_fact("optimizer").data["type"] == ("Adam" if view.model else "SGD")
        assert view.several == (view.mode_step > 0)
        assert view.mode_step == 2 * view.model_step + view.model
        assert view.in_turns == (view.model_step > 0)
    assert first == second == [0, 1, 2, 3]


def test_a_view_of_a_single_model_is_the_step_itself(run_path: Path) -> None:
    for number, view in enumerate(views_of(built(run_path, *falling(2.0, 3)))):
        assert (view.model, view.model_step, view.several, view.in_turns, view.leads) == (0, number, False, False, True)
        assert view.recorded_name("loss") == "loss"


def test_models_one_after_another_are_not_in_turns(run_path: Path) -> None:
    folds = [falling(2.0, 5), of_model(falling(2.0, 5), 1), of_model(falling(2.0, 5), 2)]
    seen = [(v.model, v.model_step, v.in_turns) for v in views_of(built(run_path, *chain(*folds)))]
    assert seen == [(model, step, False) for model in range(3) for step in range(5)]


def test_a_step_of_two_losses_is_shown_to_both_models(run_path: Path) -> None:
    both = [Step({"loss": 1.0 + n, "model_2/loss": 5.0 + n, "temperature": 0.5}) for n in range(3)]
    seen = [
        (view.mode_step, view.model, view.scalar("loss"), view.scalar("temperature"), view.in_turns)
        for view in views_of(built(run_path, *both))
    ]
    assert seen == [(n, m, (5.0 if m else 1.0) + n, 0.5, True) for n in range(3) for m in range(2)]


def test_what_has_no_steps_is_shown_with_the_model_that_leads(run_path: Path) -> None:
    """An encoder and a decoder under one loss: no step belongs to the decoder."""
    row = np.ones((2, 2), np.float32)
    steps = [Step({"loss": 1.0}, {"fc.weight": row, "model_2.fc.weight": row}) for _ in range(3)]
    assert [view.statistics().names for view in views_of(built(run_path, *steps))] == [
        ["fc.weight", "model_2.fc.weight"]
    ] * 3


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(in_turns(falling(0.01), of_model(falling(8.0), 1)), id="teacher and student in turns"),
        pytest.param([*falling(8.0, floor=0.001), *of_model(falling(2.0), 1)], id="student after its teacher"),
        pytest.param(
            [
                *with_evaluations(falling(2.0), validation),
                *of_model(with_evaluations(falling(2.0), validation), 1),
                *of_model(with_evaluations(falling(2.0), validation), 2),
            ],
            id="folds",
        ),
        pytest.param(
            [*falling(2.0), *of_model(falling(2.0, ratio=lambda n, i: 1e-4), 1), *of_model(falling(20.0), 2)],
            id="learning rates",
        ),
        pytest.param(
            [
                each
                for step in with_evaluations(falling(2.0, 160), lambda n: 2.0 * 0.97**n + 0.02)
                for each in ([step, *AVERAGED] if step.mode is Mode.EVAL else [step])
            ],
            id="averaged copy that is evaluated",
        ),
        pytest.param(
            in_turns(
                training(150, loss=lambda n: 0.69 * 0.99**n + 0.2),
                of_model(training(150, loss=lambda n: 0.7 + 3.0 * (1 - 0.98**n)), 1),
            ),
            id="generator and discriminator",
        ),
        pytest.param(
            in_turns(
                training(150, loss=lambda n: 2.0 * 0.97**n),
                of_model(
                    training(
                        150,
                        loss=lambda n: 0.01 + 50.0 * (1 - 0.95**n),
                        gradient=lambda n, layer: 1e-3 + 0.5 * (1 - 0.95**n),
                    ),
                    1,
                ),
            ),
            id="actor and critic whose returns grow",
        ),
    ],
)  # fmt: skip
def test_healthy_models_are_silent(run_path: Path, steps: list[Step]) -> None:
    found = replay(built(run_path, *steps), default_rules()).findings
    assert [f.message for f in found if f.severity is not Severity.INFO] == []


@pytest.mark.parametrize(
    "arranged",
    [
        pytest.param(lambda one, other: in_turns(one, of_model(other, 1)), id="in turns"),
        pytest.param(lambda one, other: [*one, *of_model(other, 1)], id="one after another"),
    ],
)
def test_a_sick_second_model_is_found_and_named(run_path: Path, arranged) -> None:
    evaluation = replay(built(run_path, *arranged(falling(8.0), diverging())), default_rules())
    serious = [finding for finding in evaluation.findings if finding.severity is not Severity.INFO]
    assert {finding.model for finding in serious} == {1}
    assert {finding.rule for finding in serious} >= {"LossIncreasing", "ExplodingGradient"}
    assert all(finding.message.startswith("model_2: ") for finding in serious)
    (lost,) = {f.tensors for f in serious if f.rule == "LossIncreasing"}
    assert lost == ("model_2/loss",)
    assert all(f.to_json()["model"] == 1 for f in serious)
    (exploded,) = (f for f in serious if f.rule == "ExplodingGradient")
    assert all(name.startswith("gradient/model_2.") for name in exploded.tensors)


def test_the_ids_of_findings_about_a_single_model_are_what_they_were(run_path: Path) -> None:
    """The number of the model is no part of the identity of findings about the first."""
    alone = replay(built(run_path, *diverging()), default_rules()).findings
    assert all(finding.model == 0 and not finding.message.startswith("model") for finding in alone)


def test_a_model_whose_tensors_never_came_starves_only_rules_about_tensors(run_path: Path) -> None:
    bare = [Step({"model_2/loss": 1.0 * 0.99**n}, model=1) for n in range(120)]
    first = falling(2.0, facts={0: {"initialization": {"tensors": {}}}})
    steps = built(run_path, *in_turns(first, bare))
    rules = [spec for spec in default_rules() if not any(need.facts for need in build_rule(spec).needs)]
    assert len(rules) > 5
    starved = [status for status in replay(steps, rules).statuses if status.status is Status.STARVED]
    assert [(each.rule, each.reason) for each in starved] == [
        ("DeadRelu", "tensors were examined at fewer than 8 training steps of model_2 (0 of 120)")
    ]


def test_parts_merge_to_the_whole(run_path: Path) -> None:
    steps = in_turns(diverging(), of_model(diverging(90), 1), of_model(falling(1.0), 2))
    build_run(run_path, steps, modules=modules(3), workers=2)
    rules = tuple(default_rules())
    whole = replay(str(run_path), rules)
    config = EvaluatorConfig(str(run_path), None, rules)
    parts = [
        PartialEvaluation.from_json(json.loads(json.dumps(replay_part(str(run_path), config, **kind).to_json())))
        for kind in (
            {"workers": ["worker_1"], "rules": [0, 1, 2]}, {"workers": ["worker_0"], "rules": [0, 1, 2]},
            {"rules": list(range(3, len(rules)))},
        )
    ]  # fmt: skip
    merged = merge(parts, rules)
    assert merged.findings == whole.findings
    assert merged.statuses == whole.statuses
    assert {finding.model for finding in whole.findings} >= {0, 1}


def test_the_learning_rate_of_a_model_is_that_of_the_optimizer_that_steps(run_path: Path) -> None:
    first = [Step({"loss": 1.0, "learning_rate/0": 0.5}, model=0) for _ in range(3)]
    second = [Step({"model_2/loss": 1.0, "learning_rate/1": 0.01, "learning_rate/2": 0.02}, model=1) for _ in range(3)]
    views = list(views_of(built(run_path, *in_turns(first, second))))
    assert [signals.learning_rate(view) for view in views] == [0.5, 0.01] * 3


def test_a_second_model_that_overfits_is_compared_with_its_own_training(run_path: Path) -> None:
    """The first model is evaluated as well as it trains; of the second the validation loss rises."""
    first = with_evaluations(falling(2.0, 160), validation)
    second = with_evaluations(falling(2.0, 160), lambda n: 0.5 + n / 40)
    found = replay(built(run_path, *first, *of_model(second, 1)), default_rules()).findings
    assert [(f.rule, f.model, f.tensors) for f in found] == [("Overfit", 1, ("model_2/loss",))]


def test_steps_of_an_attempt_that_was_resumed_are_counted_on_for_the_first_model(run_path: Path) -> None:
    with RunBuilder(run_path, resumed={"start_step": 500, "source": "optimizer"}) as builder:
        for step in in_turns(falling(2.0, 3), of_model(falling(2.0, 3), 1)):
            builder.step(step)
        builder.leave()
    seen = [(view.model, view.mode_step, view.model_step) for view in views_of(run_path)]
    assert seen == [(n % 2, 500 + n, (0 if n % 2 else 500) + n // 2) for n in range(6)]


def test_models_beyond_the_limit_are_not_judged(run_path: Path) -> None:
    """A run that claims thousands of models takes no more memory than one of the limit."""
    build_run(run_path, [Step({f"model_{n + 1}/loss": 1.0}, model=n) for n in range(1, MOST_MODELS + 40)])
    assert [view.model for view in views_of(run_path)] == list(range(1, MOST_MODELS + 1))


def test_the_newest_scalars_of_each_model_have_their_names_in_the_run(run_path: Path) -> None:
    both = [
        Step({"loss": 1.0, "model_2/loss": 5.0, "temperature": 0.5}),
        Step({"model_2/loss": 4.0}, model=1),
        Step({"model_2/loss": 9.0, "temperature": 0.9}, mode=Mode.EVAL, model=1),
    ]
    follower = Follower(LocalStore(built(run_path, *both)))
    seen = [follower.workers[0, "worker_0"].newest_scalars(9) for _ in views_shown(follower.poll(full=True))]
    after = {"loss": 1.0, "model_2/loss": 4.0, "temperature": 0.5}
    assert seen == [{"loss": 1.0, "model_2/loss": 5.0, "temperature": 0.5}, after, after]


def test_a_scalar_that_models_share_has_the_value_of_its_last_step(run_path: Path) -> None:
    """Also after a step of the other model without this scalar."""
    both = [
        Step({"loss": 1.0, "temperature": 0.5}),
        Step({"model_2/loss": 5.0, "temperature": 0.9}, model=1),
        Step({"loss": 0.5}),
    ]
    follower = Follower(LocalStore(built(run_path, *both)))
    assert len(list(follower.poll(full=True))) == 3
    scalars = follower.workers[0, "worker_0"].newest_scalars
    assert scalars(9) == {"loss": 0.5, "temperature": 0.9, "model_2/loss": 5.0}
    assert scalars(2) == {"loss": 0.5, "temperature": 0.9}


def test_the_newest_scalars_are_those_that_appeared_first_where_there_are_too_many(run_path: Path) -> None:
    """A name that came once is there as long as one that comes at every step; the model of the newest step is first."""
    steps = [Step({"loss": 2.0 - n, f"once_{n}": n, "model_2/loss": 7.0}) for n in range(9)]
    follower = Follower(LocalStore(built(run_path, *steps)))
    assert len(list(follower.poll(full=True)))
    scalars = follower.workers[0, "worker_0"].newest_scalars
    assert scalars(2) == {"loss": -6.0, "once_0": 0.0}
    assert len(scalars(99)) == 11


def test_gradients_of_one_model_that_are_not_finite_say_nothing_of_another_in_the_same_step(run_path: Path) -> None:
    first, second = falling(2.0, 6), of_model(falling(2.0, 6), 1)
    both = [
        Step({**one.scalars, **other.scalars}, {**one.statistics, **other.statistics})
        for one, other in zip(first, second, strict=True)
    ]
    bad = {"nonfinite_gradients": {"tensors": ["gradient/model_2.stem.weight"], "count": 1}}
    both[5] = Step(both[5].scalars, both[5].statistics, facts=bad)
    found = replay(built(run_path, *both), [RuleSpec("ExplodingTensor")]).findings
    assert [(finding.model, finding.severity) for finding in found] == [(1, Severity.ERROR)]


def test_what_the_machine_does_concerns_no_model(run_path: Path) -> None:
    turns = in_turns(falling(2.0, 20), of_model(falling(50.0, 20), 1))
    turns[25] = Step(**{**vars(turns[25]), "facts": {"data_loader": {"num_workers": 9}}})
    used = Batch(metrics={"cpu.utilization": [50.0] * 4, "cpu.limit": [4.0] * 4}, seconds=2)
    build_run(run_path, [*turns[:4], used, *turns[4:]], modules=modules(2))
    rules = [RuleSpec("OverallSystemUsage"), RuleSpec("TooManyDataWorkers")]
    found = replay(run_path, rules).findings
    messages = {finding.rule: finding.message for finding in found}
    assert messages["OverallSystemUsage"].startswith("system: processor 50 %")
    assert messages["TooManyDataWorkers"] == "9 loader workers on 4 cores"
    assert [finding.model for finding in found] == [None, None]
    assert all(Finding.from_json(json.loads(json.dumps(finding.to_json()))) == finding for finding in found)
    assert all(diagnosis.models == () for diagnosis in diagnose(found))
