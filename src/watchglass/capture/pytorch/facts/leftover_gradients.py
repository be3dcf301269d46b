"""Fact ``leftover_gradients``: gradients of the step before that a step's backward is added to.

That is the effect of a forgotten ``zero_grad``. It shows in the gradients however a script clears them: by assignment,
by a custom optimizer, or in place.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.capture.pytorch.saving.reduce import plain
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import facts

#: Parameters of an optimizer that are read, and elements of each of their gradients.
_PARAMETERS, _ELEMENTS, _CORNER = 4, 4096, 8
#: Name of the lines of a script that change parameters, in place of an optimizer.
_SCRIPT = "script"


class Leftovers:
    """Looks at some gradients before the first backward of a captured step."""

    def __init__(self, port: Port, subjects: ObjectNames, leave: ExitStack) -> None:
        self._subjects = subjects
        self._thread = threading.get_ident()
        self._armed = False
        # With the latest captured step that had begun when they were looked at.
        self._found: dict[str, tuple[int, list[Any]]] = {}
        self._latest = -1
        self._parameters: weakref.WeakKeyDictionary[Any, list[weakref.ref[Tensor]]] = weakref.WeakKeyDictionary()
        self._reported: dict[str, tuple[int, bool]] = {}
        # Stands for the lines of the script that change parameters; known from their first update on.
        self._script: weakref.ref[Any] | None = None
        self._look = port.guarded(self._look_at_all)
        leave.callback(calls.BACKWARD.listen(port.guard, before=self._backward))

    def step_began(self, step: OpenStep) -> None:
        """A captured step has begun: look when its first backward comes."""
        # Steps of models that take turns overlap: what was found may be for the update of another one.
        self._latest = step.global_step
        # Also where its update opens it: a closure runs the backward later. Behind compiled code the backward is over,
        # and what is found at the next one belongs to no update of this step.
        self._armed = True

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._armed and threading.get_ident() == self._thread:
            self._armed = False
            self._look()

    def _look_at_all(self) -> None:
        with torch.no_grad():
            updaters: list[tuple[str, Any]] = [
                (self._subjects.name("optimizer", optimizer), optimizer) for optimizer in self._subjects.optimizers()
            ]
            script = self._script() if self._script is not None else None
            for name, updater in [*updaters, *([(_SCRIPT, script)] if script is not None else [])]:
                gradients = [parameter.grad for parameter in self._some_of(updater)]
                self._found[name] = (self._latest, [_nonzero(gradient) for gradient in gradients])

    def _some_of(self, optimizer: Any) -> list[Tensor]:
        """A few of its parameters, from the first to the last."""
        known = self._parameters.get(optimizer)
        chosen = [parameter for reference in known or () if (parameter := reference()) is not None]
        if not chosen:
            every = [parameter for parameter in parameters_of(optimizer) if parameter.requires_grad]
            step = max(1, (len(every) - 1) // (_PARAMETERS - 1)) if every else 1
            chosen = every[::step][:_PARAMETERS]
            self._parameters[optimizer] = [weakref.ref(parameter) for parameter in chosen]
        return chosen

    def update_began(self, update: Update) -> None:
        """A captured step's update: the optimizer's own gradients are the ones that matter."""
        self._record(update, self._subjects.name("optimizer", update.optimizer))

    def script_update_ended(self, update: Update) -> None:
        """Lines of the script have changed parameters: the same for the gradients that they use."""
        if self._script is None:
            self._script = weakref.ref(update.optimizer)
        self._record(update, _SCRIPT)

    def _record(self, update: Update, name: str) -> None:
        since, found = self._found.pop(name, (-1, []))
        if found and since >= update.step.global_step:
            update.step.records.add_fact(self._pending(name, found), "first backward")

    def _pending(self, name: str, found: list[Any]) -> DeferredFact[facts.LeftoverGradients]:
        present = sum(value is not None for value in found)

        def make() -> facts.LeftoverGradients | None:
            nonzero = sum(bool(value.resolve() if isinstance(value, DeviceRows) else value) for value in found)
            if self._reported.get(name) == (present > 0, nonzero > 0):
                return None
            self._reported[name] = (present > 0, nonzero > 0)
            return facts.LeftoverGradients(name, len(found), nonzero, present)

        return DeferredFact(facts.LeftoverGradients, make)


def _nonzero(gradient: Tensor | None) -> Any:
    """Whether any of some elements is not zero: a bool, or a readback of one; None where there is no gradient."""
    value = plain(gradient) if gradient is not None else None
    if value is None or in_graph_capture(value):
        return None
    # A slice at a corner: it costs the same for any size and strides.
    some = value.reshape(-1)[:_ELEMENTS] if value.is_contiguous() else value[(slice(0, _CORNER),) * value.dim()]
    some = some.float() if some.element_size() == 1 else some  # eight-bit floats have no any()
    return bool(some.any()) if some.device.type == "cpu" else DeviceRows(some.any())
