"""Hooks on all modules, during forwards of captured steps only."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from watchglass.capture.module_places import Place
from watchglass.capture.port import Port
from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.capture.pytorch.compiled.modules import CompiledModules
from watchglass.capture.pytorch.events import Events, ModuleCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_hooks import Switch
from watchglass.capture.pytorch.modules.module_tree import is_compiled, unit_axis, unwrap
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.public_calls import keep_wrapped
from watchglass.capture.pytorch.saving.reduce import version_of
from watchglass.capture.pytorch.tensors.functional_activations import Rectified
from watchglass.capture.pytorch.tensors.module_entry import may_read_inputs, reads_inputs
from watchglass.capture.saving.module_tensors import ModuleTensors
from watchglass.capture.saving.saving import Saving
from watchglass.record import CapturedRecords, OpenStep
from watchglass.records import ModuleKind, Role, facts

_log = logging.getLogger("watchglass")
_BLIND = (
    "watchglass: activations are not capturable inside %s: it had been compiled before it was watched (or was not "
    "called); call watchglass.watch before the first compiled call, or torch.compiler.reset() in between"
)


def first_tensor(arguments: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Tensor | None:
    """The first tensor among the arguments of a module: its length is the weight of the call in averages."""
    if arguments and isinstance(arguments[0], Tensor):
        return arguments[0]
    return next((tensor for _, tensor in tensors_in((arguments, kwargs), 1)), None)


class ModuleCapture:
    """Captures outputs, inputs and inactive units of all modules while it is switched on.

    It uses one global module hook instead of one per module. On a step that is not due there is no hook, and
    modules are not changed, so code that reads a module's hooks behaves as usual. Models with compiled parts need
    permanent hooks, those of :mod:`~watchglass.capture.pytorch.compiled.modules`.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._port = port
        self._models = models
        self._tensors = ModuleTensors(port, saving, unit_axis)
        self._events = events
        self._functional = False
        self._records: CapturedRecords | None = None
        self._root: nn.Module | None = None
        # Looked up once for each forward, since it takes a walk through all modules.
        self._root_compiled: bool | None = None
        self._rectified = Rectified()
        self._refreshed = False
        guarded = port.guarded(self._after_module, unless=compiling)
        self._observing = Switch(lambda: register_module_forward_hook(guarded))
        self.compiled = CompiledModules(port.guard, port.guarded(self._entered_compiled), port.guarded(self._observed))
        self.compiled.attended = port.guarded(self._attended)
        port.detach_with(self._remove_compiled)
        self._unwrap: Callable[[], None] | None = None
        #: Records for a module that returns from compiled code outside of any observed forward.
        self.records_of: Callable[[nn.Module, Any, bool], CapturedRecords | None] = lambda module, output, grad: None
        # Models, without their wrappers, that were called compiled.
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Called as they are, not compiled, although the compiler is in use.
        self._eager: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Reported as not capturable.
        self._blind: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Whether compiled code has handed over something since the last update.
        self._in_code = False
        events.add(self)

    @property
    def on(self) -> bool:
        """Whether it is switched on, if only for calls from compiled code."""
        return self._records is not None or self.compiled.on

    def switch_on(self, records: CapturedRecords, root: nn.Module) -> None:
        """Capture every module call below ``root`` into ``records`` from now on."""
        self._records = records
        self._root, self._root_compiled = root, None
        self._refreshed = False
        # Where all inputs are saved, functional activations are found among them.
        self._functional = self._port.plan.wants_tag("relu_output") and not self._port.plan.wants(Role.INPUT)
        self._events.ask_module_listeners()
        self.prepare(root)
        if root in self.compiled and not self._without_wrapper(root):
            self.compiled.switch(True)
        else:
            self._observing(True)

    def prepare(self, root: nn.Module) -> None:
        """Be ready for calls from compiled code, before the first of them."""
        if (root in self._eager and not self.compiled.expected) or self._without_wrapper(root):
            return
        if self.compiled.expected or "torch._dynamo" in sys.modules or root in self.compiled or is_compiled(root):
            self.add_compiled(root)

    def _without_wrapper(self, root: nn.Module) -> bool:
        """Whether a model that is trained compiled is called as it is; the hooks of its compiled code must stay."""
        return unwrap(root) in self._compiled and not self.compiled.expected and not is_compiled(root)

    def add_compiled(self, module: nn.Module) -> None:
        """Calls of a module and all below it may come from compiled code."""
        self._eager.clear()
        self._unwrap = self._unwrap or keep_wrapped(self._port.guard)
        self.compiled.add(module, inputs=may_read_inputs(self._port.config))

    def _remove_compiled(self, root: nn.Module | None = None) -> None:
        """Calls of a module, or of any, no longer come from compiled code."""
        self.compiled.remove(root)
        if self._unwrap is not None and not self.compiled.has_roots:
            self._unwrap()
            self._unwrap = None

    def expect_compiled(self) -> None:
        """There is compiled code that may call any module."""
        self.compiled.expected = True
        for root in self._models.roots():
            self.prepare(root)

    def finish(self, root: nn.Module) -> None:
        """Capture nothing more: ``root`` has returned."""
        if not self.on:
            return
        self._in_code = self._in_code or (self.compiled.on and self.compiled.in_code)
        observed = root in self.compiled and not self._without_wrapper(root)
        if self._records is not None and observed and not self.compiled.expected:
            if self.compiled.in_code or is_compiled(root):
                self._compiled.add(unwrap(root))
            else:
                self._eager.add(root)
                self._remove_compiled(root)
            blind = [place.path for place in map(self._place, self.compiled.blind(root)) if place is not None]
            if blind and root not in self._blind:
                self._blind.add(root)
                self._records.add_fact(facts.NotCapturable(tuple(blind)), "compiled before it was watched")
                _log.warning(_BLIND, ", ".join(path or "the model" for path in blind))
        self.switch_off()

    def each_backward_began(self) -> None:
        """A backward begins: it may run captured forwards once more."""
        self.compiled.recompute(self._in_code)

    def each_backward_ended(self) -> None:
        """It has ended."""
        self.compiled.recompute(False)

    def each_step_updated(self, step: OpenStep) -> None:
        """The forwards of the step are over."""
        self._in_code = False

    def switch_off(self) -> None:
        """Capture nothing more."""
        if not self.on:
            return
        self._observing(False)
        self.compiled.switch(False)
        self._records = self._root = None
        self._tensors.end()
        self._rectified.forget()

    def _after_module(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self._records is not None and not captured():
            self._returned(self._records, module, arguments, output)

    def _observed(self, module: nn.Module, arguments: Any, output: Any, grad: bool, compiled: bool) -> None:
        records = self._records or (self.records_of(module, output, grad) if compiled else None)
        if records is None:
            return
        if compiled:
            # Compiled code uses its memory again, and the same object for it: nothing is known by its identity.
            self._tensors.end()
        self._returned(records, module, arguments, output)

    def _entered_compiled(self, module: nn.Module, arguments: Any, output: Any, grad: bool, compiled: bool) -> None:
        records = self._records or (self.records_of(module, arguments, grad) if compiled else None)
        # ModuleEntry reports the call of the root module, and all calls in a model without compiled parts.
        root = self._root
        if root is not None and self._root_compiled is None:
            self._root_compiled = is_compiled(root)
        notified = root is not None and (unwrap(root) is module or not (compiled or self._root_compiled))
        place = None if records is None or notified or not reads_inputs(self._port.plan) else self._place(module)
        if records is not None and place is not None:
            with torch.no_grad():
                entry = ModuleCall(records, place, module, arguments)
                self._events.notify(self._events.module_entered, entry, records)

    def _attended(self, given: dict[str, Any]) -> None:
        if self._records is not None:
            with torch.no_grad():
                self._events.notify(self._events.attention_compiled, given, self._records)

    def _returned(self, records: CapturedRecords, module: nn.Module, arguments: Any, output: Any) -> None:
        place = self._place(module)
        if place is None:
            return
        first = arguments[0] if self._functional and arguments else None
        if isinstance(first, Tensor) and self._rectified.finds(place, first):
            item = self._tensors.taken(place, "0", first, first.dim(), ("relu_output",))
            self._tensors.save(records, Role.INPUT, item)
        if self._port.plan.wants(Role.OUTPUT):
            if type(output) is Tensor:
                self._output(records, place, "", output)
            else:
                for path, tensor in tensors_in(output):
                    self._output(records, place, path, tensor)
        if self._events.module_called:
            call = ModuleCall(records, place, module, arguments, output)
            with torch.no_grad():
                self._events.notify(self._events.module_called, call, records)

    def _place(self, module: nn.Module) -> Place | None:
        place = self._models.module(module)
        if place is None and not self._refreshed and any(True for _ in module.parameters()):
            # A module that was added or materialised since the tree was read; once per forward is enough.
            self._refreshed = True
            self._models.refresh()
            place = self._models.module(module)
        return place

    def _output(self, records: CapturedRecords, place: Place, path: str, tensor: Tensor) -> None:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        item = self._tensors.returned(place, path, tensor, tensor.dim(), version_of(tensor))
        if item is None:
            return
        if place.kind is ModuleKind.RECTIFIER:
            self._rectified.made(tensor)
        self._tensors.save(records, Role.OUTPUT, item)
