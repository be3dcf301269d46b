"""The needs of rules become capture settings: their union, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from watchglass.config import (
    DEFAULT_COLLECTIONS,
    FACTS,
    Collection,
    RuleSpec,
    SessionConfig,
    combine,
)
from watchglass.records import INACTIVE_UNITS, Mode, ModuleKind, Role
from watchglass.rules import (
    Needs,
    capture_for,
    capture_of,
    default_rules,
    documentation,
    expand,
    find_rule,
    parse_rules,
    rule_names,
)


def kept(*needs: Needs, **settings: Any) -> dict[str, dict[str, Any]]:
    """What is kept beside what is recorded at every step."""
    collections = capture_of(needs, **settings)["collections"]
    return {c.name: {k: v for k, v in c.to_json().items() if k != "name"} for c in collections if c.name != "losses"}


def test_the_default_rules_change_nothing() -> None:
    assert capture_for(default_rules()) == {}
    assert capture_for(expand(parse_rules(["default"]))) == {}


def test_what_the_default_rules_need_is_kept_by_default() -> None:
    needs = [need for spec in default_rules() for need in _needs(spec)]
    # SaturatedActivation reads inputs of functions where they are captured; else it judges by the layers before them.
    only_if_captured = {"tanh_input", "sigmoid_input"}
    assert set(kept(*needs)) - only_if_captured == {collection.name for collection in DEFAULT_COLLECTIONS}
    assert all(need.optional for need in needs if need.collection in only_if_captured)
    facts = {kind for need in needs for kind in need.facts} & FACTS.keys()
    shown = {name for name, kind in FACTS.items() if kind.NEEDED_BY == "report"}
    assert facts - shown == {name for name, kind in FACTS.items() if kind.NEEDED_BY == "rules"}


def test_a_fact_that_neither_a_rule_nor_the_report_needs_is_not_recorded() -> None:
    shown = {name for name, kind in FACTS.items() if kind.NEEDED_BY == "report"}
    everything = {name for name, kind in FACTS.items() if kind.NEEDED_BY}
    assert set(capture_for([RuleSpec("Overfit")])["facts"]) == shown
    assert set(capture_for([RuleSpec("UnchangedTensor")])["facts"]) == shown | {"step_skipped"}
    assert set(capture_of([Needs(facts=("calls",))])["facts"]) == shown | {"calls"}
    assert "facts" not in capture_of([Needs(facts=tuple(everything - shown))]), "those of the default rules"
    assert "facts" not in capture_of([Needs(facts=("calls",))], default=True)


def test_every_rule_states_what_it_costs() -> None:
    assert all("Costs" in documentation(find_rule(name)).sections for name in rule_names())


def _needs(spec: RuleSpec) -> tuple[Needs, ...]:
    from watchglass.rules import build_rule

    return build_rule(spec).needs


def test_a_rule_gets_what_it_needs_and_nothing_else() -> None:
    asked = capture_for([RuleSpec("ExplodingGradient")])
    assert [collection.name for collection in asked["collections"]] == ["losses", "gradients"]
    names = {collection.name for collection in capture_for([RuleSpec("WeightUpdateRatio")])["collections"]}
    assert names == {"losses", "updates", "weights"}


def test_rules_beside_the_default_ones_add_to_what_is_kept_by_default() -> None:
    needs = (Needs(role=Role.INPUT),)
    assert set(kept(*needs, base=DEFAULT_COLLECTIONS)) == {c.name for c in DEFAULT_COLLECTIONS} | {"inputs"}


def test_the_union_of_roles_units_and_collections() -> None:
    needs = [
        Needs(role=Role.INPUT), Needs(role=Role.OPTIMIZER_STATE, optional=True), Needs(rows=(INACTIVE_UNITS,)),
        Needs(collection="attention"), Needs(role=Role.INPUT, statistics=("m2",)),
        Needs(scalars=("loss",)), Needs(role=Role.LOSS), Needs(role=Role.CUSTOM), Needs(collection="of a script"),
    ]  # fmt: skip
    assert kept(*needs) == {"inputs": {}, "optimizer_variables": {}, "relu_output": {}, "attention": {}}


def test_a_part_has_a_name_of_its_own_and_the_whole_makes_it_needless() -> None:
    linear = Needs(role=Role.OUTPUT, module_kinds=(ModuleKind.LINEAR,))
    (part,) = capture_of([linear])["collections"][1:]
    assert part.name == "rules.outputs.linear"
    assert part.selects("fc.output", Role.OUTPUT, "fc", "Dense", (), ModuleKind.LINEAR)
    assert not part.selects("relu.output", Role.OUTPUT, "relu", "Relu", (), ModuleKind.RECTIFIER)
    assert not part.selects("fc.input.0", Role.INPUT, "fc", "Dense", (), ModuleKind.LINEAR)
    assert kept(linear, Needs(role=Role.OUTPUT)) == {"outputs": {}}
    assert set(kept(linear, base=DEFAULT_COLLECTIONS)) == {c.name for c in DEFAULT_COLLECTIONS}


def test_names_that_look_alike_stay_apart() -> None:
    two = kept(Needs(role=Role.WEIGHT, name_regex="a+"), Needs(role=Role.WEIGHT, name_regex="a*"))
    assert sorted(settings["include_regex"] for settings in two.values()) == [("a*",), ("a+",)]


def test_a_need_of_any_tensor_keeps_what_is_kept_by_default() -> None:
    assert set(kept(Needs(statistics=("nan",)))) == {collection.name for collection in DEFAULT_COLLECTIONS}


@pytest.mark.parametrize(
    ("needs", "train", "evaluation"),
    [
        ((Needs(role=Role.OUTPUT, modes=(Mode.EVAL,)),), None, 32),
        ((Needs(role=Role.OUTPUT, modes=(Mode.EVAL,), max_interval=8),), None, 8),
        ((Needs(role=Role.OUTPUT, modes=(Mode.TRAIN, Mode.EVAL)),), "budget", 32),
        ((Needs(role=Role.OUTPUT, max_interval=8),), "budget", None),
        ((Needs(role=Role.OUTPUT), Needs(role=Role.OUTPUT, modes=(Mode.EVAL,), max_interval=4)), "budget", 4),
    ],
)
def test_modes_and_how_often(needs: tuple[Needs, ...], train: str | None, evaluation: int | None) -> None:
    config = SessionConfig(run="r", **capture_of(needs))
    (outputs,) = [collection for collection in config.collections if collection.name == "outputs"]
    in_training, in_evaluation = config.schedule(outputs, "train"), config.schedule(outputs, "eval")
    assert (in_training is not None) == (train == "budget")
    assert in_training is None or in_training.interval is None
    assert (in_evaluation.interval if in_evaluation is not None else None) == evaluation


def test_an_interval_that_a_user_gives_for_the_whole_run_holds() -> None:
    need = Needs(role=Role.OUTPUT, modes=(Mode.EVAL,), max_interval=8)
    config = SessionConfig(run="r", save_interval=3, **capture_of([need], intervals=False))
    (outputs,) = [collection for collection in config.collections if collection.name == "outputs"]
    schedule = config.schedule(outputs, "eval")
    assert schedule is not None
    assert schedule.interval == 3


def test_steps_are_captured_ones_also_where_only_facts_are_needed() -> None:
    config = SessionConfig(run="r", **capture_of([Needs(facts=("batch",))]))
    assert any(config.schedule(collection, "train") is not None for collection in config.collections)


def test_what_is_said_explicitly_wins() -> None:
    asked = capture_for([RuleSpec("ExplodingGradient")])

    def names(*layers: dict[str, Any]) -> set[str]:
        return {collection.name for collection in combine(asked, *layers)["collections"]} - {"losses"}

    assert names({"collections": ["weights"]}) == {"weights"}
    assert names({"collections": {"inputs": True}}) == {"gradients", "inputs"}
    assert names({"collections": {"gradients": False}}) == set()
    changed = combine(asked, {"collections": {"gradients": {"save_interval": 7}}})["collections"]
    assert Collection("gradients", save_interval=7) in changed


def test_who_leaves_out_the_whole_leaves_out_what_rules_asked_for_of_it() -> None:
    asked = capture_of([Needs(role=Role.OUTPUT, module_kinds=(ModuleKind.LINEAR,)), Needs(role=Role.WEIGHT)])
    left = combine(asked, {"collections": {"outputs": False}})["collections"]
    assert {collection.name for collection in left} == {"losses", "weights"}
    more = combine(asked, {"collections": {"outputs": True}})["collections"]
    assert Collection("outputs") in more
