"""Records of how a run ended come back from JSON and facts, and what makes no sense is none."""

from __future__ import annotations

import json

import pytest

from watchglass.records import Fact, Failure, facts


def test_a_failure_comes_back_from_json():
    failure = Failure("exception", "ValueError", "bad batch", "train.py", 12, "x = y", 1, "worker_0", 5)
    assert Failure.from_json(json.loads(json.dumps(failure.to_json()))) == failure


@pytest.mark.parametrize("data", [None, [], "ValueError", {}, {"kind": 3}])
def test_what_is_no_failure_gives_none(data):
    assert Failure.from_json(data) is None


def test_values_of_a_wrong_type_are_left_out():
    read = Failure.from_json({"kind": "exit", "exit_status": True, "line": "7", "message": ["a"], "newer": 1})
    assert read == Failure("exit")


def test_unstepped_backwards_come_back_from_their_fact():
    recorded = facts.UnsteppedBackwards(360, "no optimizer stepped", changes=3, steps=2, optimizer="SGD")
    assert recorded.to_fact("backward").read(facts.UnsteppedBackwards) == recorded


@pytest.mark.parametrize("data", [{}, {"backwards": 0}, {"backwards": "many"}, {"backwards": True}])
def test_a_fact_that_makes_no_sense_gives_none(data):
    assert Fact("unstepped_backwards", -1, "", data).read(facts.UnsteppedBackwards) is None
