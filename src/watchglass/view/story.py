"""The story of a run: what was learned, found and done at which step, as lanes over one axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from watchglass.errors import UnknownNameError
from watchglass.records import CauseCourse, Finding, Mode, Severity, Verdict, facts
from watchglass.run import step_times
from watchglass.view.figures import learning_rate_figure, loss_figure
from watchglass.view.pictures.colours import COLOURS, RUN_COLOURS
from watchglass.view.pictures.records import Axis, Bands, Line, Lines, Piece, Story, Strip, Strips
from watchglass.view.pictures.ticks import with_unit
from watchglass.view.series import Steps, line_of, training_step
from watchglass.view.text import duration
from watchglass.view.time_figures import phases_figure

if TYPE_CHECKING:
    from watchglass.run import Run

#: Most causes and most rules that are shown, and most pieces of a row.
_CAUSES, _RULES, _PIECES = 6, 12, 200
#: Most files of a step that are named.
_FILES = 3


def story_figure(run: Run, verdict: Verdict, courses: Sequence[CauseCourse] = (), steps: Steps = None) -> Story | None:
    """Loss, learning rate, causes, findings, phases, memory, evaluations, checkpoints, seams; None without a step.

    The line of a cause shows how likely it was by the findings that were known at each step.

    Args:
        run: The run.
        verdict: Its verdict.
        courses: The courses of its causes.
        steps: Only these training steps, half-open.
    """
    known = run.worker().numbers(Mode.TRAIN)
    if not len(known):
        return None
    first, last = (0, known.last) if steps is None else (steps[0], steps[1] - 1)
    room = max(0.5, 0.01 * (last - first))
    x = Axis("training step", low=first - room, high=last + room, whole=True)
    made: list[Lines | Bands | Strips | None] = [
        loss_figure(run, steps=steps),
        _causes(courses, first, last),
        _strips("Findings", x, _findings(run, verdict.findings)),
        learning_rate_figure(run, steps=steps),
        phases_figure(run, steps=steps),
        _memory(run, steps),
        _strips("Evaluations, checkpoints and attempts", x, _happened(run)),
    ]
    lanes = tuple(_plain(lane, x) for lane in made if lane is not None)
    return Story("What happened at which step", x, lanes) if lanes else None


def _plain(lane: Lines | Bands | Strips, x: Axis) -> Lines | Bands | Strips:
    """A lane without marks, which other lanes show; the unit is in its title, as lanes have no titles of axes."""
    if isinstance(lane, Strips):
        return replace(lane, x=x)
    return replace(lane, title=with_unit(lane.title, lane.y), x=x, marks=())


def _strips(title: str, x: Axis, rows: Iterable[Strip]) -> Strips | None:
    shown = tuple(row for row in rows if any(_within(piece, x) for piece in row.pieces))
    cut = (replace(row, pieces=tuple(piece for piece in row.pieces if _within(piece, x))) for row in shown)
    return Strips(title, x, tuple(cut)) if shown else None


def _within(piece: Piece, x: Axis) -> bool:
    assert x.low is not None
    assert x.high is not None
    return piece.end >= x.low and piece.begin <= x.high


def _causes(courses: Sequence[CauseCourse], first: int, last: int) -> Lines | None:
    """Lines with corners at the steps at which scores change, the likeliest cause first."""
    best = sorted(courses, key=lambda each: (-each.scores[-1], -max(each.scores)))[:_CAUSES]
    lines: list[Line] = []
    for course, colour in zip(best, RUN_COLOURS, strict=False):
        points: dict[int, float] = {}
        for begin, end, score in zip(course.steps, [*course.steps[1:], last + 1], course.scores, strict=True):
            # A score holds up to the step before the next one.
            shown = range(max(begin, first), min(end, last + 1))
            points |= {shown[0]: score, shown[-1]: score} if shown else {}
        if points:
            at, scores = np.array([*points], np.float64), np.array([*points.values()])
            lines.append(Line(course.title, at, scores, colour, dots=len(at) == 1))
    axis = Axis("score", low=0.0, high=1.0, percent=True)
    # One line has no legend.
    title = "Likely causes" if len(lines) > 1 else f"Likely cause: {lines[0].name}" if lines else ""
    return Lines(title, Axis("training step", whole=True), axis, tuple(lines)) if lines else None


def _findings(run: Run, findings: Iterable[Finding]) -> list[Strip]:
    """A row for each rule, the worst first."""
    stretches = {
        worker: run.stretches(Mode.EVAL, worker)
        for worker in {each.worker for each in findings}
        if worker in run.workers
    }
    found: dict[str, list[Piece]] = {}
    worst: dict[str, Severity] = {}
    for finding in findings:
        step = training_step(finding, stretches.get(finding.worker, ()))
        if step is None:
            continue
        end = finding.last_step if finding.mode is Mode.TRAIN else step
        found.setdefault(finding.rule, []).append(Piece(step, max(step, end), finding.message, finding.severity.value))
        worst[finding.rule] = max(
            worst.get(finding.rule, finding.severity), finding.severity, key=lambda each: each.rank
        )
    names = sorted(found, key=lambda name: (-worst[name].rank, found[name][0].begin))[:_RULES]
    return [Strip(name, tuple(sorted(found[name], key=lambda piece: piece.begin)[:_PIECES])) for name in names]


def _memory(run: Run, steps: Steps) -> Lines | None:
    """Memory of the run's processes at the steps during which it was sampled."""
    times = step_times(run.worker())
    train = times.rows["mode"] == Mode.TRAIN
    for stream in run.streams:
        try:
            samples = run.samples("processes.memory", stream=stream)
        except UnknownNameError:
            continue
        at = samples.time.astype(np.int64)
        place = np.searchsorted(times.end_ns[train], at)
        inside = (place < int(train.sum())) & np.isfinite(samples.values)
        if inside.sum() < 2:
            continue
        numbers = times.rows["step"][train][place[inside]].astype(np.int64)
        # Of several samples during one step the last.
        numbers, last = np.unique(numbers[::-1], return_index=True)
        values = samples.values[inside][::-1][last] / 1e9
        line = line_of("processes", (numbers, values), COLOURS["train"], steps=steps)
        return Lines("Memory", Axis("training step", whole=True), Axis("GB", low=0.0), (line,)) if len(line.x) else None
    return None


def _happened(run: Run) -> list[Strip]:
    evaluations = tuple(
        Piece(
            max(0, stretch.train_step), max(0, stretch.train_step), f"after step {max(0, stretch.train_step):,}", "info"
        )
        for stretch in run.stretches(Mode.EVAL)[:_PIECES]
    )
    seams = [Piece(seam.step, seam.step, str(seam), "warning") for seam in run.seams]
    # A run may begin with a checkpoint of another one; then there is no seam.
    begun = [
        Piece(fact.start_step, fact.start_step, f"continues a checkpoint of step {fact.start_step:,}", "info")
        for fact in run.facts(facts.Resumed)
        if fact.start_step and fact.start_step not in {seam.step for seam in run.seams}
    ]
    attempts = tuple(sorted([*begun, *seams], key=lambda piece: piece.begin))
    return [Strip("evaluations", evaluations), Strip("checkpoints", _saved(run)), Strip("attempts", attempts)]


def _saved(run: Run) -> tuple[Piece, ...]:
    """What the script saved, of all workers: one piece for each step after which it did."""
    found: dict[int, list[facts.SavedCheckpoint]] = {}
    for worker in run.workers:
        for saved in run.facts(facts.SavedCheckpoint, worker):
            found.setdefault(saved.step, []).append(saved)
    pieces: list[Piece] = []
    for step, of_step in sorted(found.items())[-_PIECES:]:
        files = list(dict.fromkeys(each.file for each in of_step if each.file))
        names = "".join(f", {name}" for name in files[:_FILES])
        names += f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
        parts = [
            word
            for word, has in (
                ("weights", any(each.weights for each in of_step)),
                ("optimizer state", any(each.optimizer for each in of_step)),
            )
            if has
        ]
        longest = duration(max(each.seconds for each in of_step))
        text = f"{' and '.join(parts)} saved after step {step:,}{names}; the longest write took {longest}"
        pieces.append(Piece(step, step, text, "info"))
    return tuple(pieces)
