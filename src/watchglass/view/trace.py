"""A run as a trace in Chrome's JSON format, which Perfetto and ``chrome://tracing`` open.

The format: "Trace Event Format",
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.records import PHASE_NAMES, Finding, Mode
from watchglass.run import Operators, StepTimes, step_times
from watchglass.version import __version__
from watchglass.view.output_file import check_output_path, write_whole
from watchglass.view.torch_trace import TorchTrace, TraceSlice, kept_traces

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most training steps of a trace: house. Perfetto opens some million events, and a step of a worker has up to eight.
MOST_STEPS = 20_000
#: Operators of a profiled window that are named: house.
_NAMED_OPERATORS = 20
#: Slices of PyTorch's profiler in a process of the trace: house.
_MOST_SLICES = 100_000
#: Most values of a metric, and most of its instances, such as cores: house.
_MOST_VALUES, _MOST_INSTANCES = 5_000, 16
#: The order in which phases are drawn: that of a step with one batch, which begins after the update of the one before.
_DRAWN = tuple(
    PHASE_NAMES.index(name) for name in ("other", "data", "prepare", "copy", "forward", "backward", "update", "compute")
)
#: Rows of a worker in the trace.
_ROWS = {Mode.TRAIN: 1, Mode.EVAL: 2, Mode.PREDICT: 3}
_PROFILED = 4
_ROW_NAMES = {Mode.TRAIN: "training steps", Mode.EVAL: "evaluation", Mode.PREDICT: "prediction"}

_Event = dict[str, Any]
_Times = npt.NDArray[np.int64]


def check_trace_path(path: str | os.PathLike[str], *, replace: bool = False) -> Path:
    """The path of a trace to be written, its folder made.

    Raises:
        RunExistsError: It exists, and ``replace`` is not given.
        InvalidValueError: It is a folder.
        StoreError: Its folder cannot be made or written.
    """
    return check_output_path(path, replace=replace, cure="watchglass trace --force", example="trace.json.gz")


def write_trace(
    run: Run,
    findings: Sequence[Finding],
    path: str | os.PathLike[str],
    *,
    steps: range | None = None,
    imported: Mapping[str, TorchTrace] | None = None,
    replace: bool = False,
) -> int:
    """Write the trace of a run and return its size in bytes; compressed if the path ends with ``.gz``.

    Args:
        run: The run.
        findings: Findings of rules, which become marks.
        path: The file; it appears whole or not at all.
        steps: Only these training steps, and what was between the first and the last; all if None.
        imported: Traces of PyTorch's profiler to show beside the run, by name.
        replace: Overwrite a file that is there.

    Raises:
        InvalidValueError: No step of the run is among them, there are more than :data:`MOST_STEPS`, or an imported
            trace is of another time.
        RunExistsError: The file exists, and ``replace`` is not given.
        StoreError: It cannot be written.
    """
    target = check_trace_path(path, replace=replace)
    text = json.dumps(
        trace_document(run, findings, steps=steps, imported=imported), allow_nan=False, separators=(",", ":")
    )
    data = text.encode()
    return write_whole(target, gzip.compress(data, mtime=0) if target.suffix == ".gz" else data, option="-o")


def trace_document(
    run: Run,
    findings: Sequence[Finding] = (),
    *,
    steps: range | None = None,
    imported: Mapping[str, TorchTrace] | None = None,
) -> dict[str, Any]:
    """The trace of a run as plain JSON values: ``traceEvents`` with times in microseconds since its first step.

    Each worker is a process, with a row for training and one for evaluations. A step contains its phases, whose lengths
    were measured. They are drawn in the order of a step with one batch; the phases of several micro-batches are added
    up. A further row has the profiled windows, with their operators of the most time. Where the run keeps PyTorch's
    trace of a window, each of its threads and streams is a row. Findings are instants, system metrics are counters.

    Args:
        run: The run.
        findings: Findings of rules.
        steps: Only these training steps, and what was between the first and the last; all if None.
        imported: Traces of PyTorch's profiler to show beside the run, by name.

    Raises:
        InvalidValueError: No step of the run is among them, there are more than :data:`MOST_STEPS`, or an imported
            trace is of another time.
        MemoryBudgetError: The kept traces of these steps take more memory than is left of the budget of this process.
    """
    times = {name: step_times(run.worker(name)) for name in run.workers}
    span = _span(run, times, steps)
    events: list[_Event] = []
    kept: dict[str, list[TorchTrace]] = {}  # until the end: one budget bounds the traces of all workers
    for process, (name, whole) in enumerate(times.items(), 1):
        shown = whole.between(*span)
        events += _process(process, name, shown)
        events += _steps(process, shown, span[0])
        windows = [each for each in run.operators(name) if len(_places(each, shown))]
        events += _windows(process, windows, shown, span[0])
        kept[name] = kept_traces(run, windows)
        events += _slices(process, [each for trace in kept[name] for each in trace.slices], span)
        # Of the first worker also those that concern no worker, but a machine.
        own = [each for each in findings if each.worker == name or (process == 1 and each.worker not in times)]
        events += _findings(process, own, shown, span[0])
    for process, stream in enumerate(run.streams, 1 + len(times)):
        events += _counters(run, process, stream, span)
    for process, (name, trace) in enumerate((imported or {}).items(), 1 + len(times) + len(run.streams)):
        if not any(_inside(each, span) for each in trace.slices):
            raise InvalidValueError(f"trace {name} is of another time than the steps of {run.location}")
        events.append(_named("process_name", process, 0, name))
        events += _slices(process, trace.slices, span)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"run": str(run.location), "watchglass": __version__, "begin_unix_ns": str(span[0])},
    }


def _span(run: Run, times: dict[str, StepTimes], steps: range | None) -> tuple[int, int]:
    """The time that a trace shows, over all workers: of all steps, or of some training steps."""
    begins, ends, most = [], [], 0
    for each in times.values():
        train = each.rows["mode"] == Mode.TRAIN
        chosen = np.ones(len(each), bool)
        if steps is not None:
            chosen = train & (each.rows["step"] >= steps.start) & (each.rows["step"] < steps.stop)
        most = max(most, int((chosen if steps is not None else train).sum()))
        if chosen.any():
            begins.append(int(each.begin_ns[chosen].min()))
            ends.append(int(each.end_ns[chosen].max()))
    if not begins:
        if steps is None:
            raise InvalidValueError(f"{run.location} has no complete step yet, so a trace of it would be empty")
        known = run.steps()
        has = f"it has {known[0]} to {known[-1]}" if known else "it has none"
        raise InvalidValueError(f"{run.location} has no training step of {steps.start}:{steps.stop}; {has}")
    if most > MOST_STEPS:
        raise InvalidValueError(
            f"a trace has at most {MOST_STEPS:,} training steps but got {most:,}; choose some with --steps START:STOP"
        )
    return min(begins), max(ends)


def _process(process: int, name: str, shown: StepTimes) -> Iterator[_Event]:
    """The names of a worker and of its rows."""
    yield _named("process_name", process, 0, name)
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    for mode, row in _ROWS.items():
        if (shown.rows["mode"] == mode).any():
            yield _named("thread_name", process, row, _ROW_NAMES[mode])


def _named(what: str, process: int, row: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}


def _steps(process: int, shown: StepTimes, origin_ns: int) -> Iterator[_Event]:
    """Steps with their phases. Slices of a row never overlap, as the format demands."""
    for mode, row in _ROWS.items():
        own = np.flatnonzero(shown.rows["mode"] == mode)
        end = shown.end_ns[own] - origin_ns
        # Phases are kept in 32 bits, so their sum may be some nanoseconds longer than the time since the step before.
        begin = np.maximum(shown.begin_ns[own] - origin_ns, np.concatenate([[0], end[:-1]])[: len(end)])
        spent = np.rint(1e9 * np.nan_to_num(shown.phases_s[own][:, _DRAWN])).astype(np.int64)
        ends = np.maximum(end[:, None] - (spent.sum(1)[:, None] - np.cumsum(spent, axis=1)), begin[:, None])
        begins = np.maximum(ends - spent, begin[:, None])
        for place, step in enumerate(shown.rows["step"][own].tolist()):
            words = f"step {step}" if mode is Mode.TRAIN else f"{mode.name.lower()} {step}"
            numbers = {"step": step, "global_step": int(shown.rows["number"][own[place]])}
            yield _slice(words, "step", process, row, int(begin[place]), int(end[place]), numbers)
            for phase, since, until in zip(_DRAWN, begins[place].tolist(), ends[place].tolist(), strict=True):
                if until > since:
                    yield _slice(PHASE_NAMES[phase], "phase", process, row, since, until, {"step": step})


def _slice(name: str, category: str, process: int, row: int, begin: int, end: int, numbers: dict[str, Any]) -> _Event:
    return {
        "ph": "X", "name": name, "cat": category, "pid": process, "tid": row,
        "ts": begin / 1000, "dur": (end - begin) / 1000, "args": numbers,
    }  # fmt: skip


def _windows(process: int, windows: Sequence[Operators], shown: StepTimes, origin_ns: int) -> Iterator[_Event]:
    """Profiled windows, with the operators that took the most time and the cost of the window."""
    if windows:
        yield _named("thread_name", process, _PROFILED, "profiled operators")
    for window in windows:
        at = _places(window, shown)
        begin, end = int(shown.begin_ns[at].min()) - origin_ns, int(shown.end_ns[at].max()) - origin_ns
        words = f"operators of steps {window.steps.start}:{window.steps.stop}"
        cost = {name: seconds for name, seconds in asdict(window.cost).items() if np.isfinite(seconds)}
        own = {row.name: max(row.self_cpu_s, row.self_device_s) for row in reversed(window.rows[:_NAMED_OPERATORS])}
        numbers = {"self_s": dict(reversed(own.items())), "cost": cost}
        yield _slice(words, "operators", process, _PROFILED, max(begin, 0), end, numbers)


def _places(window: Operators, shown: StepTimes) -> npt.NDArray[np.intp]:
    """Where the steps of a window are among those that are shown."""
    steps = shown.rows["step"]
    train = shown.rows["mode"] == Mode.TRAIN
    return np.flatnonzero(train & (steps >= window.steps.start) & (steps < window.steps.stop))


def _inside(each: TraceSlice, span: tuple[int, int]) -> bool:
    return each.begin_ns < span[1] and each.begin_ns + each.length_ns > span[0]


def _slices(process: int, slices: Sequence[TraceSlice], span: tuple[int, int]) -> Iterator[_Event]:
    """Slices of the framework's profiler, a row for each thread and stream; of too many the longest."""
    shown = [each for each in slices if _inside(each, span)]
    if len(shown) > _MOST_SLICES:
        least_ns = sorted((each.length_ns for each in shown), reverse=True)[_MOST_SLICES]
        shown = [each for each in shown if each.length_ns > least_ns]
    rows: dict[str, int] = {}
    for each in shown:
        if each.place not in rows:
            rows[each.place] = _PROFILED + 1 + len(rows)
            yield _named("thread_name", process, rows[each.place], f"profiler {each.place}")
        begin = each.begin_ns - span[0]
        yield _slice(each.name, each.category, process, rows[each.place], begin, begin + each.length_ns, {})


def _findings(process: int, findings: Sequence[Finding], shown: StepTimes, origin_ns: int) -> Iterator[_Event]:
    """Marks at the ends of the steps at which findings were first seen."""
    for finding in findings:
        at = np.flatnonzero((shown.rows["mode"] == finding.mode) & (shown.rows["step"] == finding.step))
        if len(at):
            yield {
                "ph": "i", "s": "p", "name": f"{finding.rule} ({finding.severity.value})", "cat": "finding",
                "pid": process, "tid": _ROWS[finding.mode], "ts": int(shown.end_ns[at[0]] - origin_ns) / 1000,
                "args": {"message": finding.message, "step": finding.step, "last_step": finding.last_step},
            }  # fmt: skip


def _counters(run: Run, process: int, stream: str, span: tuple[int, int]) -> Iterator[_Event]:
    """System metrics of a machine. Of long courses evenly spaced values are left."""
    start, stop = (np.datetime64(each, "ns") for each in span)
    named = False
    for row in run.samples().rows():
        name = row["metric"]
        if row["stream"] != stream or name.startswith("process.") or row["instances"] > _MOST_INSTANCES:
            continue
        try:
            samples = run.samples(name, stream=stream, start=start, stop=stop)
        except UnknownNameError:  # none in that time
            continue
        if not len(samples):
            continue
        if not named:
            named = True
            yield _named("process_name", process, 0, stream)
        every = -(-len(samples) // _MOST_VALUES)
        values = samples.values.reshape(len(samples), -1)[::every]
        moments: _Times = (samples.time[::every] - start).astype("timedelta64[ns]").astype(np.int64)
        counter = f"{name} ({samples.unit})" if samples.unit else name
        for moment, known in zip(moments.tolist(), values.tolist(), strict=True):
            columns = zip(samples.instances or ("value",), known, strict=True)
            numbers = {instance: value for instance, value in columns if np.isfinite(value)}
            if numbers:
                yield {
                    "ph": "C", "name": counter, "cat": "system", "pid": process, "tid": 0,
                    "ts": moment / 1000, "args": numbers,
                }  # fmt: skip
