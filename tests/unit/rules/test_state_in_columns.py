"""Rules that remember columns: where a row lies in memory is no change of a weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.config import RuleSpec
from watchglass.records import UNITS, Mode, ModuleKind, Role, StepEnd, TensorInfo, UnitKind
from watchglass.rules import build_rule, state_of
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


def view_of(
    history: History, step: int, ids: NDArray[np.uint32], rows: NDArray[np.float64], *, zero: Any = None
) -> StepView:
    end = StepEnd(step, Mode.TRAIN, step, step, 0, 1, len(ids))
    units = [] if zero is None else [UNITS.shown(CATALOG[WEIGHTS], UnitKind.INACTIVE, zero)]  # type: ignore[call-arg]
    statistics = StatisticsRows(ids, rows, np.ones(len(ids), np.uint32), np.zeros(len(ids), np.bool_))
    return StepView.after(history, StepRecords(end, CATALOG, {UNITS: units} if units else {}, statistics))


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
    still = state_of(rule)["still"]
    assert len(still) == WEIGHTS
    assert min(still) > 0
