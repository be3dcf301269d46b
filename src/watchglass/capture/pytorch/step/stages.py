"""Fact ``stage``: a model goes on with other parameters, another optimizer, or other data than before."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.record import OpenStep
from watchglass.records import facts

#: Steps of a stage after which a new optimizer that equals the one before, or another data set, begins another one.
#: Scripts that make new ones for each short epoch go on with the same training (house).
_LASTED = 80


@dataclass
class _Held:
    """What one optimizer updates: the lengths of its groups when that was read, and identities of its parameters."""

    groups: tuple[int, ...]
    trained: frozenset[int]


@dataclass
class _Stage:
    """The open stage of one model."""

    since: int  #: Its first TRAIN step.
    #: Each set of parameters that an optimizer has updated in this stage or before, with the class of the optimizer. A
    #: script that freezes parts in turns (a generator, its critic) returns to earlier sets and begins nothing.
    trained: set[tuple[str, frozenset[int]]] = field(default_factory=set)
    #: Identities of the data sets of the loaders that the script has trained it with.
    data: set[int] = field(default_factory=set)


class TrainingStages:
    """Notices at the update point that a new stage of the training of a model begins.

    Args:
        models: Knows whether there are several.
        watch_closely: Called when a loader of another data set is iterated over: the next update is to be looked at.
    """

    def __init__(self, models: Models, watch_closely: Callable[[], None]) -> None:
        self._models = models
        self._watch_closely = watch_closely
        self._held: weakref.WeakKeyDictionary[Optimizer, _Held] = weakref.WeakKeyDictionary()
        self._of: dict[int, _Stage] = {}
        # The data set of the loader that was iterated over last, until a forward shows what for.
        self._data: int | None = None

    def iterated(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """The script begins to iterate over a loader."""
        self._data = id(getattr(args[0], "dataset", args[0]))
        if self._of and all(self._data not in stage.data for stage in self._of.values()):
            self._watch_closely()

    def evaluation_began(self, call: ForwardCall) -> None:
        """The first forward of an evaluation: the loader was for that."""
        self._data = None

    def look(self, step: OpenStep, optimizer: Optimizer, model: int) -> None:
        """An optimizer is about to update a model: record the fact if this begins a stage.

        What a script freezes without changing the groups of its optimizer is seen at captured steps.
        """
        data, self._data = self._data, None
        groups = tuple(len(group["params"]) for group in optimizer.param_groups)
        held = self._held.get(optimizer)
        if data is None and held is not None and held.groups == groups and not step.due:
            return
        trained = frozenset(id(parameter) for parameter in parameters_of(optimizer) if parameter.requires_grad)
        self._held[optimizer] = _Held(groups, trained)
        update = type(optimizer).__name__, trained
        stage = self._of.get(model)
        if stage is None:
            self._of[model] = _Stage(step.mode_step, {update}, set() if data is None else {data})
            return
        begins = self._begins(stage, update, data, lasted=step.mode_step - stage.since, new=held is None)
        stage.trained.add(update)
        if data is not None:
            stage.data.add(data)
        if not begins:
            return
        stage.since = step.mode_step
        about = self._models.in_facts(model)
        step.records.add_fact(facts.StageBegin(begins, len(trained), about), type(optimizer).__name__)

    @staticmethod
    def _begins(stage: _Stage, update: tuple[str, frozenset[int]], data: int | None, *, lasted: int, new: bool) -> str:
        """What another stage begins with; "" if none does."""
        if not lasted:
            return ""  # optimizers that first step together share the work
        if update[1] not in {trained for _, trained in stage.trained}:
            return "parameters"
        if new and (update not in stage.trained or lasted >= _LASTED):
            return "optimizer"
        return "data" if data is not None and stage.data and data not in stage.data and lasted >= _LASTED else ""
