"""A rule sees a step as columns: computed once, of this step, and read-only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from watchglass.records import STATISTIC_FIELDS, Mode, Role, StepEnd, TensorInfo
from watchglass.stats import column, histograms_of, of_array
from watchglass.tables import Catalog, History, LazyHistograms, Statistics, StatisticsRows, StepRecords, StepView

ROLES = (Role.WEIGHT, Role.GRADIENT, Role.UPDATE)
COUNT = 12


def catalog() -> Catalog:
    # Layers are numbered against the order of the ids.
    rows = (
        TensorInfo(n, f"{ROLES[n % 3].value}/{n}", ROLES[n % 3], layer_index=COUNT - n, shape=(4,) * (1 + n % 2))
        for n in range(COUNT)
    )
    return Catalog(rows)


def matrix(seed: int) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    return np.stack([of_array(random.normal(size=(8, 8)) * 10.0**n) for n in range(COUNT)])


def statistics(seed: int = 0, known: Catalog | None = None) -> Statistics:
    ids = np.arange(COUNT, dtype=np.uint32)
    histograms = LazyHistograms(lambda: histograms_of([np.full(3, float(n + 1)) for n in range(COUNT)]))
    return Statistics(known or catalog(), ids, matrix(seed), ids + 1, ids % 4 == 0, histograms)


def view_of(history: History, known: Catalog, step: int, values: NDArray[np.float64]) -> StepView:
    end = StepEnd(step, Mode.TRAIN, step, step, 0, 1, COUNT)
    ids = np.arange(COUNT, dtype=np.uint32)
    rows = StatisticsRows(ids, values, np.ones(COUNT, np.uint32), np.zeros(COUNT, np.bool_))
    return StepView.after(history, StepRecords(end, known, statistics=rows))


@pytest.mark.parametrize("name", ["l2", "rms", "nonfinite", "finite", "nonzero_abs_mean"])
def test_steps_share_tensors_and_no_column(name: str) -> None:
    history, known = History(), catalog()
    seen = [
        getattr(view_of(history, known, step, matrix(step)).statistics(Role.GRADIENT), name).copy() for step in (0, 1)
    ]
    for step, found in enumerate(seen):
        alone = view_of(History(), catalog(), step, matrix(step)).statistics(Role.GRADIENT)
        assert found.tolist() == getattr(alone, name).tolist()
    assert name in ("nonfinite", "finite") or seen[0].tolist() != seen[1].tolist()


def test_a_part_of_a_part_has_the_rows_that_were_taken_one_by_one() -> None:
    whole = statistics()
    part = whole.where(np.arange(COUNT) % 5 != 0).in_layer_order().where(np.array([True, False, True] * 3))
    rows = [n for n in range(COUNT) if n % 5 != 0][::-1]
    rows = [n for place, n in enumerate(rows) if place % 3 != 1]
    assert part.ids.tolist() == rows
    assert part.names == [whole.names[n] for n in rows]
    assert part.values.tolist() == whole.values[rows].tolist()
    assert part.calls.tolist() == [n + 1 for n in rows]
    assert part.sampled.tolist() == [n % 4 == 0 for n in rows]
    assert part.rms.tolist() == column(whole.values[rows], "rms").tolist()
    assert part.l2.tolist() == column(whole.values[rows], "l2").tolist()
    assert [int(n) for n in part.histograms.keys] == [int(whole.histograms.keys[n]) for n in rows]
    assert part.column_of("layer_index").tolist() == [COUNT - n for n in rows]
    assert [part.row(name) for name in part.names] == list(range(len(rows)))
    assert part.row(whole.names[0]) is None


def test_nothing_is_left_of_rows_without_a_match() -> None:
    nothing = statistics().where(np.zeros(COUNT, bool))
    assert len(nothing) == 0
    assert nothing.names == []
    assert nothing.values.shape == (0, len(STATISTIC_FIELDS))
    assert len(nothing.rms) == len(nothing.histograms) == 0


def test_no_rule_can_change_what_the_next_one_sees() -> None:
    whole = statistics()
    for part in (whole, whole.in_layer_order()):
        for name in ("l2", "rms", "nonzero_abs_mean"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(part, name)[0] = 0.0
        with pytest.raises(ValueError, match="read-only"):
            part.column_of("layer_index")[0] = 0
        part.names.clear()
        part.tensors.clear()
        assert len(part.names) == len(part.tensors) == COUNT


def test_a_tensor_that_gets_its_name_later_has_it_from_then_on() -> None:
    known = catalog()
    before = statistics(known=known).in_layer_order()
    assert before.names[-1] == "weight/0"
    known.add(replace(known[0], name="fc1.weight", layer_index=0))
    after = statistics(known=known).in_layer_order()
    assert after.names[-1] == "gradient/1"
    assert after.names[0] == "fc1.weight"


def test_what_is_remembered_is_of_these_tensors() -> None:
    whole, asked = statistics(), []

    def build() -> int:
        asked.append(1)
        return len(asked)

    first, second = whole.in_layer_order(), whole.where(whole.ids > 3)
    assert first.remembered("n", build) == first.remembered("n", build) == 1
    assert second.remembered("n", build) == 2
    assert whole.in_layer_order().remembered("n", build) == 1


def test_rows_of_unknown_tensors_are_seen() -> None:
    known = catalog()
    assert known.knows(np.arange(COUNT, dtype=np.uint32))
    assert not known.knows(np.array([0, COUNT], np.uint32))
    assert known.knows(np.zeros(0, np.uint32))
