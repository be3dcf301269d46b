"""Models are counted once, whatever framework they are of."""

from __future__ import annotations

import gc

from watchglass.capture.model_numbers import FrameworkNumbers, ModelNumbers


class Model:
    pass


def test_models_of_all_frameworks_are_counted_together() -> None:
    numbers = ModelNumbers()
    one, other = FrameworkNumbers(numbers), FrameworkNumbers(numbers)
    assert [one.new(), other.new(), one.new()] == [0, 1, 2]


def test_facts_name_a_model_once_there_are_two() -> None:
    numbers = ModelNumbers()
    own = FrameworkNumbers(numbers)
    own.new()
    assert own.in_facts(0) is None
    FrameworkNumbers(numbers).new()
    assert own.in_facts(0) == 0


def test_a_first_model_that_is_not_known_yet_keeps_its_number() -> None:
    numbers = ModelNumbers()
    one, other = FrameworkNumbers(numbers), FrameworkNumbers(numbers)
    assert one.first == 0
    assert other.new() == 1
    assert [one.new(), one.new(), one.first] == [0, 2, 0]


def test_a_model_has_one_number_in_two_frameworks() -> None:
    numbers, model = ModelNumbers(), Model()
    one, other = FrameworkNumbers(numbers), FrameworkNumbers(numbers)
    one.new()
    assert one.new(model) == other.new(model) == other.first == 1


def test_parts_of_one_object_that_a_framework_trains_as_two_models_are_two() -> None:
    own, model = FrameworkNumbers(ModelNumbers()), Model()
    assert [own.new(model), own.new(model)] == [0, 1]


def test_no_model_is_kept_alive() -> None:
    numbers, model = ModelNumbers(), Model()
    own = FrameworkNumbers(numbers)
    own.new(model)
    key = id(model)
    del model
    gc.collect()
    assert key not in vars(numbers)["_known"]
