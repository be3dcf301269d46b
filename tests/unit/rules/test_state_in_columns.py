"""Rules that remember columns: their state is JSON, and where a row lies in memory is no change of a weight."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.config import RuleSpec
from watchglass.records import UNITS, Finding, Mode, ModuleKind, Role, StepEnd, TensorInfo, UnitKind
from watchglass.rules import Rule, build_rule
from watchglass.rules.rule import state
from watchglass.stats import of_array
from watchglass.tables import Catalog, History, StatisticsRows, StepRecords, StepView

WEIGHTS, WIDTH = 40, 8
CATALOG = Catalog(
    [
        *(TensorInfo(n, f"layers.{n}.weight", Role.WEIGHT, shape=(4, 4), trainable=True) for n in range(WEIGHTS)),
        TensorInfo(WEIGHTS, "act.output", Role.OUTPUT, module="act", module_kind=ModuleKind.RECTIFIER),
        TensorInfo(WEIGHTS + 1, "gradient/layers.0.weight", Role.GRADIENT, shape=(4, 4)),
    ]
)
ROWS = np.stack([of_array(np.random.default_rng(n).normal(size=(4, 4))) for n in range(WEIGHTS + 2)])


class Remembers(Rule):
    """Keeps an array, one inside a dict, and a number of NumPy."""

    column: Any = state(lambda: np.arange(3))
    nested: dict[str, Any] = state(lambda: {"a": np.array([True, False])})
    number: Any = state(lambda: np.float64(0.1))

    def check(self, view: StepView) -> list[Finding]:
        return []


def view_of(
    history: History, step: int, ids: NDArray[np.uint32], rows: NDArray[np.float64], *, zero: Any = None
) -> StepView:
    end = StepEnd(step, Mode.TRAIN, step, step, 0, 1, len(ids))
    units = [] if zero is None else [UNITS.shown(CATALOG[WEIGHTS], UnitKind.INACTIVE, zero)]  # type: ignore[call-arg]
    statistics = StatisticsRows(ids, rows, np.ones(len(ids), np.uint32), np.zeros(len(ids), np.bool_))
    return StepView.after(history, StepRecords(end, CATALOG, {UNITS: units} if units else {}, statistics))


def test_arrays_are_saved_as_plain_json_that_no_longer_changes() -> None:
    rule = Remembers()
    saved = rule.save_state()
    rule.column[0] = 7
    assert json.loads(json.dumps(saved)) == saved
    assert saved == {"column": [0, 1, 2], "nested": {"a": [True, False]}, "number": 0.1}


def test_state_of_another_kind_is_refused_in_words() -> None:
    rule = Remembers()
    rule.column = {1, 2}
    with pytest.raises(TypeError, match="plain JSON types and NumPy arrays"):
        rule.save_state()


def test_a_weight_that_rests_is_the_same_wherever_its_row_lies() -> None:
    """Captured alone, among others, and column by column: all that is no movement."""
    rule, history = build_rule(RuleSpec("UnchangedTensor", {"num_steps": 20})), History()
    random = np.random.default_rng(0)
    for step in range(16):
        ids = np.sort(random.choice(WEIGHTS + 2, random.integers(20, WEIGHTS + 2), replace=False)).astype(np.uint32)
        if step % 4 == 0:
            ids = np.arange(WEIGHTS, dtype=np.uint32)
        rows = np.asarray(ROWS[ids], order="F" if step % 2 else "C")
        assert list(rule.check(view_of(history, step, ids, rows))) == []
    still = rule.save_state()["still"]
    assert len(still) == WEIGHTS
    assert min(still) > 0


def _steps(count: int = 30) -> list[StepView]:
    """Weights captured in turn, half of which move, and units that die one after another."""
    random, history, views = np.random.default_rng(1), History(), []
    for step in range(count):
        ids = np.flatnonzero(random.random(WEIGHTS) < 0.7).astype(np.uint32)
        rows = ROWS[ids] * np.where(ids % 2, 1.0 + step, 1.0)[:, None]
        views.append(view_of(history, step, ids, rows, zero=np.arange(WIDTH) < step))
    return views


@pytest.mark.parametrize("name", ["UnchangedTensor", "DeadRelu"])
@pytest.mark.parametrize("every", [1, 4, 11])
def test_a_restart_changes_nothing(name: str, every: int) -> None:
    whole, parts = build_rule(RuleSpec(name)), build_rule(RuleSpec(name))
    found: list[list[Finding]] = [[], []]
    for step, view in enumerate(_steps()):
        if step % every == 0:
            saved = json.loads(json.dumps(parts.save_state()))
            parts = build_rule(RuleSpec(name))
            parts.load_state(saved)
        found[0] += whole.check(view)
        found[1] += parts.check(view)
    assert found[0]
    assert found[0] == found[1]
    assert whole.save_state() == parts.save_state()
