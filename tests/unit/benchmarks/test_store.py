"""Simulated runs are runs, and figures of the store are judged the right way round."""

from pathlib import Path

import numpy as np
import pytest

from figures import Result, exponent, show
from simulated_runs import Simulated, Tensors, simulate
from store import BENCHMARKS
from watchglass.run import open_run
from watchglass.store import LocalStore, RunReader
from watchglass.tables import WorkerTables


def test_the_exponent_is_that_of_the_power() -> None:
    sizes = [1000.0, 3000.0, 10_000.0]
    assert exponent(sizes, [size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * 3) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "target", "least", "met"),
    [
        (1.0, 2.0, False, True),
        (3.0, 2.0, False, False),
        (3.0, 2.0, True, True),
        (1.0, 2.0, True, False),
        (1.0, None, False, None),
    ],
)
def test_a_target_is_the_most_or_the_least(value: float, target: float | None, least: bool, met: bool | None) -> None:
    result = Result("b", "f", value, "ms", target, least)
    assert result.met is met
    assert result.to_json()["met"] is met
    assert ("NO" in show(result)) is (met is False)


def test_a_simulated_run_is_a_sound_run(tmp_path: Path) -> None:
    simulate(LocalStore(tmp_path), Simulated(20, 12, workers=3), kinds=2)
    run = open_run(str(tmp_path))
    assert run.problems == []
    assert run.finished
    assert run.workers == ["worker_0", "worker_1", "worker_2"]
    assert run.steps() == list(range(20))
    tables = {worker: WorkerTables() for worker in run.workers}
    for _, worker, frame in RunReader(run.store).poll():
        tables[worker].ingest(frame)
    rows, other, replica = (tables[worker].statistics.read(histograms=True) for worker in run.workers)
    assert len(rows) == 20 * 12
    assert np.array_equal(rows.values, replica.values)
    assert not np.array_equal(rows.values, other.values)
    assert rows.histograms is not None
    assert 20 < len(rows.histograms.keys) / len(rows) < 60


def test_simulated_statistics_are_possible() -> None:
    rows = Tensors(50).rows(range(8))
    count, nan, _, _, zero, low, high, total, absolute, m2, l2 = rows.values.T
    assert (low < high).all()
    assert (nan == 0).all()
    assert (zero == 0).all()
    assert (np.abs(total) <= absolute).all()
    np.testing.assert_allclose(l2**2, m2 + total**2 / count)


@pytest.mark.parametrize("name", ["follower", "raw"])
def test_the_small_benchmarks_run(name: str, tmp_path: Path) -> None:
    results = BENCHMARKS[name](tmp_path, quick=True)
    assert all(np.isfinite(result.value) for result in results)
    assert any(result.target is not None for result in results)
