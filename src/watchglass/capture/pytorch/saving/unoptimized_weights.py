"""Weights of a model that no optimizer holds: frozen ones, and those that it lacks by mistake.

No update point ever reads them. This module reads them at the captured steps 2, 3, 4, 6, 8, 12 and so on, twice in each
doubling. If no optimizer holds any weight of a model, it reads them once. Each reading takes a bounded number of
elements. So the catalog of a run has these weights, and the run shows that they do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.capture.port import Port
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.capture.saving.parameters import is_bias
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import OpenStep
from watchglass.records import Mode, Role

#: Elements that are read at one captured step; of a parameter that has more, a sample.
_MOST = 1 << 22


class UnoptimizedWeights:
    """Reads them, in turns where they are many.

    Args:
        port: The port that records.
        models: The models that are watched.
        saving: Saves them.
        optimizers: Those that have stepped.
    """

    def __init__(
        self, port: Port, models: Models, saving: Saving, optimizers: Callable[[], Iterable[Optimizer]]
    ) -> None:
        self._port = port
        self._models = models
        self._saving = saving
        self._optimizers = optimizers
        self._captures = self._turn = 0
        # Before the numbers of a step are sent from devices to the host.
        port.on_finished.insert(0, self._finished)

    def _finished(self, step: OpenStep) -> None:
        if step.mode is not Mode.TRAIN or not step.due or not step.optimizers:
            return
        self._captures += 1
        half = is_power_of_two(self._captures / 3)
        if self._captures < 2 or not (half or is_power_of_two(self._captures)):
            return
        try:
            self._read(step, trained_only=half)
        except Exception as error:
            self._port.guard.fault(error, "weights outside the optimizer")

    def _read(self, step: OpenStep, *, trained_only: bool) -> None:
        held = {id(parameter) for optimizer in self._optimizers() for parameter in parameters_of(optimizer)}
        outside: list[tuple[Tensor, ParameterPlace]] = []
        for tree in self._models:
            places = list(tree.places())
            rest = [row for row in places if id(row[0]) not in held]
            outside += rest if len(rest) < len(places) or not trained_only else ()
        if not outside or not held:
            return
        self._port.plan.resume()
        first = self._turn % len(outside)
        room = _MOST
        weights: list[Item] = []
        biases: list[Item] = []
        for parameter, place in outside[first:] + outside[:first]:
            item = _item(parameter, place)
            size = 0 if item is None else item.tensor.numel()
            if size > room:
                break
            room -= size
            self._turn += 1
            if item is not None:
                (biases if is_bias(place) else weights).append(item)
        with torch.no_grad():
            self._saving.save_all(step.records, Role.WEIGHT, weights)
            self._saving.save_all(step.records, Role.BIAS, biases)


def _item(parameter: Tensor, place: ParameterPlace) -> Item | None:
    """A parameter, or a sample of its elements, to be saved; None where not even that can be read cheaply."""
    axis = 0 if parameter.dim() else None
    if parameter.numel() <= _MOST:
        return Item(parameter, place.name, place.place, (), axis, parameter.requires_grad)
    if type(parameter) not in (Tensor, nn.Parameter) or not parameter.is_contiguous():
        return None
    # An odd stride over rows of even length reaches all columns.
    stride = (2 * parameter.numel() // _MOST) | 1
    sample = parameter.detach().view(-1)[::stride].contiguous()
    return Item(sample, place.name, place.place, (), axis, parameter.requires_grad, sampled=True, whole=parameter)
