"""docs/scale.md says what the code does: figures follow from the costs that it shows, limits are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import scale
from watchglass.cli import main
from watchglass.evaluate.scaling import plan, spreading
from watchglass.evaluate.scaling.cluster import Patience
from watchglass.rules import default_rules


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


@pytest.fixture(scope="module")
def costs(page: str) -> scale.Costs:
    return scale.Costs(**json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0]))


def table(points: list[scale.Point]) -> list[str]:
    return [
        f"| {point.cores:,} | {point.parts:,} | {point.seconds:.1f} | {point.speedup:.1f} "
        f"| {point.speedup / point.cores:.2f} | {point.largest_s:.2f} | {point.driver_s:.2f} | {point.limit} |"
        for point in points
    ]


@pytest.mark.parametrize("on_objects", [False, True])
def test_the_curves_are_those_of_the_costs(page: str, costs: scale.Costs, on_objects: bool) -> None:
    points = scale.curve(costs, on_objects=on_objects, rules=len(default_rules()))
    assert "\n".join(table(points)) in page
    knee = scale.knee(points)
    where = "an object store" if on_objects else "a folder"
    assert f"{knee.cores}\nin {where}" in page or f"{knee.cores} cores in {where}, {knee.seconds:.1f} s" in page


def test_more_cores_never_take_longer_than_their_driver(costs: scale.Costs) -> None:
    points = scale.curve(costs, on_objects=False, rules=len(default_rules()))
    assert [point.cores for point in points] == list(scale.CORES)
    assert all(point.seconds >= point.largest_s for point in points)
    assert all(point.speedup <= point.cores * 1.0001 for point in points)


def test_a_schedule_adds_up() -> None:
    costs = scale.Costs(1e-6, 0.5, 1.0, 10**6, 0.1, 0.01, 0.0, 2.0)
    parts = [plan.Part("run", (f"worker_{n}",), None, 3_000_000) for n in range(4)]
    one = scale.schedule(parts, 1, costs, objects=lambda _: 0)
    assert one.seconds == pytest.approx(2.0 + 0.1 + 4 * (1.0 + 3.0) + 4 * 0.01)
    assert one.limit == "cores"
    many = scale.schedule(parts, 9, costs, objects=lambda _: 0)
    assert many.seconds == pytest.approx(2.0 + 4 * 0.1 + 4.0 + 4 * 0.01)
    stored = scale.schedule(parts, 9, costs, objects=lambda _: 32)
    assert stored.seconds == pytest.approx(many.seconds + 2 * scale.REQUEST_S + 3e6 / scale.BANDWIDTH)
    assert stored.limit == "the largest part"


def test_limits_are_those_of_the_code(page: str) -> None:
    assert plan.PARTS_PER_CORE == 4
    assert "four for each core" in page
    assert f"smaller than {plan.LEAST_BYTES >> 10} KiB" in page
    assert Patience().retries == 4
    assert "up to five times in all" in page
    assert "up to five times in a row" in " ".join(page.split())
    assert spreading._UNDER_WAY == 2
    assert "Two parts per core are in progress at a time" in page
    assert f"{scale.REQUEST_S * 1000:g} ms for a request, {scale.AT_ONCE} requests" in page
    assert f"{scale.BANDWIDTH / 1e6:g} MB/s" in page


def test_the_commands_exist(page: str, capsys: pytest.CaptureFixture[str], run_path: Path) -> None:
    options = set(re.findall(r"(--[a-z-]+)", " ".join(re.findall(r"watchglass ((?:check|follow) .*)", page))))
    assert {"--engine", "--ray-address", "--stop-on"} <= options
    for verb in ("check", "follow"):
        assert main([verb, str(run_path), "--ray-address", "head:6379"]) == 2
        assert "needs --engine ray" in capsys.readouterr().err
        assert main([verb, str(run_path), "--engine", "dask"]) == 2
        assert "--engine must be one of local, ray but got 'dask'" in capsys.readouterr().err
