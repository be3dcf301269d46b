"""The steps of one worker as views: one for each model that a step belongs to, with the history of that model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from watchglass.records import (
    MOST_MODELS,
    Fact,
    Mode,
    Role,
    RowKind,
    StepEnd,
    TensorInfo,
    facts,
    model_name,
    read_facts,
)
from watchglass.tables.catalog import Catalog
from watchglass.tables.history import History
from watchglass.tables.step_view import StepRecords, StepView

#: Facts that say that steps of a mode are not recorded one by one from here on.
THINNED = {"step_interval": Mode.TRAIN, "evaluation_interval": Mode.EVAL}
#: Recorded steps that show how models take turns: whole cycles of two to six steps.
_RECENT = 60


class ModelViews:
    """Makes the views of one worker's steps in one attempt, in their order. One owner.

    A step belongs to the model that it trained or evaluated, and to each other model with a loss in it. Tensors of a
    model that had no step so far (the decoder of an encoder) are shown with the model that leads the step. Models
    beyond :data:`~watchglass.records.MOST_MODELS` have no views.

    Args:
        run_id: Identifier of the run.
        attempt: Attempt of the run.
        worker: Name of the worker.
    """

    def __init__(self, run_id: str = "", attempt: int = 0, worker: str = "worker_0") -> None:
        self._run_id, self._attempt, self._worker = run_id, attempt, worker
        self._histories: dict[int, History] = {}
        self._newest: dict[int, StepView] = {}
        self._facts: dict[str, Fact] = {}
        self._own_facts: dict[int, dict[str, Fact]] = {}
        self._steps: dict[Mode, int] = {}
        # TRAIN steps of others before the newest of each model.
        self._between: dict[int, int] = {}
        self._one_model = True
        # The newest step of each mode, and the modes in which steps may be missing because they were too short.
        self._last: dict[Mode, int] = {}
        self._thinned: set[Mode] = set()
        # The models of the last TRAIN steps since some were missing, and how many of those missing belong to each.
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._missing: Counter[int] = Counter()

    def after(self, records: StepRecords) -> list[StepView]:
        """The views of the next step: first the model that leads it, then the others by number."""
        covers = self._covers(records)
        if self._one_model:
            if not records.end.model and records.catalog.models <= {0} and not any(f.model for f in records.facts):
                self._steps[records.end.mode] = self._steps.get(records.end.mode, 0) + covers
                return [self._view(0, records, covers)]
            self._one_model = False
            if 0 in self._histories:
                self._histories[0].own = dict(self._steps)
                self._between[0] = 0
        return self._of_several(records, covers)

    def newest_scalars(self, most: int) -> dict[str, float]:
        """The last TRAIN value of each scalar, by its name in the run.

        Args:
            most: The most scalars: those that appeared first, beginning with the model of the newest step.
        """
        found: dict[str, tuple[int, float]] = {}
        for view in sorted(self._newest.values(), key=lambda view: view.records.end.global_step, reverse=True):
            for name, step, value in islice(view.history.newest(Mode.TRAIN), most):
                recorded = view.recorded_name(name)
                # Models share the scalars that belong to no model: the value of the later step is the last one.
                if recorded in found or len(found) < most:
                    found[recorded] = max(found.get(recorded, (-1, 0.0)), (step, value), key=lambda each: each[0])
        return {name: value for name, (_, value) in found.items()}

    def _covers(self, records: StepRecords) -> int:
        """Of how many steps this is the only recorded one: also of those of its mode between the one before and it."""
        mode, number = records.end.mode, records.end.mode_step
        self._thinned.update(THINNED[fact.kind] for fact in records.facts if fact.kind in THINNED)
        before, self._last[mode] = self._last.get(mode, -1), number
        return max(1, number - before) if mode in self._thinned and before >= 0 else 1

    def _of_several(self, records: StepRecords, covers: int) -> list[StepView]:
        end = records.end
        losses = {info.model for info, *_ in records.scalars if info.role is Role.LOSS and info.model is not None}
        room = MOST_MODELS - len(self._histories)
        models = [end.model, *sorted(losses - {end.model})]
        models = [model for model in models if model in self._histories or (room := room - 1) >= 0]
        for fact in records.facts:
            if fact.model is not None and fact.model not in models:
                self._own_facts.setdefault(fact.model, {})[fact.kind] = fact
        counted = covers if end.mode is not Mode.TRAIN else 1
        if end.mode is Mode.TRAIN:
            self._share(end.model, covers - 1)
        for model in models:
            self._count(model, end, counted, together=len(models) > 1)
        self._steps[end.mode] = self._steps.get(end.mode, 0) + counted
        known = frozenset(self._histories)
        return [
            self._view(model, _part(records, model, known), counted + self._missing.pop(model, 0)) for model in models
        ]

    def _share(self, model: int, missing: int) -> None:
        """Before a TRAIN step of a model so many are missing: they belong to the models that took turns before."""
        if missing:
            models, length = Counter(self._recent or [model]), len(self._recent) or 1
            for each, steps in models.items():
                share, own = round(missing * steps / length), self._history(each).own
                own[Mode.TRAIN] = own.get(Mode.TRAIN, 0) + share
                self._missing[each] += share
            self._steps[Mode.TRAIN] = self._steps.get(Mode.TRAIN, 0) + missing
            self._recent.clear()
        self._recent.append(model)

    def _history(self, model: int) -> History:
        history = self._histories.get(model)
        if history is None:
            history = self._histories[model] = History(self._facts, self._own_facts.setdefault(model, {}))
            for each in self._histories.values():
                each.several = len(self._histories) > 1
        return history

    def _count(self, model: int, end: StepEnd, covers: int, *, together: bool) -> None:
        history, mode = self._history(model), end.mode
        own, others = history.own.get(mode, 0), self._steps.get(mode, 0) - history.own.get(mode, 0)
        if mode is Mode.TRAIN:
            if together or (own and others > self._between[model]):
                history.in_turns = True
            self._between[model] = others
        # Steps before this attempt were the first model's.
        is_first = model == next(iter(self._histories))
        history.own[mode] = own + covers
        history.others[mode] = others if is_first else end.mode_step - (own + covers - 1)

    def _view(self, model: int, records: StepRecords, covers: int) -> StepView:
        history = self._history(model)
        begins = next((stage.begins_with for stage in read_facts(records.facts, facts.StageBegin)), None)
        if begins is not None and model in self._newest:
            loss = next((value for info, _, value in records.scalars if info.name == "loss"), None)
            after = history.next_stage(loss)
            # Another part of the same data is no other data.
            if begins != "data" or after.task != history.task:
                history = self._histories[model] = after
        view = StepView.after(
            history, records, run_id=self._run_id, attempt=self._attempt, worker=self._worker,
            previous=self._newest.get(model), model=model, covers=covers,
        )  # fmt: skip
        self._newest[model] = view
        return view


def _part(records: StepRecords, model: int, known: frozenset[int]) -> StepRecords:
    """The part of a step about one model, whose series have the names that a single model's would have.

    Args:
        records: The step.
        model: The model.
        known: Models that had a step; tensors of others are shown with the model that leads the step.
    """
    leads = model == records.end.model
    shown = frozenset(records.catalog.models - known if leads else ()) | {model}
    catalog = records.catalog.answers.get(("of", shown, model), lambda: _catalog(records.catalog, model, shown))
    rows: dict[RowKind, Sequence[Any]] = {}
    for kind, found in records.rows.items():
        if kind.of_tensors:
            own = [(catalog.get(row.tensor.tensor_id), row) for row in found]
            rows[kind] = [row._replace(tensor=info) for info, row in own if info is not None]
        elif leads:  # what is about the whole step, such as its time, counts once
            rows[kind] = found
    facts = [fact for fact in records.facts if _is_about(fact, model, catalog, records.catalog)]
    part = replace(records, catalog=catalog, rows=rows, facts=facts)
    keep = catalog.mask(records.statistics.ids)
    return part if keep.all() else replace(part, statistics=records.statistics.take(keep))


def _is_about(fact: Fact, model: int, own: Catalog, whole: Catalog) -> bool:
    """Whether a fact may be about a model: not where it names another model, or only tensors of others."""
    if fact.model is not None:
        return fact.model == model
    tensors = fact.data.get("tensors")
    named = [whole.by_name(name) for name in tensors if isinstance(name, str)] if isinstance(tensors, list) else []
    return not named or any(info is None or info.tensor_id in own for info in named)


def _catalog(whole: Catalog, model: int, shown: frozenset[int]) -> Catalog:
    prefix = f"{model_name(model)}/" if model else ""
    own = [_called(row, prefix) for row in whole if row.model in shown]
    names = {row.name for row in own}
    return Catalog([*(row for row in whole if row.model is None and row.name not in names), *own])


def _called(row: TensorInfo, prefix: str) -> TensorInfo:
    """A series of a model without the model's prefix."""
    is_series = prefix and row.role in (Role.LOSS, Role.METRIC) and row.name.startswith(prefix)
    return replace(row, name=row.name[len(prefix) :]) if is_series else row
