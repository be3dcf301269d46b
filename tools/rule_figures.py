"""The figure of a rule: what it reads of its sick run and of its healthy twin, with the findings, as a small SVG."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import watchglass
from example_runs import ExampleRun, example_run
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import PHASE_NAMES, Finding, Mode, Severity
from watchglass.rules import Rule, build_rule
from watchglass.run import Run, step_times
from watchglass.testing.rule_suite import shown
from watchglass.view.pictures.colours import COLOURS

Points = Sequence[tuple[float, float]]

_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP, _GAP = 680, 150, 64, 16, 30, 44
_GREY, _MOST_POINTS, _CHARACTER = "#888888", 200, 6.2
_BLUE_ORANGE = (COLOURS["train"], COLOURS["eval"])
#: Beginnings of the names of metrics in percent.
_PERCENT = ("cpu.utilization", "cpu.iowait", "gpu.")
#: Ranges of more than this many powers of ten have a logarithmic axis.
_DECADES = 2.0


class _Line(NamedTuple):
    name: str
    points: Points
    colour: str
    dots: bool = False


class _Panel(NamedTuple):
    """One diagram: its lines over steps, or over the seconds of a run, and a limit or NaN."""

    title: str
    lines: tuple[_Line, ...]
    limit: float
    in_seconds: bool = False

    @property
    def last(self) -> float:
        """The end of its axis."""
        return max([1.0, *(x for line in self.lines for x, _ in line.points)])


class _Mark(NamedTuple):
    """Where a finding is drawn (NaN for nowhere), when it was made, and the places in code that it names."""

    x: float
    when: str
    places: tuple[str, ...] = ()


def draw(rule: str) -> str:
    """The figure of a rule as SVG; its ``<desc>`` is the sentence of the first finding, and when it was made.

    The sick run and its twin are trained again. The upper diagrams have the losses, or what :func:`_of_time` shows; the
    lower one, if the rule measures something at several steps, has the values of its findings and the limit.
    """
    with tempfile.TemporaryDirectory() as folder:
        sick, healthy = (example_run(rule, Path(folder, name), sick=name == "sick") for name in ("sick", "healthy"))
        found = _findings(sick)
        runs = (watchglass.open_run(sick.path), watchglass.open_run(healthy.path))
        first = found[0]
        at = [(float(_step(runs[0], each)), each.value) for each in found]
        panels = _of_time(sick, first, runs) or [_Panel("loss", _lines(runs, _losses), math.nan)]
        mark = _Mark(at[0][0], f"Step {first.step}")
        if panels[0].in_seconds:
            mark = _mark_of_silence(runs[0], first) if _ticks(sick.rule) else _Mark(math.nan, _when(first))
    same = [(step, value) for (step, value), each in zip(at, found, strict=True) if _alike(each, first)]
    measured = [(step, value) for step, value in same if value is not None and math.isfinite(value)]
    if len({step for step, _ in measured}) > 1 and not panels[0].in_seconds:
        limit = math.nan if first.limit is None else float(first.limit)
        line = _Line(f"value of the findings of {rule}", measured, COLOURS[first.severity.value], dots=True)
        panels.append(_Panel("measured value", (line,), limit))
    return _svg(rule, first, mark, [panel for panel in panels if panel.lines])


def _findings(run: ExampleRun) -> list[Finding]:
    """Each finding at each step at which the rule reports it; those above `info`, if there are any."""
    found, _ = shown(lambda: build_rule(run.rule), run.path)
    # A rule that compares runs, or that learns from the order of events, is shown less than an evaluator shows it.
    found = found or list(replay(str(run.path), [run.rule]).findings)
    serious = [each for each in found if each.severity is not Severity.INFO] or found
    return sorted(serious, key=lambda each: each.global_step)


def _alike(one: Finding, other: Finding) -> bool:
    """Whether two findings measure the same."""
    return (one.severity, one.tensors[:1], one.worker) == (other.severity, other.tensors[:1], other.worker)


def _lines(
    runs: Sequence[Run], courses: Callable[[Run], Sequence[Points]], names: Sequence[str] = ("sick run",)
) -> tuple[_Line, ...]:
    """Lines of the sick run with these names, and of its twin: those further ones have none."""
    found = []
    for run, labels, colours in zip(runs, (names, ["healthy twin"]), (_BLUE_ORANGE, [_GREY]), strict=True):
        for number, points in enumerate(courses(run)):
            name = labels[number] if number < len(labels) else ""
            found.append(_Line(name, points, colours[min(number, len(labels) - 1) % len(colours)]))
    return tuple(line for line in found if line.points)


def _losses(run: Run) -> Sequence[Points]:
    if "loss" not in run.tensor_names():
        return ()
    return [_thinned(*run.scalars("loss", Mode.TRAIN))]


def _of_time(sick: ExampleRun, first: Finding, runs: Sequence[Run]) -> list[_Panel]:
    """The diagrams of a rule about time, by what it reads; [] for another one.

    Of a rule about silences the time without a step; of one that needs percentages of a machine these, a line for each
    instance; of one that needs phases the times of steps. Of other rules whose runs are made of numbers, or that need
    nothing, when the steps ended.
    """
    rule = build_rule(sick.rule)
    needed = [name for need in rule.needs if not need.optional for name in need.metrics]
    metrics = [name for name in needed if name.startswith(_PERCENT)]
    if _ticks(sick.rule):
        return [_Panel("seconds without a step", _lines(runs, _silences), float(first.limit or math.nan), True)]
    if metrics:
        courses = {name: functools.partial(_course, metric=name) for name in metrics}
        return [_Panel(f"{name} in percent", _lines(runs, each), math.nan, True) for name, each in courses.items()]
    if any(need.phases and not need.optional for need in rule.needs):
        ranks = runs[0].workers
        alone = len(ranks) == 1
        title = "milliseconds of each step" if alone else "ms of each step outside backward and update"
        lines = _lines(runs, _milliseconds, ("sick run",) if alone else ranks)
        return [_Panel(title, lines, math.nan)]
    if sick.trained and rule.needs:
        return []
    return [_Panel("training steps so far", _lines(runs, _progress), math.nan, True)]


def _ticks(rule: RuleSpec) -> bool:
    return type(build_rule(rule)).tick is not Rule.tick


def _when(finding: Finding) -> str:
    return "Before the first step" if finding.step < 0 else "Samples"


def _silences(run: Run) -> Sequence[Points]:
    """The seconds since the step before, which grow until a step ends, over the seconds since the first step."""
    ends = _ends_s(run)
    rises = [((begin, 0.0), (end, end - begin)) for begin, end in pairwise(ends)]
    return [[point for rise in rises for point in rise] + [(ends[-1], 0.0)]]


def _mark_of_silence(run: Run, finding: Finding) -> _Mark:
    """When a silence was reported, and where the script stood then."""
    x = _ends_s(run)[finding.step] + float(finding.value or 0.0)
    return _Mark(x, f"After step {finding.step}", tuple(finding.evidence.get("places", {}).values()))


def _ends_s(run: Run) -> list[float]:
    """The end of each training step, in seconds since that of the first one."""
    ends = step_times(run.worker()).end_ns
    seconds: list[float] = ((ends - ends[0]) / 1e9).tolist()
    return seconds


def _milliseconds(run: Run) -> Sequence[Points]:
    """The time of each step; of ranks, without the phases in which they wait for each other."""
    phases = [run.phases(worker=worker) for worker in run.workers]
    own = ["data", "prepare", "forward", "other"] if len(phases) > 1 else PHASE_NAMES
    return [_thinned(each.steps, 1e3 * np.sum([each[name] for name in own], axis=0)) for each in phases]


def _thinned(at: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> Points:
    """At most about 200 points: of each stretch the lowest, the highest and one that is not finite."""
    keep = {0, len(at) - 1} if len(at) > _MOST_POINTS else set(range(len(at)))
    for begin, end in pairwise(np.linspace(0, len(at), _MOST_POINTS // 3 + 1).astype(int).tolist()):
        finite = begin + np.flatnonzero(np.isfinite(values[begin:end]))
        if len(finite):
            keep |= {int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()])}
        if len(finite) < end - begin:
            keep.add(begin + int(np.flatnonzero(~np.isfinite(values[begin:end]))[0]))
    places = sorted(keep)
    return list(zip(at[places].astype(float).tolist(), values[places].astype(float).tolist(), strict=True))


def _course(run: Run, metric: str) -> Sequence[Points]:
    if metric not in _sampled(run):
        return []
    samples = run.samples(metric)
    seconds = (samples.time_ns - samples.time_ns[0]) / 1e9
    return [_thinned(seconds, values) for values in samples.values.reshape(len(samples), -1).T]


def _sampled(run: Run) -> list[str]:
    """Names of the metrics that a run has."""
    return [str(name) for name in run.samples().to_arrow()["metric"].to_pylist()]


def _progress(run: Run) -> Sequence[Points]:
    """Steps over the seconds since the first sample, or the first step."""
    times = step_times(run.worker())
    ends = times.end_ns.astype(np.float64)
    sampled = [
        run.samples(name).time[:1].astype(np.int64) for name in run.samples().to_arrow()["metric"].to_pylist()[:1]
    ]
    begin = min([float(times.begin_ns[0]), *(float(each[0]) for each in sampled)])
    return [[(0.0, 0.0), *(((end - begin) / 1e9, number) for number, end in enumerate(ends.tolist(), 1))]]


def _step(run: Run, finding: Finding) -> int:
    """The training step at which a finding was made."""
    for stretch in run.stretches(Mode.EVAL) if finding.mode is Mode.EVAL else ():
        if stretch.first_step <= finding.step <= stretch.last_step:
            return max(0, stretch.train_step)
    return max(0, finding.step)


def _svg(rule: str, first: Finding, mark: _Mark, panels: Sequence[_Panel]) -> str:
    last = max([0.0 if math.isnan(mark.x) else mark.x, *(panel.last for panel in panels)])
    height = _TOP + len(panels) * (_PANEL + _GAP)

    def across(x: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / last

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(rule)} on a sick run</title>",
        f"<desc>{mark.when}: {escape(first.message, quote=False)}</desc>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _TOP + number * (_PANEL + _GAP), across, last)
    if math.isnan(mark.x):  # such a finding is about the course as a whole
        return "\n".join([*parts, "</svg>"]) + "\n"
    colour, x = COLOURS[first.severity.value], across(mark.x)
    bottom = height - _GAP
    parts.append(
        f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" stroke-dasharray="3 3" '
        'stroke-width="1.5"/>'
    )
    labels = (*mark.places, f"{rule} ({first.severity.value})")
    beside = 'text-anchor="end"' if x + _CHARACTER * max(map(len, labels)) > _WIDTH else ""
    x += -4 if beside else 4
    for line, label in enumerate(reversed(labels)):
        parts.append(
            f'<text x="{x:.1f}" y="{_TOP + _PANEL - 6 - 16 * line}" fill="{colour}" {beside}>{escape(label)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: _Panel, top: float, across: Callable[[float], float], last: float) -> Iterable[str]:
    whole = [0.0, 100.0] if panel.title.endswith(" in percent") else []
    values = np.array([y for line in panel.lines for _, y in line.points] + [panel.limit, *whole])
    scale = _Scale.of(values[np.isfinite(values)], top)
    yield f'<text x="{_LEFT}" y="{top - 10}" font-weight="bold">{panel.title}</text>'
    x: float = _WIDTH - _RIGHT
    for line in reversed(panel.lines):
        yield f'<text x="{x:.0f}" y="{top - 10}" fill="{line.colour}" text-anchor="end">{escape(line.name)}</text>'
        x -= (_CHARACTER * len(line.name) + 20) if line.name else 0
    for value in scale.ticks():
        y = scale.down(value)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{value:.3g}</text>'
    for step in _round_numbers(0.0, last):
        zero = "0 s" if panel.in_seconds else "step 0"
        label = zero if step == 0 else f"{step:g}"
        yield (
            f'<text x="{across(step):.1f}" y="{top + _PANEL + 16}" text-anchor="middle" fill="#555555">{label}</text>'
        )
    if math.isfinite(panel.limit):
        y = scale.down(panel.limit)
        right = _WIDTH - _RIGHT
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#333333" stroke-dasharray="6 4"/>'
        yield f'<text x="{right}" y="{y - 4:.1f}" text-anchor="end" fill="#333333">limit {panel.limit:.3g}</text>'
    for line in reversed(panel.lines):
        yield from _drawn(line, scale, across)


def _drawn(line: _Line, scale: _Scale, across: Callable[[float], float]) -> Iterable[str]:
    """A line with a gap, and crosses at the upper edge, where values are not finite."""
    pieces: list[list[str]] = [[]]
    for x, y in line.points:
        if math.isfinite(y) and (not scale.logarithmic or y > 0):
            pieces[-1].append(f"{across(x):.1f},{scale.down(y):.1f}")
            continue
        pieces.append([])
        if not math.isfinite(y):
            place = f'x="{across(x):.1f}" y="{scale.top + 8:.1f}"'
            yield f'<text {place} text-anchor="middle" fill="{line.colour}">x</text>'
    for piece in filter(None, pieces):
        if line.dots:
            yield from (
                f'<circle cx="{at.split(",")[0]}" cy="{at.split(",")[1]}" r="3" fill="{line.colour}"/>' for at in piece
            )
        else:
            corners = [
                at
                for n, at in enumerate(piece)
                if len({each.split(",")[1] for each in piece[max(0, n - 1) : n + 2]}) > 1
            ]
            ends = dict.fromkeys([piece[0], *corners, piece[-1]])
            yield f'<polyline points="{" ".join(ends)}" fill="none" stroke="{line.colour}" stroke-width="1.6"/>'


class _Scale(NamedTuple):
    """From values to places: linear, or logarithmic for positive values of very different sizes."""

    low: float
    high: float
    top: float
    logarithmic: bool

    @classmethod
    def of(cls, values: npt.NDArray[np.float64], top: float) -> _Scale:
        if not len(values):
            return cls(0.0, 1.0, top, False)
        low, high = float(values.min()), float(values.max())
        if low > 0 and math.log10(high / low) > _DECADES:
            return cls(math.log10(low) - 0.1, math.log10(high) + 0.1, top, True)
        room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - room, high + room, top, False)

    def down(self, value: float) -> float:
        place = math.log10(max(value, 10.0**self.low)) if self.logarithmic else value
        return self.top + _PANEL * (self.high - place) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = math.ceil(self.low), math.floor(self.high)
            return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 4))]
        return _round_numbers(self.low, self.high)


def _round_numbers(low: float, high: float) -> list[float]:
    """Three to seven round numbers of a range."""
    third = (high - low) / 3
    unit = 10.0 ** math.floor(math.log10(third))
    step = max(unit * factor for factor in (1, 2, 5) if unit * factor <= third)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
