"""Figures and tables of where the time of a run went: phases of steps, durations of steps, load of the machines."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from watchglass.errors import UnknownNameError
from watchglass.records import PHASE_NAMES, Finding, FunctionTotals, Mode, OperatorTotals
from watchglass.run import ModuleTimes, Operators, Phases, PythonProfile, step_times
from watchglass.view.pictures.colours import COLOURS
from watchglass.view.pictures.records import Axis, Band, Bands, Bars, Grid, Line, Lines, Mark
from watchglass.view.series import Steps, marks_of
from watchglass.view.text import exact_duration as _exact, percent, size
from watchglass.view.usage import function_name

if TYPE_CHECKING:
    from watchglass.run import Run

#: Colours of phases: those in which the script waits or copies are warm, those that compute cool (after Okabe and Ito).
_PHASE_COLOURS = dict(
    zip(
        PHASE_NAMES,
        ("#D55E00", "#E69F00", "#F0E442", "#56B4E9", "#0072B2", "#009E73", "#CC79A7", "#999999"),
        strict=True,
    )
)
#: Metrics of the figure of a machine, all in percent, with names for a person and colours.
_LOADS = (
    ("cpu.utilization", "processor", "#0072B2"), ("cpu.iowait", "wait for disks", "#D55E00"),
    ("memory.utilization", "memory", "#999999"), ("gpu.utilization", "GPU", "#009E73"),
    ("gpu.memory.utilization", "memory of GPUs", "#E69F00"),
)  # fmt: skip
#: Metrics with a number for each part of a machine, and what a part is.
_INSTANCES = (("cpu.core.utilization", "core"), ("gpu.utilization", "GPU"))
_MAX_COLUMNS, _BARS = 240, 60
#: Times the median column at which the axis of a figure of phases ends.
_LONGEST_COLUMN = 5
#: Rows of a table of operators or of modules, and the columns of the first.
_MAX_OPERATORS = 20
OPERATOR_TITLES = ("operator", "calls", "host", "share", "with its calls", "device", "memory")
#: Characters of the name of a function.
_LONGEST_NAME = 48
FUNCTION_TITLES = ("function", "place", "calls", "time", "share", "with its calls")


def phases_figure(run: Run, findings: Sequence[Finding] = (), steps: Steps = None) -> Bands | None:
    """Time of training steps by phase, stacked, with the first findings marked; None where no phases were recorded.

    Each column is the mean of neighbouring steps, so that their sum is the mean time of these steps. The axis ends
    at five times the median; the title says how far the others reach.
    """
    phases = run.phases()
    if steps is not None:
        part = slice(*np.searchsorted(phases.steps, steps).tolist())
        phases = replace(phases, steps=phases.steps[part], values=phases.values[part])
    if len(phases) < 2:
        return None
    title = "Time of training steps by phase"
    at, values = _columns(phases)
    longest, usual = float(values.sum(1).max()), _LONGEST_COLUMN * float(np.median(values.sum(1)))
    cut = longest > usual > 0
    if cut:
        title += f"; the longest reach {_exact(longest)}"
    bands = tuple(
        Band(name, column, _PHASE_COLOURS[name])
        for name, column in zip(PHASE_NAMES, 1000 * values.T, strict=True)
        if column.any()
    )
    axis = Axis("ms", low=0.0, high=1000 * usual if cut else None)
    return Bands(title, Axis("training step", whole=True), axis, at, bands, marks_of(run, findings))


def durations_figure(run: Run) -> Bars | None:
    """How many steps took how long, by mode, on a logarithmic axis; None with fewer than two steps.

    The bars have equal widths on that axis. Vertical lines are the median and the 99th percentile of training steps.
    """
    seconds = {mode: taken[taken > 0] for mode in (Mode.TRAIN, Mode.EVAL) if len(taken := run.phases(mode).seconds)}
    train = seconds.get(Mode.TRAIN, np.empty(0))
    if len(train) < 2:
        return None
    powers = {mode: np.log10(1000 * each) for mode, each in seconds.items()}
    low, high = min(each.min() for each in powers.values()), max(each.max() for each in powers.values())
    edges = np.linspace(low, max(high, low + 0.1), _BARS + 1)
    bands = tuple(
        Band(name, np.histogram(powers[mode], edges)[0].astype(np.float64), COLOURS[colour])
        for mode, colour, name in ((Mode.TRAIN, "train", "training"), (Mode.EVAL, "eval", "validation"))
        if mode in powers
    )
    marks = tuple(
        Mark(float(np.percentile(1000 * train, place)), words)
        for place, words in ((50, "median"), (99, "99th percentile"))
    )
    counts = Axis("steps", low=0.0, whole=True)
    return Bars("Durations of steps", Axis("ms", logarithmic=True), counts, 10**edges, bands, marks)


def machine_figure(run: Run, stream: str, findings: Sequence[Finding] = ()) -> Lines | None:
    """Load of a machine in percent over the time since its first sample, with the first findings marked.

    Args:
        run: The run.
        stream: Stream of the machine.
        findings: Findings of rules.

    Returns:
        The figure; None where the stream has no loads.
    """
    found = []
    for metric, name, colour in _LOADS:
        try:
            samples = run.samples(metric, stream=stream)
        except UnknownNameError:  # no GPU, or a counter that the system does not have
            continue
        values = np.asarray(samples.values).reshape(len(samples), -1)
        known = np.isfinite(values)
        taken = np.flatnonzero(known.any(axis=1))
        if len(taken) > 1:
            mean = np.where(known, values, 0.0)[taken].sum(1) / known[taken].sum(1)
            found.append((name, colour, samples.time[taken], mean))
    if not found:
        return None
    begun = min(times[0] for _, _, times, _ in found)
    length = max(float((times[-1] - begun) / np.timedelta64(1, "s")) for _, _, times, _ in found)
    unit, seconds = next(((unit, each) for unit, each in (("h", 3600), ("min", 60)) if length > 3 * each), ("s", 1))
    title = "Load of the machine" if stream == "system" else f"Load of the machine of {stream}"
    lines = tuple(
        Line(name, *_averaged((times - begun) / np.timedelta64(seconds, "s"), mean), colour)
        for name, colour, times, mean in found
    )
    return Lines(
        title, Axis(f"time in {unit}"), Axis("%", low=0.0, high=102.0), lines,
        _marks_in_time(run, findings, begun, seconds),
    )  # fmt: skip


def instance_grids(run: Run, stream: str) -> list[Grid]:
    """Utilisation of each core and each GPU of a machine over time, one grid of each kind that was sampled."""
    found = []
    for metric, title in _INSTANCES:
        try:
            samples = run.samples(metric, stream=stream)
        except UnknownNameError:
            continue
        values = np.asarray(samples.values).reshape(len(samples), -1)
        if len(samples) < 2 or values.shape[1] < 2:
            continue
        seconds = (samples.time - samples.time[0]) / np.timedelta64(1, "s")
        begins = np.unique(np.linspace(0, len(values), _MAX_COLUMNS + 1).astype(int)[:-1])
        counts = np.diff([*begins, len(values)])[:, None]
        cells = np.add.reduceat(values, begins) / counts
        at = np.maximum.accumulate(seconds[begins]) + np.arange(len(begins)) * 1e-9  # ascending if a clock is set back
        rows = tuple(f"{title} {instance}" for instance in samples.instances)
        heading = f"Utilisation of {title}s" + ("" if stream == "system" else f" of {stream}")
        broken = np.zeros(cells.T.shape, np.bool_)
        found.append(
            Grid(heading, Axis("time in s"), rows, at, cells.T.astype(np.float32), 0.0, 100.0, "percent", broken)
        )
    return found


def _marks_in_time(run: Run, findings: Sequence[Finding], begun: np.datetime64, seconds: int) -> tuple[Mark, ...]:
    """Findings at the times since ``begun``, in units of so many seconds."""
    times = step_times(run.worker())
    train = times.rows["mode"] == int(Mode.TRAIN)
    if not train.any():
        return ()
    numbers = times.rows["step"][train]
    moments = (times.begin_ns[train].astype("datetime64[ns]") - begun) / np.timedelta64(seconds, "s")
    return marks_of(run, findings, lambda step: float(np.interp(step, numbers, moments)))


def operator_rows(operators: Operators) -> list[tuple[str, ...]]:
    """Operators of a window as text, at most 20: name, calls per step, times per step, share, allocated memory.

    The times are those of the host in the operator itself, with the operators that it calls, and of its kernels. The
    share is that of the first in the time of all operators of the host. Rows of kernels are left out, because their
    time is in that of an operator.
    """
    steps = len(operators.steps)
    hosts = [row for row in operators.rows if not row.on_device]
    whole = sum(row.self_cpu_s for row in hosts)
    return [
        (
            row.name, f"{row.calls / steps:,.4g}", _exact(row.self_cpu_s / steps),
            percent(row.self_cpu_s / whole) if whole > 0 else "", _exact(row.cpu_s / steps),
            _exact(row.self_device_s / steps), size(max(row.self_memory_bytes, 0) / steps),
        )
        for row in hosts[:_MAX_OPERATORS]
    ]  # fmt: skip


def trace_rows(operators: Sequence[OperatorTotals]) -> list[tuple[str, ...]]:
    """Operators, or kernels, of a trace as text, at most 20: name, calls, own time, its share, time with calls."""
    own = [row.self_device_s if row.on_device else row.self_cpu_s for row in operators]
    whole = sum(own)
    return [
        (
            row.name, f"{row.calls:,}", _exact(seconds), percent(seconds / whole) if whole > 0 else "",
            _exact(row.device_s if row.on_device else row.cpu_s),
        )
        for row, seconds in zip(operators[:_MAX_OPERATORS], own, strict=False)
    ]  # fmt: skip


def function_rows(profile: PythonProfile) -> list[tuple[str, ...]]:
    """Functions of a window as text, at most 20: name, place, calls per step, time per step, share, time with calls.

    The share is that of the time without the functions that they call, in that of all recorded functions.
    """
    steps = len(profile.steps)
    whole = sum(row.self_s for row in profile.rows)
    return [
        (
            _short(function_name(row)), _place(row), f"{row.calls / steps:,.4g}" if row.calls else "",
            _exact(row.self_s / steps), percent(row.self_s / whole) if whole > 0 else "", _exact(row.total_s / steps),
        )
        for row in profile.rows[:_MAX_OPERATORS]
    ]  # fmt: skip


def _short(name: str) -> str:
    """A name that leaves room for the other columns."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _place(row: FunctionTotals) -> str:
    """The last two parts of the file and the line; "" for a function that is not written in Python."""
    place = f"{'/'.join(row.file.replace(os.sep, '/').split('/')[-2:])}:{row.line}" if row.file else ""
    # Files of compiled code have names of sixty letters.
    return place if len(place) <= _LONGEST_NAME else f"...{place[3 - _LONGEST_NAME :]}"


def kernel_rows(operators: Operators) -> list[tuple[str, ...]]:
    """Kernels of a window as text, at most 20: name, calls per step, time of the device per step."""
    steps = len(operators.steps)
    kernels = [row for row in operators.rows if row.on_device][:_MAX_OPERATORS]
    return [(row.name, f"{row.calls / steps:,.4g}", _exact(row.self_device_s / steps)) for row in kernels]


def module_operator_rows(operators: Operators) -> list[tuple[str, ...]]:
    """Operators of modules as text, at most 20: module, direction, name, calls per step, times per step, share.

    A kernel has a separate row; its time is also in the row of the operator that launched it. The share is that of the
    host in all operators inside modules.
    """
    steps = len(operators.steps)
    whole = sum(row.self_cpu_s for row in operators.modules)
    return [
        (
            row.module or "(the model)", "backward" if row.backward else "forward", row.name,
            f"{row.calls / steps:,.4g}",
            _exact(row.self_cpu_s / steps), percent(row.self_cpu_s / whole) if whole > 0 else "",
            _exact(row.self_device_s / steps),
        )
        for row in operators.modules[:_MAX_OPERATORS]
    ]  # fmt: skip


def memory_rows(operators: Operators) -> list[tuple[str, str, str]]:
    """Memory of a window as text: device, category, size."""
    return [(row.device, row.category.replace("_", " "), size(row.size_bytes)) for row in operators.memory]


def module_rows(times: ModuleTimes) -> list[tuple[str, ...]]:
    """Modules as text, at most 20, those with the most time first.

    Columns: path, type, calls per step, forward and backward per step without submodules, their share in the time of
    all modules, forward and backward with submodules. A step is one that calls the model.
    """
    rows = sorted(zip(times.shares.tolist(), times.rows, strict=True), key=lambda each: -each[0])[:_MAX_OPERATORS]
    return [
        (
            row.module or "(the model)", row.type, f"{row.calls:,.4g}", _exact(row.self_forward_s),
            _exact(row.self_backward_s), "" if math.isnan(share) else percent(share), _exact(row.forward_s),
            _exact(row.backward_s),
        )
        for share, row in rows
    ]  # fmt: skip


def _columns(phases: Phases) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """At most :data:`_MAX_COLUMNS` columns of phases: the first step of each, and means over its steps."""
    begins = np.unique(np.linspace(0, len(phases), _MAX_COLUMNS + 1).astype(int)[:-1])
    counts = np.diff([*begins, len(phases)])
    return phases.steps[begins].astype(np.float64), np.add.reduceat(phases.values, begins) / counts[:, None]


def _averaged(
    times: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A series of at most four times :data:`_MAX_COLUMNS` points, each the mean of neighbours."""
    begins = np.unique(np.linspace(0, len(values), 4 * _MAX_COLUMNS + 1).astype(int)[:-1])
    counts = np.diff([*begins, len(values)])
    return times[begins], np.add.reduceat(values, begins) / counts
