"""Figures and tables of time agree with recorded phases and samples, and are left out where nothing was recorded."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from watchglass.cli.run_contents import head_of
from watchglass.diagnose import verdict
from watchglass.records import (
    PHASES,
    Finding,
    FunctionTotals,
    Mode,
    OperatorTotals,
    OperatorWindow,
    Severity,
    WindowCost,
)
from watchglass.run import PythonProfile, open_run
from watchglass.testing import Batch, Step, build_run
from watchglass.view import render_report
from watchglass.view.blocks import TextTable
from watchglass.view.pictures import Axis, picture_html
from watchglass.view.pictures.svg import svg
from watchglass.view.pictures.table_html import table_html
from watchglass.view.pictures.ticks import ticks
from watchglass.view.text import quantity
from watchglass.view.time_figures import (
    durations_figure,
    function_rows,
    machine_figure,
    operator_rows,
    phases_figure,
)
from watchglass.view.timing import time_blocks, time_parts
from watchglass.view.usage import functions_sentence

#: Seconds of data, prepare, copy, forward, backward, update and other; nothing prepares or copies.
TRAIN, EVAL = (0.04, 0.0, 0.0, 0.02, 0.03, 0.01, 0.0, 0.0), (0.001, 0.0, 0.0, 0.005, 0.0, 0.0, 0.0, 0.004)
SLOW = (0.3, 0.0, 0.0, 0.1, 0.2, 0.1, 0.0, 0.0)
FOUND = Finding(
    id="0" * 12, rule="Overfit", severity=Severity.WARNING, step=300, last_step=300, count=1, mode=Mode.TRAIN,
    worker="worker_0", tensors=("loss",), value=1.0, limit=1.0, message="",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Sixty seconds: 600 training steps, of which one is slow, six of an evaluation, and two samples a second."""
    steps = [Step({"loss": 1.0}, seconds=0.1, rows={PHASES: [SLOW if n == 400 else TRAIN]}) for n in range(600)]
    evaluation = [Step({"loss": 1.0}, mode=Mode.EVAL, rows={PHASES: [EVAL]}) for _ in range(6)]
    metrics = {
        "cpu.utilization": [80.0] * 120, "memory.utilization": np.linspace(0, 50, 120).tolist(),
        "gpu.utilization": [[20.0, 60.0]] * 120, "process.memory": [[1e6]] * 120,
    }  # fmt: skip
    return build_run(tmp_path / "run", [Batch(metrics=metrics, seconds=60), *steps, *evaluation])


def test_phases_are_stacked_to_the_mean_time_of_neighbouring_steps(path: str) -> None:
    run = open_run(path)
    figure = phases_figure(run, [FOUND])
    assert figure is not None
    assert [band.name for band in figure.bands] == ["data", "forward", "backward", "update"]  # no phase without time
    assert len(figure.at) == 240
    whole = np.sum([band.values for band in figure.bands], axis=0)
    columns = np.searchsorted(figure.at, [0, 400], side="right") - 1
    np.testing.assert_allclose(whole[columns[0]], 100, rtol=1e-6)
    assert whole.argmax() == columns[1]
    # No time is lost: each column counts as many steps as lie before the next one.
    widths = np.diff([*figure.at, 600])
    np.testing.assert_allclose((whole * widths).sum(), 1000 * run.phases().seconds.sum(), rtol=1e-5)
    assert [(mark.at, mark.text) for mark in figure.marks] == [(300, "Overfit")]


def test_the_axis_of_phases_ends_far_below_a_step_that_compiles(tmp_path: Path) -> None:
    compiling = (0.0, 0.0, 0.0, 30.0, 10.0, 0.0, 0.0, 0.0)
    steps = [Step({"loss": 1.0}, rows={PHASES: [TRAIN if n else compiling]}) for n in range(20)]
    figure = phases_figure(open_run(build_run(tmp_path / "run", steps)), [FOUND])
    assert figure is not None
    assert (figure.y.low, figure.y.high) == pytest.approx((0, 500), rel=1e-6)
    assert figure.title == "Time of training steps by phase; the longest reach 40 s"
    assert "<h3>Time of training steps by phase (ms); the longest reach 40 s</h3>" in picture_html(figure)


def test_the_name_of_a_mark_near_the_right_edge_stands_left_of_it(path: str) -> None:
    run = open_run(path)
    for step, before in ((0, False), (300, False), (590, True)):
        figure = phases_figure(run, [replace(FOUND, step=step)])
        assert figure is not None
        assert ('class="mark warning before"' in svg(figure)) is before


def test_every_step_is_in_one_bar_of_the_durations(path: str) -> None:
    figure = durations_figure(open_run(path))
    assert figure is not None
    train, evaluation = figure.bands
    assert (train.values.sum(), evaluation.values.sum()) == (600, 6)
    # The slow step is the last bar, and the 99th percentile does not see it.
    assert train.values[-1] == 1
    np.testing.assert_allclose([mark.at for mark in figure.marks], [100, 100], rtol=1e-6)
    shown = [text for _, text in ticks(figure.x, figure.edges[0], figure.edges[-1], 7)]
    assert shown == ["10", "20", "50", "100", "200", "500"]


def test_steps_of_one_length_have_bars_too(tmp_path: Path) -> None:
    steps = [Step({"loss": 1.0}, rows={PHASES: [TRAIN]})] * 3
    figure = durations_figure(open_run(build_run(tmp_path / "run", steps)))
    assert figure is not None
    assert figure.bands[0].values.sum() == 3


def test_the_load_of_a_machine_is_drawn_over_time_with_findings_at_their_steps(path: str) -> None:
    figure = machine_figure(open_run(path), "system", [FOUND])
    assert figure is not None
    lines = {line.name: line for line in figure.lines}
    assert list(lines) == ["processor", "memory", "GPU"]
    np.testing.assert_allclose(lines["GPU"].y, 40.0)  # the mean of two
    np.testing.assert_allclose(lines["processor"].x, np.arange(120) / 2, atol=1e-6)
    assert figure.x.title == "time in s"
    (mark,) = figure.marks
    assert mark.at == pytest.approx(30.0, abs=0.11)  # the 300th step of a tenth of a second


def test_samples_that_are_no_numbers_are_not_drawn(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    metrics = {"gpu.utilization": [[40.0, inf], [inf, nan], [-inf, 20.0], [10.0, 20.0]]}
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}), Batch(metrics=metrics)]))
    figure = machine_figure(run, "system")
    assert figure is not None
    assert list(figure.lines[0].y) == [40.0, 20.0, 15.0]


def test_tables_name_the_longest_step_and_the_units(path: str) -> None:
    run = open_run(path)
    parts = {part.title: part.details for part in time_parts(run, verdict(run))}
    (steps,) = parts["Durations of steps"]
    assert isinstance(steps, TextTable)
    assert steps.rows[0] == ("TRAIN", "600", "101 ms", "700 ms", "100 ms", "100 ms", "100 ms", "100 ms", "400")
    assert steps.rows[1][:2] == ("EVAL", "6")
    usage, *_ = parts["Machine"]
    assert isinstance(usage, TextTable)
    assert ("gpu.utilization 1", "60", "60", "60", "60", "60", "60") in usage.rows
    assert not [row for row in usage.rows if str(row[0]).startswith("process.")]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (43.21678, "%", "43.22 %"),
        (1.2e9, "bytes", "1.2 GB"),
        (3.5e6, "bytes/s", "3.5 MB/s"),
        (4.0, "", "4"),
        (11213.4, "1/s", "11,213 1/s"),
    ],
)
def test_a_quantity_has_its_unit(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_the_report_has_a_section_of_time_only_where_time_was_recorded(path: str, tmp_path: Path) -> None:
    run = open_run(path)
    page = render_report(run, verdict(run))
    assert "<h2>Time and machine</h2>" in page
    assert "<summary>Machine</summary>" in page
    plain = open_run(build_run(tmp_path / "plain", [Step({"loss": 1.0})] * 3))
    assert time_blocks(plain, verdict(plain)) == []
    assert "<h2>Time and machine</h2>" not in render_report(plain, verdict(plain))


def test_operators_of_profiled_steps_are_shown_per_step(tmp_path: Path) -> None:
    rows = (
        OperatorTotals("aten::<b>mm", 8, 0.3, 0.4, self_device_s=0.2, self_memory_bytes=4_000_000),
        OperatorTotals("kernel", 4, 0.0, 0.0, self_device_s=0.2, on_device=True),
        OperatorTotals("aten::add", 2, 0.1, 0.1, self_memory_bytes=-5),
    )
    window = OperatorWindow(10, 12, rows, WindowCost(inside_s=0.5, outside_s=0.25))
    path = build_run(tmp_path / "run", [Step({"loss": 1.0})] * 3, facts=[window.to_fact("test")])
    run = open_run(path)
    (operators,) = run.operators()
    assert operator_rows(operators) == [
        ("aten::<b>mm", "4", "150 ms", "75 %", "200 ms", "100 ms", "2.0 MB"),
        ("aten::add", "1", "50 ms", "25 %", "50 ms", "0 ms", "0 bytes"),
    ]
    page = render_report(run, verdict(run))
    assert "Operators of training steps 10:12, per step" in page
    assert "aten::&lt;b&gt;mm" in page
    assert dict(head_of(run))["operators"] == (
        "steps 10:12, host: 75 % aten::<b>mm, 25 % aten::add; a step took 500 ms, 250 ms in the steps before"
    )


def test_ticks_of_long_steps_have_no_exponent(tmp_path: Path) -> None:
    long = tuple(200 * each for each in TRAIN)
    steps = [Step({"loss": 1.0}, rows={PHASES: [TRAIN if n % 9 else long]}) for n in range(40)]
    figure = durations_figure(open_run(build_run(tmp_path / "run", steps)))
    assert figure is not None
    assert [text for _, text in ticks(figure.x, 100.0, 30_000.0, 7)] == ["100", "1,000", "10,000"]


def test_a_number_stays_on_one_line_with_its_unit() -> None:
    numbers, words = ["87.1 ms", "under 1 %", "2 min 5 s", "1,204"], ["aten::mm", "2 workers wait for it", "0 (Linear)"]
    table = table_html(TextTable((), [(*numbers, *words)]))
    assert re.findall('<td class="number">(.*?)</td>', table) == numbers


def test_the_place_of_compiled_code_leaves_room_for_its_times() -> None:
    name = "/tmp/cache/wa/cwadr5dk7ykg7uwvgb7ceyk25cberh7b5gxojnhgvjv67o57owsz.py"
    rows = (
        FunctionTotals("call", name, 1038, 2, 0.1, 0.1),
        FunctionTotals("fit", "/home/me/work/train.py", 7, 1, 0, 0),
    )
    profile = PythonProfile("worker_0", "cprofile", range(4, 6), rows, (), WindowCost(), 0, "")
    long, short = (row[1] for row in function_rows(profile))
    assert (len(long), long[:3], long[-8:]) == (48, "...", ".py:1038")
    assert short == "work/train.py:7"


def test_functions_that_are_not_written_in_python_have_the_names_by_which_scripts_call_them() -> None:
    names = (
        "<built-in method torch._C._nn.linear>", "<method 'run_backward' of 'torch._C._EngineBase' objects>",
        "DS.__getitem__.<locals>.<listcomp>", "<lambda>",
    )  # fmt: skip
    rows = tuple(FunctionTotals(name, "", 0, 2, 0.1, 0.1) for name in names)
    profile = PythonProfile("worker_0", "cprofile", range(4, 6), rows, (), WindowCost(), 0, "")
    shown = ["torch._C._nn.linear", "torch._C._EngineBase.run_backward", *names[2:]]
    assert [row[0] for row in function_rows(profile)] == shown
    assert all(f"25 % {name}" in functions_sentence(profile) for name in shown[:3])


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (2.0, 60.0, ["2", "5", "10", "20", "50"]),
        (2.0, 500.0, ["10", "100"]),
        (1.0, 2e4, ["1", "10", "100", "1,000", "10,000"]),
    ],
)
def test_ticks_of_powers_have_room(low: float, high: float, shown: list[str]) -> None:
    assert [text for _, text in ticks(Axis("ms", logarithmic=True), low, high, 6)] == shown
