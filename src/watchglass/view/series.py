"""Series and findings of a run as lines and marks of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from watchglass.records import Finding, Mode, Severity
from watchglass.view.pictures.pyramid import Pyramid
from watchglass.view.pictures.records import Line, Mark

if TYPE_CHECKING:
    from watchglass.run import Run
    from watchglass.tables import Stretch

#: A range of training steps, half-open; None for all.
Steps = tuple[int, int] | None
Series = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]

#: Pixels of a wide picture, and most marks in one.
_PIXELS, _MOST_MARKS = 600, 8


def line_of(name: str, series: Series, colour: str, *, dots: bool = False, steps: Steps = None) -> Line:
    """A series over steps, ascending; a long one by buckets with their extremes.

    Args:
        name: Its name.
        series: Its steps and values.
        colour: Its colour.
        dots: Whether each number is a dot.
        steps: Only these steps, half-open.
    """
    numbers, values = within(series, steps)
    pyramid = Pyramid()
    pyramid.append(numbers, values)
    rows = pyramid.within(int(numbers[0]), int(numbers[-1]), _PIXELS) if len(numbers) else pyramid.within(0, 0, 1)
    at = rows["step"].astype(np.float64)
    thinned = len(rows) < len(numbers)
    return Line(
        name, at, rows["last"], colour, dots=dots, low=rows["low"] if thinned else None,
        high=rows["high"] if thinned else None, missing=at[rows["broken"] > 0],
    )  # fmt: skip


def within(series: Series, steps: Steps) -> Series:
    """The part of a series within some steps."""
    if steps is None:
        return series
    begin, end = np.searchsorted(series[0], steps)
    return series[0][begin:end], series[1][begin:end]


def marks_of(run: Run, findings: Iterable[Finding], place: Callable[[int], float] = float) -> tuple[Mark, ...]:
    """The step at which each rule first found something of a severity; the most severe ones, in order.

    Args:
        run: The run of the findings.
        findings: Of all modes; those of evaluations are marked at the training step before.
        place: Where on the horizontal axis a training step is.
    """
    findings = list(findings)
    whose = {each.worker for each in findings if each.mode is not Mode.TRAIN}.intersection(run.workers)
    stretches = {worker: run.stretches(Mode.EVAL, worker) for worker in whose}
    first: dict[tuple[str, Severity], int] = {}
    for finding in findings:
        step = training_step(finding, stretches.get(finding.worker, ()))
        key = (finding.rule, finding.severity)
        if step is not None and step < first.get(key, step + 1):
            first[key] = step
    worst = sorted(first.items(), key=lambda item: (-item[0][1].rank, item[1]))[:_MOST_MARKS]
    return tuple(
        Mark(place(step), rule, severity.value) for (rule, severity), step in sorted(worst, key=lambda item: item[1])
    )


def training_step(finding: Finding, stretches: Iterable[Stretch]) -> int | None:
    """The training step at which a finding was made, by the run's evaluation stretches; None where that is unknown."""
    if finding.mode is Mode.TRAIN:
        return finding.step
    for stretch in stretches:
        if stretch.mode is finding.mode and stretch.first_step <= finding.step <= stretch.last_step:
            return max(0, stretch.train_step)
    return None
