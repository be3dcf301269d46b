"""The observed cost of captures: from step ends alone."""

from __future__ import annotations

import numpy as np
import pytest

from watchglass.record import OpenStep, SteadyRow
from watchglass.record.recording_cost import ObservedCost
from watchglass.records import Mode


def steps(extra_ns: float, *, count: int = 400, every: int = 8, noise_ns: float = 20_000) -> list[OpenStep | SteadyRow]:
    random = np.random.default_rng(3)
    made: list[OpenStep | SteadyRow] = []
    now = 1_000_000
    for number in range(count):
        due = number % every == 0
        now += int(1_000_000 + noise_ns * random.exponential() + (extra_ns if due else 0))
        if due:
            made.append(OpenStep(number, Mode.TRAIN, number, number, now - 900_000, due=True, end_ns=now))
        else:
            made.append(SteadyRow(number, number, now - 900_000, now, 1.0, 0.1, 1.0))
    return made


def observed(made: list[OpenStep | SteadyRow]) -> float | None:
    cost = ObservedCost()
    for at in range(0, len(made), 37):
        cost.add(made[at : at + 37])
    return cost.extra_ns()


def test_what_captured_steps_take_longer_is_found_in_noise() -> None:
    assert observed(steps(100_000)) == pytest.approx(100_000, rel=0.2)


def test_nothing_is_said_while_the_sign_is_uncertain() -> None:
    assert observed(steps(0)) is None
    assert observed(steps(100_000, count=60)) is None


def test_steps_that_are_all_captured_have_no_neighbours() -> None:
    assert observed(steps(100_000, every=1)) is None


def test_an_evaluation_between_steps_is_no_cost_of_the_capture() -> None:
    made = steps(0)
    late: list[OpenStep | SteadyRow] = []
    shift = 0
    for step in made:
        if isinstance(step, OpenStep):
            late.append(OpenStep(0, Mode.EVAL, 0, 0, step.start_ns + shift, end_ns=step.start_ns + shift + 1))
            shift += 5_000_000
            step.end_ns += shift
            late.append(step)
        else:
            late.append(step._replace(end_ns=step.end_ns + shift))
    assert observed(late) is None
