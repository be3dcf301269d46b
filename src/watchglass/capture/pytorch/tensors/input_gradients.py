"""Gradients with respect to the inputs of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from watchglass.capture.guard import Guard
from watchglass.capture.module_places import Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, ForwardCall, Update
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import unwrap
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.public_calls import SCALER_SCALE
from watchglass.capture.pytorch.step.tensor_hooks import observe_gradient
from watchglass.capture.saving.saving import Item, Saving
from watchglass.record import CapturedRecords, OpenStep
from watchglass.records import Mode, Role, facts

_TAG = "input_gradients"


class _Watched:
    """An input whose gradient is awaited."""

    def __init__(self, guard: Guard, records: CapturedRecords, tensor: Tensor, name: str, place: Place) -> None:
        self.records = records
        self.name = name
        self.place = place
        #: The gradient so far, summed over backwards.
        self.gradient: Tensor | None = None
        self.handle = observe_gradient(tensor, guard, self._arrived)

    def _arrived(self, gradient: Tensor | None) -> None:
        # On any of autograd's threads.
        if gradient is not None:
            gradient = gradient.detach()
            self.gradient = gradient if self.gradient is None else self.gradient + gradient


class InputGradients:
    """Saves gradients with respect to inputs of outermost modules, as ``gradient/input.0``, where collections ask.

    The gradients are divided by the factor of a scaler, whose ``unscale_`` divides gradients of parameters only.
    Only inputs that require a gradient have one. For other inputs the part reports once that there is none, with a
    cure, because each way to get one would change the run. Requiring a gradient would give the first layers another
    backward, leave a ``.grad`` behind and forbid in-place changes of the input. Repeating the forward would run the
    model's code twice.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._guard = port.guard
        self._plan = port.plan
        self._models = models
        self._saving = saving
        self._watched: list[_Watched] = []
        self._refused: set[str] = set()
        self._scale: Tensor | None = None
        if any(_TAG in collection.tags for collection in port.config.all_collections):
            port.detach_with(SCALER_SCALE.listen(port.guard, after=port.guarded(self._loss_scaled)))
        events.add(self)
        port.detach_with(self._forget)

    def step_began(self, step: OpenStep) -> None:
        """A captured step has opened."""
        self._forget()

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        if call.step.mode is not Mode.TRAIN or not self._plan.wants_tag(_TAG):
            return
        place = self._models.module(unwrap(call.root))
        if place is None:
            return
        for path, tensor in tensors_in((call.arguments, call.kwargs or {})):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            name = f"gradient/{place.named('input', path[2:])}"
            if tensor.requires_grad:
                self._watched.append(_Watched(self._guard, call.forward.records, tensor, name, place))
            elif name not in self._refused:
                self._refused.add(name)
                call.forward.records.add_fact(_refusal(path[2:]), name)

    def update_began(self, update: Update) -> None:
        """Gradients are final."""
        for one in self._watched:
            if one.gradient is not None:
                item = Item(one.gradient, one.name, one.place, (_TAG,))
                self._saving.save_all(one.records, Role.GRADIENT, (item,), self._scale)
        self._forget()

    def _forget(self) -> None:
        for one in self._watched:
            one.handle.remove()
        self._watched = []
        self._scale = None

    def _loss_scaled(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._watched and isinstance(result, Tensor):
            with torch.no_grad():
                # Reading the scale would wait for a device; a one that was scaled need not be read.
                self._scale = arguments[0].scale(torch.ones((), device=result.device))


def _refusal(path: str) -> facts.InputGradientsUnavailable:
    return facts.InputGradientsUnavailable(
        f"input {path} does not require a gradient, so the backward computes none",
        "call requires_grad_() on it before the model is called; every training step then computes it",
    )
