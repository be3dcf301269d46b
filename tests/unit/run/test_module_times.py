"""Reading the times of modules, from runs that are made of numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from watchglass import open_run
from watchglass.cli.run_contents import head_of
from watchglass.errors import MissingExtraError
from watchglass.records import ModuleSeconds, StepModules
from watchglass.run import Run
from watchglass.testing import Step, build_run
from watchglass.view.time_figures import module_rows


def timed(*modules: tuple[Any, ...], on_device: bool = False) -> dict[str, Any]:
    return {StepModules.KIND: StepModules(tuple(ModuleSeconds(*each) for each in modules), on_device).to_data()}


NET = ("", "Net", 0, 1, 0.001, 0.0)


def built(path: Path, *facts: dict[str, Any]) -> Run:
    steps = [Step({"loss": 1.0}, facts=facts[n // 2] if n % 2 and n // 2 < len(facts) else {}) for n in range(8)]
    return open_run(build_run(path / "run", steps))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    first = timed(
        NET, ("fc", "Block", 0, 2, 0.002, 0.004), ("fc.in", "Linear", 0, 2, 0.01, 0.02), ("fc2", "Linear", 0, 1, 0, 0)
    )
    second = timed(
        NET,
        ("fc", "Block", 0, 2, 0.004, 0.006),
        ("fc.in", "Linear", 0, 2, 0.03, 0.04),
        ("model_2", "Other", 1, 1, 0.1, 0.2),
        ("model_2.a", "Linear", 1, 1, 0.3, 0.4),
    )
    return built(tmp_path, first, second)


def test_means_and_sums_with_submodules(run: Run) -> None:
    times = run.module_times()
    assert times.steps.tolist() == [1, 3]
    assert [row.module for row in times.rows] == ["", "fc", "fc.in", "fc2", "model_2", "model_2.a"]
    block = times["fc"]
    assert (block.type, block.calls) == ("Block", 2)
    assert (block.self_forward_s, block.self_backward_s) == (pytest.approx(0.003), pytest.approx(0.005))
    assert (block.forward_s, block.backward_s) == (pytest.approx(0.023), pytest.approx(0.035))
    assert times[""].forward_s == pytest.approx(0.024)
    # Called in one of the two steps: the means are those of that step.
    other = times["model_2"]
    assert (other.calls, other.self_forward_s, other.forward_s) == (1, pytest.approx(0.1), pytest.approx(0.4))
    # Shares are those of the time in all timed steps, however often each model was called.
    assert times.shares.sum() == pytest.approx(1)
    assert times.shares[5] == pytest.approx(0.7 / 1.118)
    assert times.forward[:, 2].tolist() == [0.01, 0.03]
    assert times.backward[:, 5].tolist() == [0, 0.4]
    with pytest.raises(KeyError):
        times["fc3"]


def test_a_data_frame(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = run.module_times().to_pandas()
    assert frame.loc["fc", "self_forward_s"] == pytest.approx(0.003)
    assert list(frame.columns) == [
        "type", "calls", "self_forward_s", "self_backward_s", "forward_s", "backward_s",
    ]  # fmt: skip
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        run.module_times().to_pandas()


def test_the_list_of_a_run_names_the_slowest(run: Run, tmp_path: Path) -> None:
    assert dict(head_of(run))["modules"] == (
        "2 steps, forward and backward: 63 % model_2.a (Linear), 27 % model_2 (Other), 9 % fc.in (Linear)"
    )
    quick = built(tmp_path / "quick", timed(NET, on_device=True))
    assert dict(head_of(quick))["modules"] == (
        "1 step, forward and backward, on the device: 100 % the model itself (Net)"
    )


def test_rows_of_a_table(run: Run) -> None:
    rows = module_rows(run.module_times())
    assert rows[2] == ("fc.in", "Linear", "2", "20 ms", "30 ms", "9 %", "20 ms", "30 ms")
    assert [row[0] for row in rows] == ["model_2.a", "model_2", "fc.in", "fc", "(the model)", "fc2"]


@pytest.mark.parametrize(
    "broken",
    [
        {"module": "fc"}, {"module": [1, ""]}, {"calls": [1]}, {"forward_s": ["x", 0.0]}, {"backward_s": None},
        {"model": [0.5, 0]}, {"forward_s": [float("nan"), 0.0]},
    ],
)  # fmt: skip
def test_what_is_not_valid_is_left_out(tmp_path: Path, broken: dict[str, Any]) -> None:
    good = timed(NET, ("fc", "Linear", 0, 1, 0.01, 0.02))
    bad = {StepModules.KIND: {"modules": {**good[StepModules.KIND]["modules"], **broken}}}
    times = built(tmp_path, good, bad).module_times()
    assert (times.steps.tolist(), len(times)) == ([1], 2)
    assert repr(times) == "ModuleTimes(2 modules in 1 step of 'worker_0')"


def test_a_run_without_them_has_none(tmp_path: Path) -> None:
    run = built(tmp_path)
    assert (len(run.module_times()), run.module_times().forward.shape) == (0, (0, 0))
    assert "modules" not in dict(head_of(run))
