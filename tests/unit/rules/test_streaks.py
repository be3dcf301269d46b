"""A fault that is reported after it has lasted a while began where it began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from synthetic_steps import ALWAYS, LAYERS, MODULES, constant_loss, sampled, training
from watchglass.config import RuleSpec, parameter
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import Rule
from watchglass.rules.rule import state
from watchglass.rules.streaks import Streaks, began
from watchglass.tables import StepView
from watchglass.testing import Step, build_run

FLAT = constant_loss(2.3)
LOST = {"dtype": "bfloat16", "unchanged": 0.95, "unmoved": 0.9}


def zero_gradients(step: int, arrays: dict[str, NDArray[Any]]) -> None:
    for name in LAYERS:
        arrays[f"gradient/{name}.weight"][:] = 0.0


def still_from(first: int) -> Callable[[int, dict[str, NDArray[Any]]], None]:
    def change(step: int, arrays: dict[str, NDArray[Any]]) -> None:
        for name in LAYERS:
            arrays[f"{name}.weight"][:] = np.arange(256).reshape(16, 16)
            arrays[f"{name}.weight"][0, 0] = step if name != "stem" and step < first else 0

    return change


@pytest.mark.parametrize(
    ("rule", "steps", "since"),
    [
        ("WeightUpdateRatio", training(300, ratio=lambda n, layer: 1e-9, loss=FLAT), 0),
        ("WeightUpdateRatio", training(300, ratio=lambda n, layer: 1e-9 if n >= 40 else 1e-3, loss=FLAT), 64),
        # Too large for each capture, too small for all of them together.
        ("WeightUpdateRatio", training(100, ratio=lambda n, layer: 1.5e-4, loss=FLAT, due=ALWAYS), 0),
        ("VanishingGradient", training(40, gradient=lambda n, layer: 1e-9 if n >= 5 else 1e-2, loss=FLAT), 5),
        ("VanishingGradient", training(40, gradient=lambda n, layer: 1e-2 if layer else 1e-7, loss=FLAT), 0),
        ("UnchangedTensor", training(40, change=still_from(20), due=ALWAYS), 0),
        ("UnchangedTensor", training(40, change=still_from(0), due=ALWAYS), 0),
        ("UpdateBelowPrecision", sampled(80, lambda n: LOST if n >= 16 else {}, loss=FLAT), 16),
        ("NoDataGradient", training(40, change=zero_gradients), 0),
        ("DeadRelu", training(60, dead=lambda n, layer: 0.9 if n >= 4 else 0.0, due=ALWAYS), 4),
        ("AllZero", training(40, weight=lambda n, layer: 0.0 if n >= 3 else 0.1), 3),
        ("ExplodingGradient", training(40, gradient=lambda n, layer: 1e4 if n >= 20 else 1e-2,
                                       loss=lambda n: 9.0 if n >= 20 else 2.0), 20),
    ],
)  # fmt: skip
def test_a_finding_begins_with_its_streak(run_path: Path, rule: str, steps: Sequence[Step], since: int) -> None:
    findings = replay(build_run(run_path, steps, modules=MODULES), [RuleSpec(rule)]).findings
    assert {each.since for each in findings} == {since}
    assert all(each.step > since for each in findings)


class Flat(Rule):
    """The loss is at most `low` for three steps."""

    low: float = parameter(1.0, help="a low loss")

    streaks: Streaks = state(Streaks)

    def check(self, view: StepView) -> list[Finding]:
        self.streaks.follow(view.mode_step, (view.scalar("loss") or 0.0) <= self.low)
        return []


def test_a_streak_lasts_while_its_condition_holds() -> None:
    rule, other = Flat(), Flat()
    rule.streaks.follow(3, True, "a")
    rule.streaks.follow(5, True, "a")
    rule.streaks.follow(5, True, "b")
    assert rule.streaks.follow(9, True, "a") == 3
    assert rule.streaks.since("a") == 3
    assert rule.streaks.since("a", "b") == 5
    assert rule.streaks.since("a", "c") is None
    assert rule.streaks.follow(10, False, "a") == 0
    assert (rule.streaks.times("a"), rule.streaks.since("a")) == (0, None)
    assert other.streaks.times("b") == 0


def test_a_column_of_conditions_begins_where_each_of_them_does() -> None:
    at = np.full(3, -1)
    for step, holds in ((4, [True, False, True]), (6, [True, True, False]), (7, [True, True, True])):
        at = began(at, step, np.array(holds))
    assert at.tolist() == [4, 6, 7]
