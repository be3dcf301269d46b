"""Courses of statistics are those of the run, whether read at once or continued step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from watchglass.run import open_run
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.view.courses import Courses
from watchglass.view.layer_grids import layer_grid

NAMES = ("a.weight", "b.weight")


def step(number: int) -> Step:
    weights = {name: np.full((2, 2), 1.0 + number + place) for place, name in enumerate(NAMES)}
    if number % 3 == 1:
        del weights["b.weight"]
    if number == 4:
        weights["a.weight"][0, 0] = np.nan
    return Step({"loss": 1.0}, statistics=weights)


def test_what_is_continued_equals_what_is_read_at_once(tmp_path: Path) -> None:
    kept = Courses()
    with RunBuilder(tmp_path / "run") as builder:
        run = open_run(tmp_path / "run")
        for number in range(9):
            builder.step(step(number))
            run.refresh()
            found = kept.of(run.snapshot(), NAMES, "l2")
        whole = Courses().of(open_run(tmp_path / "run"), NAMES, "l2")
    assert found.steps.tolist() == list(range(9))
    np.testing.assert_array_equal(found.steps, whole.steps)
    np.testing.assert_array_equal(found.values, whole.values)
    a, b = found.values.T
    _, expected = run.tensor("a.weight").reductions("l2")
    np.testing.assert_allclose(np.delete(a, 4), np.delete(expected, 4))
    assert np.isposinf(a[4])
    assert np.flatnonzero(np.isnan(b)).tolist() == [1, 4, 7]


def test_an_earlier_snapshot_adds_nothing(tmp_path: Path) -> None:
    kept = Courses()
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(step(0))
        run = open_run(tmp_path / "run")
        earlier = run.snapshot()
        builder.step(step(1))
        run.refresh()
        assert len(kept.of(run.snapshot(), NAMES, "l2").steps) == 2
        assert len(kept.of(earlier, NAMES, "l2").steps) == 2


def test_little_memory_is_kept(tmp_path: Path) -> None:
    run = open_run(build_run(tmp_path / "run", [step(0)]))
    kept = Courses(most_bytes=1)
    for reduction in ("l2", "mean", "std"):
        kept.of(run, NAMES, reduction)
        assert len(kept._kept) == 1


def test_long_runs_have_columns_of_many_steps_that_keep_extremes(tmp_path: Path) -> None:
    def at(number: int) -> Step:
        size = {700: 1e3, 900: 1e-3}.get(number, 1.0)
        return Step({"loss": 1.0}, statistics={"gradient/a.weight": np.full((2, 2), size, np.float32)})

    run = open_run(build_run(tmp_path / "run", [at(number) for number in range(1400)], steps_per_flush=200))
    grid = layer_grid(run)
    assert grid is not None
    assert np.unique(np.diff(grid.columns)).tolist() == [4]
    row = grid.cells[0]
    assert row.argmax() == 700 // 4
    assert row.argmin() == 900 // 4


def test_inactive_units_are_continued_like_statistics(tmp_path: Path) -> None:
    kept = Courses()
    names = ("a.output", "b.output")
    with RunBuilder(tmp_path / "run", modules={"a": "ReLU", "b": "ReLU"}) as builder:
        run = open_run(tmp_path / "run")
        for number in range(6):
            units = {name: np.arange(4) < number for name in names[: 2 - number % 2]}
            builder.step(Step({"loss": 1.0}, units=units))
            run.refresh()
            found = kept.of(run.snapshot(), names, "inactive")
        whole = Courses().of(open_run(tmp_path / "run"), names, "inactive")
    np.testing.assert_array_equal(found.steps, whole.steps)
    np.testing.assert_array_equal(found.values, whole.values)
    assert found.values[:, 0].tolist() == [0, 0.25, 0.5, 0.75, 1, 1]
    assert found.values[::2, 1].tolist() == [0, 0.5, 1]
    assert np.isnan(found.values[1::2, 1]).all()
    steps, shares = run.tensor("b.output").inactive_units(steps=(2, 5))
    assert (steps.tolist(), shares.tolist()) == ([2, 4], [0.5, 1])
