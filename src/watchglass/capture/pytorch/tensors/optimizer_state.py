"""The state of optimizers between updates, under the names that optimizers give it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.module_places import NOWHERE, Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import Events, Update
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.nested_tensors import leaves_in
from watchglass.capture.pytorch.saving.reduce import plain
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords
from watchglass.records import Role

#: Most tensors and numbers that are taken of one parameter's state: LBFGS keeps a history of a hundred.
_MOST_OF_ONE = 64


class OptimizerState:
    """Saves what an optimizer holds after its update: ``optimizer/exp_avg/fc1.weight``.

    Tensors become statistics. Single numbers, like Adam's ``step``, become scalars of the same role, one for each
    parameter. What LBFGS holds for all parameters together bears no parameter's name: ``optimizer/d``. Should two
    optimizers change one parameter in one step, the second one's are called ``optimizer_2/...``.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._port = port
        self._saving = saving
        self._step = -1
        self._taken: set[str] = set()
        events.update_ended.append(self._update_ended)

    def _update_ended(self, update: Update) -> None:
        if not self._port.plan.wants(Role.OPTIMIZER_STATE):
            return
        if update.step.global_step != self._step:
            self._step, self._taken = update.step.global_step, set()
        items: list[Item] = []
        numbers: list[tuple[str, Place, Any]] = []
        prefix = self._prefix(update)
        for name, parameter, place, value in _states(update):
            own = parameter is not None and isinstance(value, Tensor) and value.shape == parameter.shape
            if not isinstance(value, Tensor) or not value.dim():
                numbers.append((f"{prefix}/{name}", place, value))
            else:
                items.append(Item(value, f"{prefix}/{name}", place, unit_axis=0 if own else None))
        self._saving.save_all(update.step.records, Role.OPTIMIZER_STATE, items)
        self._save_numbers(update.step.records, numbers)

    def _prefix(self, update: Update) -> str:
        names = {name for _, name, _ in update.parameters}
        prefix, number = "optimizer", 2
        while any(f"{prefix}/{name}" in self._taken for name in names):
            prefix, number = f"optimizer_{number}", number + 1
        self._taken.update(f"{prefix}/{name}" for name in names)
        return prefix

    def _save_numbers(self, records: CapturedRecords, numbers: list[tuple[str, Place, Any]]) -> None:
        plan, port = self._port.plan, self._port
        elsewhere: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for name, place, value in numbers:
            if plan.keep(name, Role.OPTIMIZER_STATE, place) is None:
                continue
            port.ids.of(name, functools.partial(place.describe, name, Role.OPTIMIZER_STATE, dtype="float64"))
            if isinstance(value, Tensor):
                readable = plain(value)
                if readable is None:
                    continue
                if readable.is_complex():
                    readable = readable.abs()
                if readable.device.type != "cpu":
                    elsewhere.setdefault(readable.device, []).append((name, readable))
                    continue
                value = float(readable)
            port.add_scalar(records, name, float(value), Role.OPTIMIZER_STATE)
        for found in elsewhere.values():
            # One copy for all of them.
            together = DeviceRows(torch.stack([value.float() for _, value in found]))
            for index, (name, _) in enumerate(found):
                port.add_scalar(
                    records, name, DeferredNumbers(functools.partial(_element, together, index)), Role.OPTIMIZER_STATE
                )


def _element(together: DeviceRows, index: int) -> Any:
    return together.resolve()[index]


def _states(update: Update) -> Iterator[tuple[str, Tensor | None, Place, Any]]:
    """``(name, parameter, place, value)`` of all tensors and numbers of an optimizer's state."""
    optimizer = holder_of(update.optimizer)
    for parameter, name, place in update.parameters:
        # Looked up without indexing: the state creates an entry for every key that is indexed.
        state = optimizer.state.get(parameter)
        if not isinstance(state, Mapping):
            continue
        shared = isinstance(optimizer, LBFGS)
        for key, value in _single(state):
            if shared:
                yield key, None, NOWHERE, value
            else:
                yield f"{key}/{name}", parameter, place.place, value


def _single(state: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    found = (
        leaf for leaf in leaves_in(state) if isinstance(leaf[1], (Tensor, int, float)) and type(leaf[1]) is not bool
    )
    return itertools.islice(found, _MOST_OF_ONE)


def holder_of(optimizer: Optimizer) -> Optimizer:
    """The optimizer that has the state: one that wraps another (ZeroRedundancyOptimizer) has none."""
    for _ in range(4):
        inner = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None)
        if optimizer.state or not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer
