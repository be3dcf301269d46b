"""The results of each model of a run: its steps, its last losses, its evaluations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from watchglass.records import (
    ExaminedSteps,
    Mode,
    ModelSummary,
    Role,
    TensorInfo,
    facts,
    model_name,
    read_facts,
    series_name,
)  # fmt: skip
from watchglass.run.run_records import RunRecords
from watchglass.tables import SAME_LOSS, SAME_LOSS_NEAR_ZERO, THINNED, Stretch

if TYPE_CHECKING:
    from watchglass.run.worker import Worker


def leaders_of(run: RunRecords) -> tuple[str | None, ...]:
    """Workers that represent the run: each that trains separately, and the first of those that train together.

    ``(None,)``, the first worker, where there is only one.
    """
    alone = {name: run.worker(name).trains_alone for name in run.workers} if len(run.workers) > 1 else {}
    together = next((name for name, by_itself in alone.items() if not by_itself), None)
    found = tuple(name for name, by_itself in alone.items() if by_itself or name == together)
    return found if len(found) > 1 else (None,)


def count_steps(run: RunRecords, mode: Mode) -> int:
    """Number of steps of a mode; for workers that train separately, the sum over all of them."""
    return sum(count_steps_of(run.worker(name), mode) for name in leaders_of(run))


def count_steps_of(worker: Worker, mode: Mode) -> int:
    """Number of steps of a mode of one worker, also of those too short to record each."""
    return int(_counted(worker, [*worker.numbers(mode)], mode).sum())


def _counted(worker: Worker, numbers: Sequence[int], mode: Mode) -> NDArray[np.int64]:
    """How many steps each recorded one stands for: also for those before it that were not recorded."""
    steps = np.asarray(numbers, np.int64)
    thinned = any(of is mode and worker.facts(kind) for kind, of in THINNED.items())
    if not len(steps) or not thinned:
        return np.ones(len(steps), np.int64)
    found: NDArray[np.int64] = np.maximum(np.diff(steps, prepend=steps[0] - 1), 1)
    return found


def examined_steps(run: RunRecords) -> ExaminedSteps:
    """The TRAIN steps at which tensors were recorded; for workers that train separately, their number only."""
    found = []
    for name in leaders_of(run):
        worker = run.worker(name)
        train = worker.columns[worker.columns["mode"] == Mode.TRAIN]
        found.append(np.unique(train["step"][worker.ends(train)["captures"] > 0]))
    if len(found) != 1 or not len(found[0]):
        return ExaminedSteps(sum(map(len, found)))
    (steps,) = found
    first = int(steps[0])
    gaps = np.flatnonzero(np.diff(steps) != 1)
    return ExaminedSteps(len(steps), first, first + (int(gaps[0]) + 1 if len(gaps) else len(steps)))


def models_of(run: RunRecords) -> tuple[ModelSummary, ...]:
    """The models that each of :func:`leaders_of` trained or evaluated, by number, without findings about them."""
    return tuple(replace(each, worker=name or "") for name in leaders_of(run) for each in _models_of(run, name))


def _models_of(run: RunRecords, name: str | None) -> tuple[ModelSummary, ...]:
    worker = run.worker(name)
    course, infos = worker.columns, worker.infos()
    losses = {
        row.model
        for name, row in infos.items()
        if row.role is Role.LOSS and row.model is not None and name == series_name("loss", row.model)
    }
    numbers = sorted({*np.unique(course["model"]).tolist(), *losses})
    stretches = worker.stretches_by_model() if len(course) else {}
    types, variables = _types(worker, infos), _variables(worker)
    train = course[course["mode"] == Mode.TRAIN]
    counted, order = _counted(worker, train["step"].tolist(), Mode.TRAIN), np.argsort(train["model"], kind="stable")
    # Steps that were not recorded belong to the models as those that follow them do, up to the next of these.
    stretch = np.cumsum(counted > 1)
    shared = (np.bincount(stretch, counted) / np.maximum(1, np.bincount(stretch)))[stretch]
    train, shared = train[order], shared[order]
    examined = np.sort(train["step"][worker.ends(train)["captures"] > 0])
    edges = np.searchsorted(train["model"], [numbers, [number + 1 for number in numbers]])
    found = []
    for model, begin, end in zip(numbers, *edges.tolist(), strict=True):
        led = train["step"][begin:end]
        series = series_name("loss", model)
        steps, values = worker.scalars(series) if worker.has(series) else (led[:0], np.empty(0))
        own = np.union1d(led, steps)
        trained = len(own) + round(shared[begin:end].sum()) - len(led)
        evaluated = [stretch for stretch in stretches.get(model, ()) if stretch.train_step >= 0]
        # A target network is called without a loss, so it has no results.
        if trained or any(series in stretch.means for stretch in evaluated):
            loss = float(values[-1]) if len(values) else None
            summary = _summary(model, types.get(model, ""), trained, loss, evaluated)
            seen = len(np.intersect1d(own, examined))
            found.append(
                replace(
                    summary,
                    examined_steps=seen,
                    # Of steps too short to record each, the first recorded one stands for others, too.
                    first_step=int(own[0]) if len(own) and (shared[begin:end] == 1).all() else None,
                    variable=variables.get(model, ""),
                    validation_of=_other_loss(worker, series, evaluated),
                )
            )
    return tuple(found)


def _summary(model: int, kind: str, steps: int, loss: float | None, evaluated: Sequence[Stretch]) -> ModelSummary:
    name = series_name("loss", model)
    losses = [stretch.means[name] for stretch in evaluated if name in stretch.means]
    accuracy = series_name("accuracy", model)
    return ModelSummary(
        model,
        model_name(model),
        kind,
        train_steps=steps,
        training_loss=loss,
        validation_loss=_last(evaluated, name),
        best_validation_loss=min((each for each in losses if not math.isnan(each)), default=None),
        accuracy=_last(evaluated, accuracy),
        accuracy_share=evaluated[-1].covered.get(accuracy, 1.0) if evaluated else 1.0,
    )


def _other_loss(worker: Worker, name: str, evaluated: Sequence[Stretch]) -> str:
    """The loss function of the evaluations, where the training loss is more than its result; else ""."""
    parts = [each for each in (evaluated[-1].means if evaluated else ()) if each.startswith(f"{name}/")]
    both = [each for each in parts if worker.has(each)]
    if not both or name not in evaluated[-1].means:
        return ""
    steps, whole = worker.scalars(name)
    for part in both:
        captured, values = worker.scalars(part)
        _, left, right = np.intersect1d(steps, captured, return_indices=True)
        same = np.isclose(whole[left], values[right], rtol=SAME_LOSS, atol=SAME_LOSS_NEAR_ZERO, equal_nan=True)
        if same.all():
            return ""
    return both[0].removeprefix(f"{name}/")


def _last(evaluated: Sequence[Stretch], name: str) -> float | None:
    return evaluated[-1].means.get(name) if evaluated else None


def _variables(worker: Worker) -> dict[int, str]:
    """The names by which the script has its models, from the facts of the run.

    Not of models that take turns in one variable, as the folds of a cross-validation do.
    """
    found: dict[int, str] = {}
    for model in read_facts(worker.facts(facts.ModelDescription.KIND), facts.ModelDescription):
        for number, name in model.variables.items():
            if number.isascii() and number.isdigit():
                found.setdefault(int(number), name[:80])
    times = Counter(found.values())
    return {number: name for number, name in found.items() if times[name] == 1}


def _types(worker: Worker, infos: Mapping[str, TensorInfo]) -> dict[int, str]:
    """Class names of models: from their outermost modules, or from the facts of the run."""
    found = {
        row.model: row.module_type
        for row in infos.values()
        if row.model is not None and row.module_type and row.module == (model_name(row.model) if row.model else "")
    }
    for model in read_facts(worker.facts(facts.ModelDescription.KIND), facts.ModelDescription):
        for path, kind in (model.module_types or {}).items():
            head, _, tail = path.partition("_")
            counted = head == "model" and tail.isascii() and tail.isdigit()
            number = int(tail) - 1 if counted else 0 if path == "" else None
            if number is not None and number not in found:
                found[number] = kind
    return found
