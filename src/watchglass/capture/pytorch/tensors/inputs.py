"""Inputs of modules, and of the model."""

from __future__ import annotations

from torch import Tensor

from watchglass.capture.module_places import Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import unit_axis
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.tensors.functional_activations import Rectified
from watchglass.capture.pytorch.tensors.module_entry import InputsWanted
from watchglass.capture.pytorch.tensors.saturated import save_input
from watchglass.capture.saving.saving import Item, Saving
from watchglass.records import ModuleKind, Role

_MODULE_TAGS = {"Tanh": "tanh_input", "Sigmoid": "sigmoid_input"}


class Inputs:
    """Saves the arguments of modules, as ``fc1.input.0``, before they run.

    Of an outermost module all arguments, of one inside it the positional ones: PyTorch shows others to no global hook.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._saving = saving
        self._inputs_wanted = InputsWanted(port)
        self._every = False
        self._rectified = Rectified(saving)
        events.add(self)
        events.module_listeners.append((self._inputs_wanted, self._called))

    def module_entered(self, entry: ModuleCall) -> None:
        """A module is about to run."""
        if entry.outermost:
            self._every = self._inputs_wanted()
        for path, tensor in tensors_in((entry.arguments, entry.kwargs or {})):
            # "0.x" are arguments, "1.x" keyword arguments.
            self._input(entry, path[2:], tensor)

    def _input(self, entry: ModuleCall, path: str, tensor: Tensor) -> None:
        place, tags = entry.place, _tags(entry, path, tensor)
        if self._every and path == "0" and self._rectified.finds(place, tensor):
            item = _item(place, path, tensor, (*tags, "relu_output"))
            self._rectified.save(entry.records, Role.INPUT, item)
        elif self._every or tags:
            save_input(self._saving, entry.records, _item(place, path, tensor, tags))

    def _called(self, call: ModuleCall) -> None:
        if call.place.kind is ModuleKind.RECTIFIER and isinstance(call.output, Tensor):
            self._rectified.made(call.output)

    def forward_ended(self, call: ForwardCall) -> None:
        """The captured forward has ended."""
        self._rectified.forget()


def _item(place: Place, path: str, tensor: Tensor, tags: tuple[str, ...]) -> Item:
    return Item(tensor, place.named("input", path), place, tags, unit_axis(place.module_type, tensor.dim()))


def _tags(entry: ModuleCall, path: str, tensor: Tensor) -> tuple[str, ...]:
    tags: tuple[str, ...] = ()
    if entry.outermost:
        tags = ("model_input",)
        if tensor.dim() == 4 and tensor.is_floating_point():
            tags += ("input_image",)
        elif tensor.dim() == 2 and not (tensor.is_floating_point() or tensor.is_complex()):
            tags += ("input_sequence",)
    rectifies = entry.place.kind is ModuleKind.RECTIFIER
    tag = "relu_input" if rectifies else _MODULE_TAGS.get(entry.place.module_type)
    return tags if tag is None or path != "0" else (*tags, tag)
