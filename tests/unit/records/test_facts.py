"""Declared facts: what is stored of them, and how the data of older and damaged runs read."""

from __future__ import annotations

from typing import Any

import pytest

from watchglass.records import Fact, facts

HELD = facts.HeldParameters("SGD", 3, facts.NamedParameters(1, ("fc.bias",)), foreign_shapes=((3, 4),))
MEMBERSHIP = facts.Membership("optimizer", {"optimizer": HELD}, 7, left_out=facts.NamedParameters(2, ("a", "b")))


def test_a_fact_comes_back_from_its_data() -> None:
    assert facts.Membership.from_data(MEMBERSHIP.to_data()) == MEMBERSHIP
    assert MEMBERSHIP.to_fact("update", 3).read(facts.Membership) == MEMBERSHIP


def test_what_is_stored_is_plain_and_has_no_field_without_a_value() -> None:
    data = MEMBERSHIP.to_data()
    assert data["optimizers"]["optimizer"] == {
        "type": "SGD", "parameters": 3, "frozen": {"count": 1, "names": ["fc.bias"]}, "foreign": 0,
        "foreign_with_gradient": 0, "foreign_shapes": [[3, 4]],
    }  # fmt: skip
    assert data["left_out"] == {"count": 2, "names": ["a", "b"]}
    assert data["drawn"] == []
    assert "left_out_beside" not in data


def test_fields_that_a_run_lacks_read_as_their_defaults_and_unknown_keys_are_ignored() -> None:
    assert facts.Clip.from_data({"max_norm": 1, "newer": [3]}) == facts.Clip(max_norm=1)
    assert facts.Membership.from_data({"optimizers": {"o": {}}}) == facts.Membership(
        optimizers={"o": facts.HeldParameters()}
    )


@pytest.mark.parametrize(
    "data",
    [
        {"calls": "3", "compared": 1.5, "exceeded": True},
        {"function": 3, "caller": None, "max_norm": "1.0", "norm_type": [2]},
        {"calls": {}, "function": []},
    ],
)
def test_values_of_another_type_read_as_defaults(data: dict[str, Any]) -> None:
    assert facts.Clip.from_data(data) == facts.Clip()


def test_damaged_parts_read_as_defaults() -> None:
    read = facts.Membership.from_data(
        {"stepped": "o", "optimizers": {"o": {"parameters": "many", "frozen": 3, "foreign_shapes": [[1, "x"]]}}}
    )
    assert read is not None
    assert read.of_stepped == facts.HeldParameters()
    assert facts.Membership.from_data({"optimizers": ["o"], "left_out": "all"}) == facts.Membership()
    assert facts.TrainingFlags.from_data({"different": [["a", "b"]], "sensitive": {"Dropout": [1, "x"]}}) == (
        facts.TrainingFlags()
    )


def test_a_fact_of_another_kind_or_without_a_required_field_reads_as_none() -> None:
    assert Fact("clip", 0, "test", {}).read(facts.LossScale) is None
    assert Fact("updates_bypassed", -1, "test", {"since": 3}).read(facts.BypassedUpdates) is None


def test_rules_share_what_was_read() -> None:
    fact = Fact("clip", 0, "test", {"calls": 3})
    assert fact.read(facts.Clip) is fact.read(facts.Clip)
    assert fact == Fact("clip", 0, "test", {"calls": 3})


@pytest.mark.parametrize(
    ("predictions", "target", "result", "classes"),
    [
        ((8, 32, 82), (8, 32), (), 82),  # optax, tf.nn, Keras
        ((8, 32, 82), (8, 32, 82), (8, 32), 82),  # the same with one-hot targets
        ((8, 82, 32), (8, 32), (), 82),  # PyTorch
        ((8, 10), (8,), (), 10),
        ((10,), (), (), 10),
    ],
)
def test_classes_of_a_loss_lie_along_the_axis_that_its_targets_or_its_result_lack(
    predictions: tuple[int, ...], target: tuple[int, ...], result: tuple[int, ...], classes: int
) -> None:
    arguments = {"input": facts.LossArgument(predictions), "target": facts.LossArgument(target)}
    assert facts.ComputedLoss("cross_entropy", arguments, result=result).classes == classes
