"""Inputs of modules, and of the model."""

from __future__ import annotations

import functools

from torch import Tensor

from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import unit_axis
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.tensors.functional_activations import Rectified
from watchglass.capture.saving.module_tensors import ModuleTensors, input_tags
from watchglass.capture.saving.saving import Saving
from watchglass.records import ModuleKind, Role


class Inputs:
    """Saves the arguments of modules, as ``fc1.input.0``, before they run.

    Of an outermost module all arguments, of one inside it the positional ones: PyTorch shows others to no global hook.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._tensors = ModuleTensors(port, saving, unit_axis)
        self._every_wanted = functools.partial(port.plan.wants, Role.INPUT)
        self._every = False
        self._rectified = Rectified()
        events.add(self)
        events.module_listeners.append((self._every_wanted, self._called))

    def module_entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        if entry.outermost:
            self._every = self._every_wanted()
        for path, tensor in tensors_in((entry.arguments, entry.kwargs or {})):
            # "0.x" are arguments, "1.x" keyword arguments.
            self._input(entry, path[2:], tensor)

    def _input(self, entry: ModuleCall, path: str, tensor: Tensor) -> None:
        place, axes = entry.place, tensor.dim()
        tags = input_tags(place, path, axes, str(tensor.dtype), outermost=entry.outermost)
        if self._every and path == "0" and self._rectified.finds(place, tensor):
            tags += ("relu_output",)
        if self._every or tags:
            self._tensors.save(entry.records, Role.INPUT, self._tensors.taken(place, path, tensor, axes, tags))

    def _called(self, call: ModuleCall) -> None:
        if call.place.kind is ModuleKind.RECTIFIER and isinstance(call.output, Tensor):
            self._rectified.made(call.output)

    def forward_ended(self, call: ForwardCall) -> None:
        """The captured forward has ended."""
        self._rectified.forget()
