"""The times of batches of data loaders: means and sums, and one name of a loader everywhere."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from watchglass.records import LOADER_WORKERS
from watchglass.run import open_run
from watchglass.testing import Step, build_run


def test_a_loader_has_the_name_of_its_fact_in_means_and_in_sql(run_path: Path) -> None:
    rows = [(1, -1, 4, 0.4, 0.2, 0.1, 0.0), (2, 0, 2, math.nan, 0.2, 0.1, 0.1), (9, 1, 1, 0.1, 0.1, 0.1, 0.1)]
    facts = [{"data_loader": {"loader": name}} for name in ("loader", "loader_2", "loader_more")]
    build_run(run_path, [Step({"loss": 1.0}, facts=each, rows={LOADER_WORKERS: rows}) for each in facts])
    run = open_run(run_path)
    names = [fact.data["loader"] for fact in run.facts("data_loader")]
    assert [row.loader for row in run.loader_workers().rows] == names
    asked = run.sql("SELECT DISTINCT loader FROM loader_workers ORDER BY loader").to_arrow().to_pylist()
    assert [row["loader"] for row in asked] == sorted(names)
    first, second, _ = run.loader_workers().rows
    assert (first.batches, first.mean_fetch_s, first.mean_collate_s) == (12, pytest.approx(0.1), pytest.approx(0.05))
    assert math.isnan(second.mean_fetch_s)
    largest = run.loader_workers().largest()
    assert largest is not None
    assert largest.loader == "loader"
