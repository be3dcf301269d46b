"""The course of a run over its attempts: the steps of each attempt that count, and the seams between attempts.

A run that is killed and resumed from a checkpoint gets a new attempt, whose TRAIN steps continue: an attempt that
resumes after 500 updates begins with step 500. It replaces steps of earlier attempts from there on. The course has each
step once, from the newest attempt; replaced steps stay readable by attempt.

The fact ``resumed`` and the steps of an attempt show its first step. An attempt whose first step is unknown counts from
0; then its first captured weights are compared with those of earlier attempts. Without a match its own numbers count:
it is a restart, and replaces everything before it.

Use::

    lineage = trace({attempt: tables of its worker with the lowest rank})
    lineage.parts                       # TRAIN steps: attempt, start, stop, shift, in order
    lineage.seams                       # the seams between attempts, each as a sentence by str()
    lineage.of(Mode.EVAL, tables)       # the same for evaluations of one worker

A step ``n`` of a part is the attempt's own mode step ``n - part.shift``. All functions here are pure. They read only
facts and ends of steps, and the statistics of weights where a first step is unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STEPS, Fact, Mode, Role, count, facts as declared, read_facts
from watchglass.store import dtype_of
from watchglass.tables import Selection, WorkerTables

#: Sources of the step in a ``resumed`` fact; other ones, of later releases, count as "unknown".
SOURCES = ("optimizer", "scheduler", "booster", "given")
#: Steps that are read together in search of the first that has weights.
_WINDOW = 256

#: Statistics of one tensor: TRAIN steps int64[n], ascending, and rows float64[n, 11].
Rows = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True)
class Start:
    """The first step of one attempt, and its end so far."""

    first: int  #: Its first TRAIN step, in its own numbers.
    end: int  #: One more than the last TRAIN step that it ended, in its own numbers; ``first`` where it has ended none.
    #: The source of its first step: one of :data:`SOURCES`, ``"weights"`` for a match of statistics, ``"unknown"``, or
    #: "" for the first attempt of a run.
    source: str = ""
    shift: int = 0  #: The number to add to its own numbers for those of the course.


@dataclass(frozen=True)
class StepRange:
    """Steps of one mode that count, of one attempt."""

    attempt: int  #: The attempt.
    start: int  #: The attempt's first step in the course.
    stop: int | None  #: One more than its last step in the course; None for the newest attempt, which may continue.
    shift: int = 0  #: The number to add to the attempt's own mode steps.


@dataclass(frozen=True)
class Seam:
    """The seam between an attempt and the one that it continues.

    Attributes:
        attempt: The newer attempt.
        step: Its first TRAIN step in the course.
        source: The source of this step, see :class:`Start`.
        previous: The attempt whose steps come before; for a restart the newest attempt that it replaces.
        replaced: The number of earlier steps, at or beyond ``step``, that it replaces.
        missing: The number of steps before ``step`` that no attempt recorded.
    """

    attempt: int
    step: int
    source: str
    previous: int
    replaced: int = 0
    missing: int = 0

    def __str__(self) -> str:
        known = f"continues at step {self.step}" if self.step else "begins again at step 0"
        if self.source == "unknown":
            text = f"attempt {self.attempt} {known}"
            if not self.step:
                text += ", by its own count: where it was resumed is unknown"
        else:
            how = {"given": "as given", "weights": "the weights are the same"}.get(self.source, f"by the {self.source}")
            text = f"attempt {self.attempt} {known} ({how})"
        if self.replaced:
            text += f"; it replaces {count(self.replaced, 'step')} that were made before"
        if self.missing:
            text += f"; {count(self.missing, 'step')} before it were never recorded"
        return text


@dataclass(frozen=True)
class Lineage:
    """The course of one run."""

    parts: tuple[StepRange, ...]  #: TRAIN steps that count, in order.
    seams: tuple[Seam, ...]  #: The seams between attempts, in the order of attempts.

    def of(self, mode: Mode, tables: Mapping[int, WorkerTables]) -> tuple[StepRange, ...]:
        """Steps of a mode that count; see :func:`evaluations` for the numbers of EVAL and PREDICT steps.

        Args:
            mode: TRAIN, EVAL or PREDICT.
            tables: Tables of one worker, by attempt; needed for EVAL and PREDICT only.
        """
        if mode is Mode.TRAIN:
            return self.parts
        return tuple(evaluations(self.parts, {a: t.steps.log.latest for a, t in tables.items()}, mode))


def trace(tables: Mapping[int, WorkerTables], matches: MutableMapping[int, int | None] | None = None) -> Lineage:
    """The course over attempts.

    Args:
        tables: For each attempt the tables of its worker with the lowest rank: ranks may differ where one was lost.
        matches: Earlier matches of weights, by attempt; this function adds to it. A caller keeps it while the run
            grows, so that weights are compared once.
    """
    known = matches if matches is not None else {}
    starts: dict[int, Start] = {}
    for attempt in sorted(tables):
        start = start_of(tables[attempt].facts(-1), tables[attempt].steps.trained, attempt)
        if start is None:
            continue
        if start.source == "unknown" and not start.first:
            if attempt not in known:
                _match(tables, starts, attempt, known)
            shift = known.get(attempt)
            if shift is not None:
                start = replace(start, shift=shift, source="weights")
        starts[attempt] = start
    parts, found = join(starts)
    return Lineage(tuple(parts), tuple(found))


def start_of(facts: Iterable[Fact], trained: tuple[int, int] | None, attempt: int) -> Start | None:
    """The start of an attempt; None for one that has ended no TRAIN step: it has replaced nothing yet.

    Args:
        facts: Facts of the run, from one worker.
        trained: The first and the last TRAIN step that this worker ended; None for none.
        attempt: Its number: attempt 0 begins the run, unless a fact shows another step.
    """
    if trained is None:
        return None
    first, source = trained[0], "unknown" if attempt else ""
    for resumed in read_facts(facts, declared.Resumed):
        if resumed.start_step is not None and 0 <= resumed.start_step <= first:
            # The recorder may have dropped steps after it, never before it.
            first, source = resumed.start_step, resumed.source if resumed.source in SOURCES else "unknown"
    return Start(first, trained[1] + 1, source)


def join(starts: Mapping[int, Start]) -> tuple[list[StepRange], list[Seam]]:
    """The TRAIN steps that count, in order, each from the newest attempt; and the seams between attempts.

    An attempt has a seam also where none of its steps counts any more; the first attempt has none.
    """
    parts: list[StepRange] = []
    found: list[Seam] = []
    for attempt in sorted(starts):
        start = starts[attempt]
        first = start.first + start.shift
        previous = parts[-1].attempt if parts else attempt
        replaced = missing = 0
        while parts:
            last = parts.pop()
            # The newest part ends with its attempt, the others at their seams.
            stop = starts[last.attempt].end + last.shift if last.stop is None else last.stop
            replaced += max(0, stop - max(first, last.start))
            if last.start < first:
                previous, missing = last.attempt, max(0, first - stop)
                parts.append(replace(last, stop=min(stop, first)))
                break
        if previous != attempt:
            found.append(Seam(attempt, first, start.source, previous, replaced, missing))
        parts.append(StepRange(attempt, first, None, start.shift))
    return parts, found


def evaluations(parts: Iterable[StepRange], ends: Mapping[int, NDArray[Any]], mode: Mode) -> list[StepRange]:
    """The EVAL or PREDICT steps that count, in order.

    An evaluation belongs to the TRAIN step before it: evaluations after a replaced step are replaced as well. All
    others count, also where a resumed attempt evaluates once more before its first update. No attempt knows the number
    of evaluations before it, so their numbers in the course continue those of the previous attempt, without a gap.

    Args:
        parts: The TRAIN steps that count.
        ends: One worker's steps by attempt, as rows of :data:`~watchglass.records.STEPS`.
        mode: EVAL or PREDICT.
    """
    found: list[StepRange] = []
    next_step = 0
    for part in parts:
        if part.stop is None:
            found.append(StepRange(part.attempt, next_step, None, next_step))
            continue
        own = ends.get(part.attempt, np.empty(0, dtype_of(STEPS)))
        own = own[own["mode"] == mode]
        replaced = own["mode_step"][own["train_step"] + part.shift >= part.stop]
        stop = int(replaced.min()) if len(replaced) else int(own["mode_step"].max()) + 1 if len(own) else 0
        found.append(StepRange(part.attempt, next_step, next_step + stop, next_step))
        next_step += stop
    return found


def matching_step(first: Mapping[str, NDArray[np.float64]], history: Callable[[str], Rows | None]) -> int | None:
    """The step of an earlier attempt whose weights equal the first captured weights of a newer attempt.

    Every column of every tensor must be equal, bit for bit. Weights are read before the update of their step, so a
    match shows that both steps began with the same weights: the newer attempt's step *is* that step. Several steps in a
    row may have the same weights (a learning rate of 0, updates that a scaler skipped): then the first of them counts.
    Where steps with other weights lie between them, the step is unknown.

    Args:
        first: Statistics float64[11] of the newer attempt's weights, by name.
        history: Returns the rows of a weight in the earlier attempt; None where it has no such weight. Called once for
            each weight, one after another, so that only one is in memory.

    Returns:
        The step that equals the newer attempt's first captured step; None where there is none.
    """
    captured: NDArray[np.int64] | None = None
    same: NDArray[np.int64] | None = None
    for name, row in first.items():
        found = history(name)
        if found is None:
            return None
        steps, values = found
        alike = steps[(_bits(values) == _bits(row[None])).all(axis=1)]
        captured = steps if captured is None else np.intersect1d(captured, steps)
        same = alike if same is None else np.intersect1d(same, alike)
        if not len(same):
            return None
    if captured is None or same is None:
        return None
    places = np.searchsorted(captured, same)
    return int(same[0]) if places[-1] - places[0] == len(places) - 1 else None


def _match(
    tables: Mapping[int, WorkerTables],
    starts: Mapping[int, Start],
    attempt: int,
    known: MutableMapping[int, int | None],
) -> None:
    first = _first_weights(tables[attempt])
    if first is None:
        return  # not captured yet
    own, weights = first
    known[attempt] = None
    for earlier in sorted(starts, reverse=True):
        step = matching_step(weights, functools.partial(_history, tables[earlier]))
        if step is not None and step + starts[earlier].shift >= own:
            known[attempt] = step + starts[earlier].shift - own
            return


def _first_weights(tables: WorkerTables) -> tuple[int, dict[str, NDArray[np.float64]]] | None:
    """The first TRAIN step whose weights were captured, and their statistics by name; None where there is none."""
    rows = (*tables.catalog.select(Selection(Role.WEIGHT)), *tables.catalog.select(Selection(Role.BIAS)))
    names = {row.tensor_id: row.name for row in rows}
    if not names:
        return None
    trained = _trained(tables)
    for start in range(0, len(trained), _WINDOW):
        window = dict(trained[["global_step", "mode_step"]][start : start + _WINDOW].tolist())
        batch = tables.statistics.read(tensor_ids=names, global_steps=(min(window), max(window) + 1))
        steps = [step for step in np.unique(batch.global_step).tolist() if step in window]
        if steps:
            at = batch.global_step == steps[0]
            found = zip(batch.tensor_id[at].tolist(), batch.values[at], strict=True)
            return window[steps[0]], {names[tensor_id]: values for tensor_id, values in found}
    return None


def _history(tables: WorkerTables, name: str) -> Rows | None:
    """Statistics of a tensor at TRAIN steps."""
    row = tables.catalog.by_name(name)
    if row is None:
        return None
    global_steps, values = tables.statistics.of_tensor(row.tensor_id)[:2]
    trained = _trained(tables)
    _, at, index = np.intersect1d(trained["global_step"], global_steps, assume_unique=True, return_indices=True)
    return trained["mode_step"][at].astype(np.int64), values[index]


def _trained(tables: WorkerTables) -> NDArray[Any]:
    """The TRAIN steps of an attempt by global step."""
    steps = tables.steps.log.latest
    return steps[np.flatnonzero(steps["mode"] == Mode.TRAIN)]


def _bits(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    # NaN equals NaN.
    return np.ascontiguousarray(values, np.float64).view(np.uint64)
