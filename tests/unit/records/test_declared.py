"""Declared records behave as frozen dataclasses, and no code is compiled for their classes."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from watchglass.records import declared_kinds, facts

CLIP = facts.Clip("clip_grad_norm_", max_norm=1.0)


def test_values_are_given_by_place_or_by_name_and_the_others_are_defaults() -> None:
    assert facts.Clip(function="clip_grad_norm_", max_norm=1.0) == CLIP != facts.Clip("clip_grad_norm_")
    assert dataclasses.asdict(facts.LossScale(2.0)) == {"scale": 2.0, "before": None}
    assert dataclasses.replace(CLIP, calls=3) == facts.Clip("clip_grad_norm_", max_norm=1.0, calls=3)
    assert facts.Calls().objects is not facts.Calls().objects, "a default that can change is made for each record"
    assert facts.LossScale() != CLIP


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {"norm": 2.0}, "LossScale has the fields scale, before but got norm=2.0"),
        ((1, 2, 3), {}, "but got 1, 2, 3"),
        ((1,), {"scale": 2}, "but got 1, scale=2"),
    ],
)
def test_other_values_are_refused(values: tuple[int, ...], named: dict[str, float], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        facts.LossScale(*values, **named)  # type: ignore[arg-type]


def test_a_field_without_default_is_required() -> None:
    with pytest.raises(TypeError, match="the field captures_per_doubling is required"):
        facts.CaptureInterval(3)  # type: ignore[call-arg]


def test_they_are_frozen_and_can_be_keys_and_be_copied() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CLIP.calls = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del CLIP.calls
    assert {CLIP: 1}[facts.Clip("clip_grad_norm_", max_norm=1.0)] == 1
    assert copy.deepcopy(CLIP) == CLIP
    assert repr(facts.LossScale(2.0)) == "LossScale(scale=2.0, before=None)"


def test_no_kind_has_compiled_methods() -> None:
    assert [name for name, kind in declared_kinds().items() if vars(kind).keys() & {"__init__", "__eq__"}] == []
