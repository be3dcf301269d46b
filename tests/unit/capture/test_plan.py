"""The plan answers, for a step and a tensor, what to keep."""

from __future__ import annotations

from typing import Any

import pytest

from watchglass.capture.module_places import Place
from watchglass.capture.planning.plan import NEVER, Keep, Plan
from watchglass.config import Collection, SessionConfig
from watchglass.records import Mode, Reduction, Role


def plan(*collections: Any, rank: int = 0, facts: tuple[str, ...] | None = (), **settings: Any) -> Plan:
    if collections:
        settings["collections"] = collections
    return Plan(SessionConfig("run", facts=facts, **settings), lambda: rank)


def due_steps(watched: Plan, until: int = 40, mode: Mode = Mode.TRAIN) -> list[int]:
    return [step for step in range(until) if watched.due(mode, step)]


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"save_interval": 10}, [0, 10, 20, 30]),
        ({"save_interval": 10, "start_step": 5}, [10, 20, 30]),
        ({"save_interval": 10, "end_step": 20}, [0, 10]),
        ({"save_interval": 10, "start_step": 5, "end_step": 30, "save_steps": (3, 20, 33)}, [3, 10, 20, 33]),
        ({"end_step": 0}, []),
        ({"end_step": 0, "save_steps": (7, 2)}, [2, 7]),
        ({"save_interval": 10, "modes": {"train": {"save_interval": 15, "end_step": 30}}}, [0, 15]),
        ({"save_interval": 10, "modes": {"train": {"save_steps": [4]}}}, [0, 4, 10, 20, 30]),
        ({"modes": {"eval": {"save_interval": 1}}, "end_step": 0}, []),
    ],
)
def test_settings_of_the_training_and_of_a_collection_mean_the_same(settings: dict[str, Any], steps: list[int]) -> None:
    for watched in (plan(Collection("weights", **settings)), plan("weights", **settings)):
        assert due_steps(watched) == steps
        for step in range(40):
            following = next((due for due in steps if due >= step), None)
            assert following is None or watched.next_due(step) == following
        assert not steps or watched.next_due(steps[-1]) == steps[-1]


def test_a_collection_comes_before_the_training_and_a_mode_before_both() -> None:
    watched = plan(
        Collection("weights", save_interval=4, modes={"train": {"end_step": 9}}),
        Collection("gradients", start_step=30),
        save_interval=10,
        modes={"train": {"start_step": 3}},
    )
    assert due_steps(watched) == [4, 8, 30]
    watched.due(Mode.TRAIN, 8)
    assert watched.keep("w", Role.WEIGHT) is not None
    assert watched.keep("gradient/w", Role.GRADIENT) is None
    watched.due(Mode.TRAIN, 30)
    assert watched.keep("w", Role.WEIGHT) is None
    assert watched.keep("gradient/w", Role.GRADIENT) is not None


def test_only_named_modes_are_captured_besides_training() -> None:
    watched = plan(save_interval=10)
    assert not due_steps(watched, mode=Mode.EVAL)
    assert not due_steps(watched, mode=Mode.PREDICT)
    for watched in (
        plan(Collection("outputs", save_interval=10, modes={"eval": {}})),
        plan("outputs", save_interval=10, modes={"eval": {}}),
        plan(Collection("outputs", modes={"eval": {}}), save_interval=10),
    ):
        assert due_steps(watched, mode=Mode.EVAL) == [0, 10, 20, 30]
        assert not due_steps(watched, mode=Mode.PREDICT)


def test_the_budget_chooses_training_steps_only() -> None:
    watched = plan("outputs", modes={"eval": {"start_step": 38}, "predict": {"save_steps": [7]}})
    assert due_steps(watched, mode=Mode.EVAL) == [38, 39]
    assert due_steps(watched, mode=Mode.PREDICT) == [7]


def test_the_next_due_step_follows_the_budget() -> None:
    watched = plan("weights")
    watched.budget.interval = 32
    assert [watched.next_due(step) for step in (0, 5, 31)] == [0, 5, 31]
    assert [watched.next_due(step) for step in (31, 33, 65, 257)] == [31, 36, 72, 288]
    watched.budget.interval = 64
    assert [watched.next_due(step) for step in (257, 513)] == [288, 576]
    every = [step for step in range(200) if watched.due(Mode.TRAIN, step)]
    assert every == sorted({watched.next_due(step) for step in range(193)})


def test_what_is_never_due_says_so() -> None:
    assert plan(Collection("weights", end_step=5)).next_due(5) == NEVER
    assert Plan(SessionConfig("run", collections=())).next_due(0) == NEVER
    assert not Plan(SessionConfig("run", collections=())).due(Mode.TRAIN, 0)


def test_evaluations_are_sketched_by_default_and_ever_more_rarely() -> None:
    watched = plan(facts=None)
    assert due_steps(watched, mode=Mode.EVAL) == [*range(16), *range(16, 32, 2), 32, 36]
    assert not due_steps(watched, mode=Mode.PREDICT)
    assert watched.has_facts_alone(Mode.EVAL)
    assert not plan("outputs", facts=None, modes={"eval": {"save_interval": 1}}).has_facts_alone(Mode.EVAL)


def test_an_evaluation_inside_a_training_step_changes_nothing_for_it() -> None:
    watched = plan(Collection("outputs", modes={"eval": {"save_steps": [5]}}), "weights")
    assert watched.due(Mode.TRAIN, 0)
    watched.due(Mode.EVAL, 4)
    watched.due(Mode.PREDICT, 4)
    assert watched.wants(Role.WEIGHT)
    assert watched.due(Mode.EVAL, 5)
    assert not watched.wants(Role.WEIGHT)
    assert watched.keep("w", Role.WEIGHT) is None
    watched.resume()
    assert watched.keep("w", Role.WEIGHT) is not None


def test_one_worker_keeps_tensors_where_one_is_asked_for() -> None:
    assert due_steps(plan("weights", save_interval=10, include_workers="one"))
    other = plan(Collection("weights", modes={"eval": {}}), save_interval=10, include_workers="one", rank=1)
    assert other.next_due(0) == NEVER
    assert not due_steps(other)
    assert not due_steps(other, mode=Mode.EVAL)
    assert due_steps(plan("weights", save_interval=10, rank=1))


def test_the_rank_is_asked_until_training_begins_and_not_after_it() -> None:
    ranks = [1, 0, 0]  # an evaluation comes before the process group
    watched = Plan(
        SessionConfig("run", collections=[Collection("outputs", modes={"eval": {}})], include_workers="one", facts=()),
        lambda: ranks.pop(0),
    )
    assert not watched.due(Mode.EVAL, 0)
    assert watched.due(Mode.EVAL, 1)
    assert watched.due(Mode.TRAIN, 0)
    assert not ranks
    assert watched.due(Mode.TRAIN, 1)


# -- tensors ----------------------------------------------------------------------------------------------------------


def opened(*collections: Any, **settings: Any) -> Plan:
    watched = plan(*collections, **settings)
    watched.due(Mode.TRAIN, 0)
    return watched


def test_by_default_statistics_with_histograms_are_kept() -> None:
    watched = opened()
    for name, role in (("w", Role.WEIGHT), ("b", Role.BIAS), ("g", Role.GRADIENT), ("u", Role.UPDATE)):
        assert watched.keep(name, role) == Keep(histogram=True)
    assert watched.keep("fc.output", Role.OUTPUT) == Keep(histogram=True)
    assert watched.keep("fc.input.0", Role.INPUT) is None
    assert watched.keep("fc2.input.0", Role.INPUT, tags=("relu_output",)) is not None
    assert watched.keep("optimizer/exp_avg/w", Role.OPTIMIZER_STATE) is None
    assert watched.wants(Role.OUTPUT)
    assert not watched.wants(Role.OPTIMIZER_STATE)
    assert watched.wants_tag("relu_output")
    assert not watched.wants_tag("attention")


def test_what_collections_keep_adds_up_over_those_that_are_due() -> None:
    watched = plan(
        Collection("weights", save_interval=1, save_histogram=False),
        Collection("first", include_regex=("^conv1",), save_interval=2, save_raw=True, reductions=("median", "l1")),
        Collection("last", tensors=("fc.weight",), save_interval=2, save_shape=True, reductions=("abs_prod", "min")),
    )
    watched.due(Mode.TRAIN, 0)
    assert watched.keep("conv1.weight", Role.WEIGHT) == Keep(True, True, False, (Reduction.MEDIAN,))
    assert watched.keep("conv1.output", Role.OUTPUT) == Keep(True, True, False, (Reduction.MEDIAN,))
    assert watched.keep("fc.weight", Role.WEIGHT) == Keep(True, False, True, (Reduction.PROD,))
    assert watched.keep("mid.weight", Role.WEIGHT) == Keep(False)
    watched.due(Mode.TRAIN, 1)
    assert watched.keep("conv1.weight", Role.WEIGHT) == Keep(False)
    assert watched.keep("conv1.output", Role.OUTPUT) is None


def test_the_training_says_what_collections_leave_open() -> None:
    general = {"save_raw": True, "save_histogram": False, "save_shape": True, "reductions": ("prod",)}
    watched = opened("weights", Collection("biases", save_raw=False, save_histogram=True, reductions=()), **general)
    assert watched.keep("w", Role.WEIGHT) == Keep(False, True, True, (Reduction.PROD,))
    assert watched.keep("b", Role.BIAS) == Keep(True, False, True, ())


def test_everything_and_further_names_can_be_kept_hook_wide() -> None:
    watched = opened("weights", save_all=True)
    assert all(watched.keep(role.value, role) for role in Role)
    watched = opened("weights", include_regex=("^fc1", "exp_avg"))
    assert watched.keep("fc1.output", Role.OUTPUT)
    assert watched.keep("optimizer/exp_avg/x", Role.OPTIMIZER_STATE)
    assert not watched.keep("fc2.output", Role.OUTPUT)


def test_what_needs_computing_is_wanted_only_where_it_is_asked_for() -> None:
    assert not opened("all").wants_tag("attention")
    assert not opened(Collection("mine", include_regex=(".",))).wants_tag("input_gradients")
    # An input that carries a tag is looked for by the tag; other inputs are not looked at for its sake.
    tagged = opened("relu_input", "relu_output")
    assert tagged.wants_tag("relu_input")
    assert not tagged.wants(Role.INPUT)
    assert tagged.wants(Role.OUTPUT)
    asked = opened("attention", "logsumexp")
    assert asked.wants_tag("attention")
    assert not asked.wants(Role.OUTPUT)
    assert asked.keep("attn.entropy", Role.CUSTOM, tags=("attention",)) is not None


def test_the_catalog_gets_the_users_collections_and_what_structure_says() -> None:
    watched = opened("weights", Collection("biases", include_regex=("fc",)), Collection("mine", modules=("fc",)))
    assert watched.collections_of("fc.weight", Role.WEIGHT, Place("fc", "Linear", 0)) == ("mine",)
    assert watched.collections_of("fc.bias", Role.BIAS, Place("fc", "Linear", 0)) == ("biases", "mine")
    assert watched.collections_of("x", Role.OUTPUT, Place("r", "ReLU", 0), ("relu_output",)) == ("relu_output",)
    assert watched.collections_of("x", Role.CUSTOM, tags=("mine",)) == ("mine",)


def test_what_a_script_saves_is_kept_unless_a_collection_says_when() -> None:
    watched = plan("weights", "all", Collection("mine", tensors=("x",), save_interval=5, save_raw=True), end_step=1)
    watched.due(Mode.TRAIN, 3)
    assert watched.keep_saved("free") == Keep(histogram=True)
    assert watched.keep_saved("x") is None
    assert watched.keep_saved("y", ("mine",)) is None
    watched = plan(Collection("mine", tensors=("x",), save_interval=5, save_raw=True), save_shape=True)
    watched.due(Mode.TRAIN, 5)
    assert watched.keep_saved("free") == Keep(histogram=True, shape=True)
    assert watched.keep_saved("x") == watched.keep_saved("y", ("mine",)) == Keep(histogram=True, raw=True, shape=True)
    assert opened("weights", include_workers="one", rank=1).keep_saved("free") is None


# -- what nothing matched ---------------------------------------------------------------------------------------------


def test_collections_that_match_nothing_are_reported_once_with_near_names() -> None:
    watched = opened(
        "weights", "losses", "tanh_input",
        Collection("typo", include_regex=("^con1.weight",)),
        Collection("place", modules=("encodr",)),
        Collection("kind", module_types=("Relu",)),
        Collection("found", tensors=("conv1.weight",)),
        Collection("later", include_regex=("nothing",), start_step=5),
    )  # fmt: skip
    watched.keep("conv1.weight", Role.WEIGHT, Place("encoder", "Conv2d", 0))
    watched.keep("act.output", Role.OUTPUT, Place("act", "ReLU", 1))
    assert [(collection.name, near) for collection, near in watched.unmatched()] == [
        ("tanh_input", ()), ("typo", ("conv1.weight",)), ("place", ("encoder",)), ("kind", ("ReLU",)),
    ]  # fmt: skip
    assert watched.unmatched() == []
    watched.due(Mode.TRAIN, 5)
    assert [collection.name for collection, _ in watched.unmatched()] == ["later"]


def test_defaults_that_match_nothing_are_not_reported() -> None:
    watched = opened()
    assert watched.unmatched() == []
