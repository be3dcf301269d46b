"""A rule whose data never comes says so within a few steps, with the reason and the cure, and takes it back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moments import feed
from watchglass.capture.planning.plan import Plan
from watchglass.config import Collection, RuleSpec, SessionConfig
from watchglass.evaluate import replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.rule_status import Tally
from watchglass.evaluate.engine.unmet_needs import NeedSeen
from watchglass.records import INACTIVE_UNITS, Mode, Role, Status
from watchglass.rules import Needs
from watchglass.tables import StepView
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import views_of

GRADIENTS = Needs(role=Role.GRADIENT, why="to compare layers")


def plan(**settings: Any) -> dict[str, Any]:
    return Plan(SessionConfig(run="r", **settings)).describe().to_data()


def steps(count: int, planned: dict[str, Any] | None, *, captured: Sequence[str] = (), **others: Any) -> list[Step]:
    """Steps of a training run that captures tensors of some names at every step."""
    statistics = {name: np.ones(4) for name in captured}
    first = {"capture_plan": planned} if planned is not None else {}
    return [
        Step(scalars={"loss": 1.0}, statistics=statistics, facts=first if number == 0 else {}, **others)
        for number in range(count)
    ]


def seen(needs: Needs, views: Iterable[StepView]) -> list[str]:
    """The reason reported after each step of the run; "" for none."""
    need, reasons = NeedSeen(needs), []
    for view in views:
        need.look(view)
        reasons.append(need.met.reason if need.met.certain else "")
    return reasons


def test_what_is_not_planned_is_reported_at_the_first_step(run_path: Path) -> None:
    run = build_run(run_path, steps(1, plan(collections=["weights", "outputs"]), captured=["fc.weight"]))
    assert seen(GRADIENTS, views_of(run)) == [
        "statistics of gradients are not captured: the collections of this run are weights, outputs; add collection "
        "gradients or leave collections to the rules"
    ]


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(
    ("rule", "fact", "unseen", "why"),
    [
        ("LossShape", "loss_call", "no call of a loss function was seen", "to compare shapes"),
        (
            "UnusedParameter",
            "membership",
            "no step of an optimizer was seen",
            "to see which parameters have no gradient",
        ),
        ("LabelRange", "target_sketch", "the fact target_sketch never came", "to count classes"),
    ],
)
def test_a_rule_on_a_recorded_fact_that_no_script_gave_does_not_apply(
    run_path: Path, planned: bool, rule: str, fact: str, unseen: str, why: str
) -> None:
    """A script that calls no loss function has none to judge; without a record of them nothing is known."""
    run = build_run(run_path, steps(80, plan(facts=(fact,)) if planned else None))
    (found,) = replay(run, [RuleSpec(rule)]).statuses
    assert (found.status, found.reason) == (
        (Status.NOT_APPLICABLE, f"{unseen} (needed {why})")
        if planned
        else (Status.STARVED, f"the fact {fact} never came (needed {why})")
    )
    need = NeedSeen(Needs(facts=(fact,)))
    for view in views_of(run):
        need.look(view)
    assert need.met.certain is not planned


@pytest.mark.parametrize(
    ("rule", "reason", "starved"),
    [
        (
            "LearningRateZero",
            "no optimizer with a learning rate was seen (needed to follow the learning rate)",
            "the scalar learning_rate or learning_rate/0 never came (needed to follow the learning rate)",
        ),
        (
            "Overtraining",
            "there was no evaluation (needed to follow the validation loss)",
            "the scalar loss of EVAL never came (needed to follow the validation loss)",
        ),
    ],
)
def test_a_rule_on_what_the_script_does_not_do_does_not_apply(
    run_path: Path, tmp_path: Path, rule: str, reason: str, starved: str
) -> None:
    """Hooks record learning rates and losses of evaluations whatever the settings; of other runs nothing is known."""
    (hooked,) = replay(build_run(run_path, steps(80, plan())), [RuleSpec(rule)]).statuses
    assert (hooked.status, hooked.reason) == (Status.NOT_APPLICABLE, reason)
    (unknown,) = replay(build_run(tmp_path / "unknown", steps(80, None)), [RuleSpec(rule)]).statuses
    assert (unknown.status, unknown.reason) == (Status.STARVED, starved)


def test_an_evaluation_without_a_loss_starves_a_rule(run_path: Path) -> None:
    unlabelled = [Step(scalars={"temperature": 1.0}, mode=Mode.EVAL)]
    (found,) = replay(build_run(run_path, [*steps(10, plan()), *unlabelled]), [RuleSpec("Overtraining")]).statuses
    assert found.status is Status.STARVED
    assert found.reason.startswith("the scalar loss of EVAL never came")


def test_a_status_says_so_while_the_training_goes_on(run_path: Path) -> None:
    engine = Engine([RuleSpec("VanishingGradient"), RuleSpec("LossNotDecreasing")])
    (view,) = views_of(build_run(run_path, steps(1, plan(collections=["weights"]), captured=["fc.weight"])))
    feed(engine, view)
    vanishing, loss = engine.statuses()
    assert vanishing.status is Status.STARVED
    assert "add collection gradients" in vanishing.reason
    assert loss.status is Status.IN_PROGRESS


def test_of_several_workers_the_first_says_why(run_path: Path) -> None:
    engine = Engine([RuleSpec("VanishingGradient")])
    for worker, collection in (("worker_10", "outputs"), ("worker_9", "weights"), ("worker_11", "biases")):
        run = build_run(run_path.parent / worker, steps(1, plan(collections=[collection])))
        (view,) = views_of(run)
        feed(engine, replace(view, worker=worker))
    (status,) = engine.statuses()
    assert "the collections of this run are weights;" in status.reason


def test_data_that_comes_after_all_takes_it_back(run_path: Path) -> None:
    planned = plan(collections=["weights"])
    made = [*steps(2, planned, captured=["fc.weight"]), *steps(2, None, captured=["gradient/fc.weight"])]
    reasons = seen(GRADIENTS, views_of(build_run(run_path, made)))
    assert [bool(reason) for reason in reasons] == [True, True, False, False]


def test_a_plan_that_changes_is_believed(run_path: Path) -> None:
    later = [Step(facts={"capture_plan": plan()}, scalars={"loss": 1.0})]
    reasons = seen(GRADIENTS, views_of(build_run(run_path, [*steps(2, plan(collections=["weights"])), *later])))
    assert [bool(reason) for reason in reasons] == [True, True, False]


def test_without_a_plan_a_few_captures_show_it(run_path: Path) -> None:
    reasons = seen(GRADIENTS, views_of(build_run(run_path, steps(10, None, captured=["fc.weight"]))))
    assert reasons[:7] == [""] * 7
    assert reasons[7] == "statistics of gradients never came (needed to compare layers)"


def test_what_is_planned_and_does_not_come_is_reported_after_a_few_captures(run_path: Path) -> None:
    reasons = seen(GRADIENTS, views_of(build_run(run_path, steps(8, plan(), captured=["fc.weight"]))))
    assert [bool(reason) for reason in reasons] == [False] * 3 + [True] * 5
    assert "never came" in reasons[-1]


@pytest.mark.parametrize(
    "settings",
    [
        {"collections": ["weights", Collection("gradients", start_step=50)]},
        {"collections": ["weights", Collection("gradients", save_interval=64, start_step=1)]},
        {"collections": ["weights", Collection("gradients", end_step=0, save_steps=(90,))]},
        {"collections": ["weights", "all"]},
        {"collections": ["weights"], "save_all": True},
        {"collections": ["weights", Collection("mine", include_regex=("gradient",), start_step=90)]},
    ],
)
def test_what_is_planned_for_later_is_waited_for(run_path: Path, settings: dict[str, Any]) -> None:
    reasons = seen(GRADIENTS, views_of(build_run(run_path, steps(3, plan(**settings), captured=["fc.weight"]))))
    assert reasons == [""] * 3


def test_a_loss_comes_at_every_step_and_a_scalar_of_a_script_may_be_rare(run_path: Path) -> None:
    without = [Step(scalars={"reward": 1.0} if number == 60 else {"x": 1.0}) for number in range(62)]
    run = build_run(run_path, without)
    loss = seen(Needs(scalars=("loss",)), views_of(run))
    assert [bool(reason) for reason in loss[:9]] == [False] * 7 + [True] * 2
    assert set(seen(Needs(scalars=("reward",)), views_of(run))) == {""}
    rare = seen(Needs(scalars=("other", "loss")), views_of(run))
    assert set(rare) == {""}


def test_facts_and_units_are_waited_for(run_path: Path) -> None:
    run = build_run(run_path, steps(63, plan(), captured=["fc.weight"]))
    assert set(seen(Needs(rows=(INACTIVE_UNITS,)), views_of(run))) == {""}
    assert set(seen(Needs(facts=("first_bad_module",)), views_of(run))) == {""}


def test_a_fact_that_is_switched_off_is_reported_at_once(run_path: Path) -> None:
    run = build_run(run_path, steps(1, plan(facts=("calls",))))
    assert seen(Needs(facts=("batch",)), views_of(run)) == [
        "the fact batch is not recorded: the facts of this run are calls; add batch or leave facts to the rules"
    ]
    assert seen(Needs(facts=("calls", "batch")), views_of(run)) == [""]


def test_evaluations_come_any_time_but_not_where_none_is_captured(run_path: Path) -> None:
    scalars = Needs(scalars=("loss",), modes=(Mode.EVAL,))
    run = build_run(run_path, steps(100, plan()))
    assert set(seen(scalars, views_of(run))) == {""}
    outputs = Needs(role=Role.OUTPUT, modes=(Mode.EVAL,))
    assert seen(outputs, views_of(run))[0] == (
        "statistics of outputs of EVAL are not captured: the collections of this run in evaluation are none; add "
        "collection outputs with modes.eval or leave collections to the rules"
    )


def test_an_interval_that_is_too_long_is_reported(run_path: Path) -> None:
    needs = Needs(role=Role.GRADIENT, max_interval=4)
    planned = plan(collections=[Collection("gradients", save_interval=8)])
    assert seen(needs, views_of(build_run(run_path, steps(1, planned)))) == [
        "statistics of gradients are kept every 8 steps; at most 4 are useful"
    ]


def test_a_budget_that_cannot_pay_is_reported_as_soon_as_it_shows(run_path: Path) -> None:
    needs = Needs(role=Role.GRADIENT, max_interval=4)
    made = [
        *steps(3, plan(), captured=["gradient/fc.weight"]), *steps(8, None),
        *steps(5, None, captured=["gradient/fc.weight"]),
    ]  # fmt: skip
    reasons = seen(needs, views_of(build_run(run_path, made)))
    assert [bool(reason) for reason in reasons] == [False] * 7 + [True] * 5 + [False] * 4
    # The reason is reported once, not again at every step.
    assert set(reasons[7:11]) == {"statistics of gradients last came more than 4 steps ago; at most 4 are useful"}
    assert reasons[11] == "statistics of gradients came every 9 steps; at most 4 are useful"


def test_intervals_are_those_of_one_worker(run_path: Path) -> None:
    """Two workers that both capture every tenth step are not one that captures more often."""
    made = [
        Step(scalars={"loss": 1.0}, statistics={"gradient/w": np.ones(2)} if n % 10 == 0 else {}) for n in range(31)
    ]
    path = run_path.parent / "rule.py"
    path.write_text(
        "from watchglass import Needs, Role, Rule\n"
        "class Often(Rule):\n"
        '    """Needs gradients often."""\n'
        "    needs = (Needs(role=Role.GRADIENT, max_interval=4),)\n"
        "    def check(self, view):\n"
        "        return ()\n"
    )
    (status,) = replay(build_run(run_path, made, workers=2), [RuleSpec(f"{path}:Often")]).statuses
    assert (status.status, status.reason) == (
        Status.STARVED, "statistics of gradients came every 10 steps; at most 4 are useful"
    )  # fmt: skip


def test_steps_of_an_attempt_that_is_over_say_nothing_of_the_one_that_goes_on(run_path: Path) -> None:
    """They may come late; a replay sees them first."""
    often = [
        Step(scalars={"loss": 1.0}, statistics={"gradient/w": np.ones(2)} if n % 3 == 0 else {}) for n in range(12)
    ]
    rarely = [
        Step(scalars={"loss": 1.0}, statistics={"gradient/w": np.ones(2)} if n % 10 == 0 else {}) for n in range(30)
    ]
    before, after = build_run(run_path, rarely), build_run(run_path.parent / "after", often)
    old = list(views_of(before))
    new = [replace(view, attempt=1) for view in views_of(after)]
    needs = Needs(role=Role.GRADIENT, max_interval=4)
    assert seen(needs, [*old, *new])[-1] == ""
    assert seen(needs, [*old[:5], *new, *old[5:]])[-1] == ""
    # What came in any attempt has come.
    without = [replace(view, attempt=1) for view in views_of(build_run(run_path.parent / "none", steps(12, None)))]
    assert seen(GRADIENTS, [*without, *old])[-1] == seen(GRADIENTS, [*old, *without])[-1] == ""


def test_an_optional_need_never_starves(run_path: Path) -> None:
    run = build_run(run_path, steps(80, plan(collections=["weights"])))
    assert set(seen(Needs(role=Role.GRADIENT, optional=True), views_of(run))) == {""}


@pytest.mark.parametrize(
    "damaged",
    [
        {}, {"collections": 3, "facts": [], "keeps_tensors": True},
        {"collections": {}, "facts": 5, "keeps_tensors": True},
        {"collections": {"train": [{"interval": "x"}]}, "facts": [], "keeps_tensors": True},
        {"collections": {"train": [7]}, "facts": [], "keeps_tensors": True},
        {"collections": {"train": [{"name": "a", "interval": 0, "roles": 3}]}, "facts": [], "keeps_tensors": True},
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_says_nothing(run_path: Path, damaged: dict[str, Any]) -> None:
    run = build_run(run_path, steps(2, damaged, captured=["fc.weight"]))
    assert seen(GRADIENTS, views_of(run)) == ["", ""]


def test_a_collection_of_a_rule_is_known_by_its_name_and_its_tag(run_path: Path) -> None:
    run = build_run(run_path, steps(1, plan(collections=["weights"])))
    (reason,) = seen(Needs(collection="attention"), views_of(run))
    assert reason.startswith("statistics of attention are not captured")
    assert "add collection attention" in reason
    assert seen(Needs(collection="saved by hand"), views_of(run)) == [""]
    assert seen(Needs(collection="weights"), views_of(run)) == [""]


def test_workers_that_keep_no_tensors_say_so(run_path: Path) -> None:
    planned = {**plan(), "keeps_tensors": False}
    (reason,) = seen(GRADIENTS, views_of(build_run(run_path, steps(1, planned))))
    assert reason == "statistics of gradients are not captured: only one worker of this run keeps tensors"


@pytest.mark.parametrize("collections", [["weights"], ["losses"]])
@pytest.mark.parametrize("needs", [Needs(role=Role.WEIGHT), Needs(rows=(INACTIVE_UNITS,))])
@pytest.mark.parametrize(
    ("roots", "reason"),
    # The second one is of a script that trains single tensors.
    [(["gbtree"], "a model of type gbtree has no layers"), ([], "no model with layers was seen")],
)
def test_what_models_without_layers_do_not_have_is_no_matter_of_collections(
    run_path: Path, needs: Needs, collections: list[str], roots: list[str], reason: str
) -> None:
    facts = {"model": {"roots": roots, "module_kinds": {}}}
    views = views_of(build_run(run_path, steps(1, plan(collections=collections)), facts=facts))
    assert seen(needs, views) == [f"{needs.describe()} cannot be captured: {reason}"]


def test_what_trees_have_is_expected(run_path: Path) -> None:
    trees = {"model": {"roots": ["gbtree"], "module_kinds": {}}}
    views = list(views_of(build_run(run_path, steps(1, plan(collections=["losses"])), facts=trees)))
    assert seen(Needs(role=Role.CUSTOM), views) == [""]
    assert seen(Needs(role=Role.LOSS), views) == [""]


@pytest.mark.parametrize(
    ("kinds", "status", "reason"),
    [
        ({"0": "linear", "1": "saturating"}, Status.NOT_APPLICABLE, "the model has no rectifier module"),
        ({"0": "linear", "1": "rectifier"}, Status.STARVED, "inactive units of tensors never came"),
    ],
)
def test_a_rule_on_modules_that_the_model_lacks_does_not_apply(
    kinds: dict[str, str], status: Status, reason: str, run_path: Path
) -> None:
    """Although nothing was captured, as in a run of a few steps: the list of modules is known from the start."""
    model = {"model": {"module_kinds": kinds, "module_types": dict.fromkeys(kinds, "Some")}}
    first = Step(scalars={"loss": 1.0}, facts={"capture_plan": plan(), **model})
    need = NeedSeen(Needs(rows=(INACTIVE_UNITS,)))
    for view in views_of(build_run(run_path, [first, *steps(3, None)])):
        need.look(view)
    found = Tally().status("Rule", [need.met], ended=True, silent=lambda: "", unexamined=lambda: "")
    assert (found.status, found.reason.partition(" (")[0]) == (status, reason)
