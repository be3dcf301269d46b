"""Calls of modules: the only moment at which their inputs are certainly unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from watchglass.capture.planning.plan import Plan
from watchglass.capture.port import Port
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.events import Events, ForwardCall, ModuleCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_hooks import Switch
from watchglass.capture.pytorch.modules.module_tree import is_compiled, unwrap
from watchglass.capture.saving.module_tensors import INPUT_TAGS
from watchglass.capture.saving.saving import Saving
from watchglass.config import SessionConfig
from watchglass.record import OpenStep
from watchglass.records import Role

#: Tags of which something is read as a module is called.
_TAGS = frozenset((*INPUT_TAGS, "attention", "float8_casts"))


def reads_inputs(plan: Plan) -> bool:
    """Whether something is read as modules are called, at the step that opened last."""
    return plan.wants(Role.INPUT) or any(map(plan.wants_tag, _TAGS))


def may_read_inputs(config: SessionConfig) -> bool:
    """Whether something is, at one step or another."""
    return any(Role.INPUT in each.looks_at or not _TAGS.isdisjoint(each.tags) for each in config.all_collections)


def is_open(port: Port, step: OpenStep) -> bool:
    """Whether a step still waits for tensors of its forwards and its update."""
    return step is port.clock.evaluation or (step is port.clock.train and not step.updated)


class ModuleEntry:
    """Sends ``events.module_entered`` for every module that a captured forward calls, while a part wants inputs.

    After a module has returned, its inputs may have been overwritten, by the module (``nn.ReLU(inplace=True)``) or
    inside. The global hook exists from the beginning of the outermost call to its end. If the forward raises, the hook
    removes itself at the next call that does not belong to the captured step.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._port = port
        self._models = models
        self._events = events
        self._listeners = events.module_entered
        self._call: ForwardCall | None = None
        self._inner: nn.Module | None = None
        guarded = port.guarded(self._entered, unless=compiling)
        self._observing = Switch(lambda: register_module_forward_pre_hook(guarded))
        events.add(self)
        port.detach_with(self._stop)

    def forward_began(self, call: ForwardCall) -> None:
        """A captured forward begins."""
        self._stop()
        if not (self._listeners and reads_inputs(self._port.plan)):
            return
        root = unwrap(call.root)
        place = self._models.module(root)
        if place is not None:
            entry = ModuleCall(call.forward.records, place, root, call.arguments, kwargs=call.kwargs, outermost=True)
            self._notify(entry)
        if not is_compiled(call.root):
            # The call of a wrapper counts as that of its model.
            self._inner = root
            self._call = call
            self._observing(True)

    def forward_ended(self, call: ForwardCall) -> None:
        """It has ended."""
        self._stop()

    def _stop(self) -> None:
        self._call = self._inner = None
        self._observing(False)

    def _entered(self, module: nn.Module, arguments: Any) -> None:
        call = self._call
        if call is None or not is_open(self._port, call.step):
            self._stop()
            return
        place = self._models.module(module)
        if place is None:
            return
        inner, self._inner = self._inner, None
        if module is not inner:
            with torch.no_grad():
                self._notify(ModuleCall(call.forward.records, place, module, arguments))

    def _notify(self, entry: ModuleCall) -> None:
        self._events.notify(self._listeners, entry, entry.records)
