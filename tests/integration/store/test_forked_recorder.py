"""A forked child leaves the flight recorder of its parent alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.record import Captured, OpenStep
from watchglass.record.flight_recorder import FlightRecorder
from watchglass.records import FACTS, REDUCTIONS, SCALARS, STATISTICS, UNITS, Mode, Reduction, UnitKind
from watchglass.stats import Histograms, histograms_of, of_array
from watchglass.store import LocalStore, Rings, read_rings

pytestmark = pytest.mark.own_process

LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}


class OnDevice:
    """A number or array that arrives later."""

    def __init__(self, value: Any) -> None:
        self.value, self.waited = value, 0

    def resolve(self) -> Any:
        self.waited += 1
        return self.value


def full_step(number: int = 7, *, device: bool = False) -> OpenStep:
    random = np.random.default_rng(number)
    later: Any = OnDevice if device else lambda value: value
    tensors = [random.normal(size=(4, 5)), random.normal(size=300) * 1e-300, np.array([np.nan, np.inf, 0.0])]
    rows = np.stack([of_array(tensor) for tensor in tensors])
    step = OpenStep(number, Mode.TRAIN, number - 1, number - 1, 10**15, updated=True, end_ns=10**15 + 77, model=3)
    step.records.rows |= {
        SCALARS: [(1, 32.0, later(0.1)), (1, 16.0, float("nan")), (2, 0.0, -np.inf), (3, 1.0, np.float64(5))],
        STATISTICS: [
            Captured([4, 5, 6], later(rows), False, later(histograms_of(tensors))),
            Captured([4, 9], later(rows[:2]), True, None),
            Captured([10], later(rows[2:]), False, Histograms.none(1)),
        ],
        REDUCTIONS: [(4, Reduction.MEDIAN, 0.25), (5, Reduction.PROD, float("inf"))],
        UNITS: [(4, UnitKind.INACTIVE, later(np.arange(13) % 3 == 0)), (5, UnitKind.INACTIVE, np.zeros(0, bool))],
        FACTS: [
            ("kind", "source", {"nan": float("nan"), 5: np.int64(3), "list": (1, "é", None)}),
            ("k", "", later({})),
        ],
    }
    return step


@pytest.fixture
def opened(tmp_path: Path) -> tuple[FlightRecorder, LocalStore, Rings]:
    (tmp_path / "memory").mkdir()
    (tmp_path / "attempts" / "0000").mkdir(parents=True)
    store = LocalStore(tmp_path)
    rings = Rings(store, LABEL, tmp_path / "memory")
    flight = FlightRecorder()
    flight.open(rings)
    return flight, store, rings


def test_a_forked_child_writes_nothing_into_its_parents_rings(opened: tuple[FlightRecorder, LocalStore, Rings]) -> None:
    flight, store, rings = opened
    flight.finished(full_step(7))
    child = os.fork()
    if child == 0:
        try:
            for number in range(3000):
                flight.updated(full_step(8))
                if number == 0:
                    flight.keep([full_step(8)], [])
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    flight.finished(full_step(9))
    flight.close(discard=False)
    left = read_rings(store, rings.names, LABEL)
    assert left.rows["global_step"].tolist() == [7, 9]
    assert left.entries == ()
    left.discard()
