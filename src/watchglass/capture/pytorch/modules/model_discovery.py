"""Discovery of models that the script does not name: modules that are called from outside any other module.

A global module hook sees such calls. It stays for a few steps only. The compiler makes code for a model that is called
while the hook is there and again once it is gone, so it goes before a compiled model's first call. A model that only a
compiled function calls is found by its parameters, when an optimizer is made with them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import Optimizer

from watchglass.capture.loops import loop_of, skipped
from watchglass.capture.pytorch.compiled.calls import CompiledCall, is_compiled_in_place
from watchglass.capture.pytorch.compiled.graphs import captured, compiling
from watchglass.capture.pytorch.modules.module_hooks import Switch
from watchglass.capture.pytorch.modules.module_tree import is_compiled, parameters_of
from watchglass.capture.pytorch.public_calls import OPTIMIZER_GIVEN
from watchglass.capture.pytorch.step.root_calls import RootCalls
from watchglass.capture.pytorch.training_state import TrainingState

#: TRAIN steps without a new model after which the global hook goes.
_STEPS = 3


class Discovery:
    """Finds models.

    Args:
        current: The state of the run.
        calls: Notified of models that are found.
    """

    def __init__(self, current: TrainingState, calls: RootCalls) -> None:
        self._current = current
        self._calls = calls
        # The hook stays until the next outermost call only.
        self._passing = False
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # Hooks on modules that were compiled in place.
        self._in_place: weakref.WeakKeyDictionary[nn.Module, CompiledCall] = weakref.WeakKeyDictionary()
        # Models are compiled: the global hook must not come back.
        self._by_parameters = False
        # A compiled function may call models, which no hook sees.
        self._expecting = False
        port = current.port
        guarded: Callable[..., Any] = port.guarded(self._called, unless=compiling)
        self._observing = Switch(lambda: register_module_forward_pre_hook(guarded))
        note = port.guard.shielded(current.models.parents.note)
        port.detach_with(register_module_module_registration_hook(note).remove)
        note_parameter = port.guard.shielded(current.models.parents.note_parameter)
        port.detach_with(register_module_parameter_registration_hook(note_parameter).remove)
        port.detach_with(OPTIMIZER_GIVEN.listen(port.guard, after=port.guarded(self._optimizer_made)))
        port.detach_with(self.stop)
        self.start()

    @property
    def has_optimizers(self) -> bool:
        """Whether the script holds an optimizer that it made."""
        return bool(self._optimizers)

    def start(self) -> None:
        """Look for models by their calls from now on."""
        self._current.quiet_steps = 0
        self._passing = False
        if not self._observing:
            # Wrappers made by torch.compile warn of global hooks, which they call as well; that is what we want here.
            warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
            self._observing(True)

    def stop(self) -> None:
        """Stop observing."""
        self._passing = False
        self._observing(False)

    def between(self, evaluating: bool) -> bool:
        """An outermost call has ended or begins: look for other models between those of an evaluation only.

        So a copy of the model, such as an average of its weights, is not taken for the model that was evaluated before.
        """
        if evaluating and not (self._observing or self._by_parameters or self._expecting):
            self._passing = True
            self._observing(True)
        elif not evaluating and (self._passing or self._current.quiet_steps > _STEPS):
            self.stop()
        return bool(self._observing)

    def unknown(self, optimizer: Optimizer) -> bool:
        """An optimizer steps parameters of no known model; returns whether there is hope to find it."""
        if self.find(parameters_of(optimizer)):
            return True
        if self._by_parameters or self._current.silent:
            return False
        self.start()
        return True

    def compiled(self, module: nn.Module) -> None:
        """A module of no watched model was compiled."""
        self.start()
        if is_compiled_in_place(module):
            # Its calls are seen by no hook.
            call = self._in_place[module] = CompiledCall(module, self._current.port.guarded(self._called))
            self._current.port.detach_with(call.remove)

    def expect(self) -> None:
        """A compiled function may call models, at any time."""
        self._expecting = True
        self.between(False)
        for optimizer in list(self._optimizers):
            self.find(parameters_of(optimizer))

    def _optimizer_made(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        optimizer = arguments[0]
        self._optimizers.add(optimizer)
        if self._expecting:
            self.find(parameters_of(optimizer))
        elif not (self._by_parameters or self._observing) and self._is_new(optimizer):
            # As of the next training run in this process: its first step must be observed, too.
            self.start()

    def _is_new(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has a parameter of no known model in the group that it was given last."""
        groups, models = optimizer.param_groups, self._current.models
        given = groups[-1]["params"] if groups else ()
        return any(models.parameter(each) is None and not models.in_a_tree(each) for each in given)

    def _is_optimized(self, module: nn.Module) -> bool:
        own = {id(parameter) for parameter in module.parameters()}
        return any(id(each) in own for optimizer in list(self._optimizers) for each in parameters_of(optimizer))

    def find(self, parameters: Iterable[Tensor]) -> bool:
        """Watch the models that hold any of these parameters; returns whether there are any."""
        models = self._current.models
        wanted = list(parameters)
        owners = [owner for owner in models.parents.owners(wanted) if is_ours(owner)]
        for owner in owners:
            if not models.holds(owner):
                self._calls.attach(owner)
        models.trained(wanted)
        return bool(owners)

    def _called(self, module: nn.Module, arguments: Any, kwargs: Any = None) -> None:
        current = self._current
        if module is current.root:
            return  # each batch of an evaluation calls it once more
        if current.forward_depth and current.models.holds(module):
            return  # at a glance: to look whether a forward is under way takes longer the deeper it is
        if current.in_forward or current.in_backward or current.models.knows(module) or captured():
            return
        if skipped(module, (arguments, kwargs), lambda: self._is_optimized(module)):
            return
        if next(module.parameters(), None) is None or isinstance(module, (ParametrizationList, torch.jit.ScriptModule)):
            # A loss or activation called alone is no model, nor is a parametrization; scripted modules take no hooks.
            if not type(module).__module__.startswith("torch.") and not is_compiled(module):
                self._calls.criterion(module)
            return
        owner = current.models.parents.owner(module)
        if not is_ours(owner):
            current.models.own(module)
        call = self._in_place.get(module)
        if call is not None:
            # The running call still reports to this hook, which is removed below.
            call.after = self._calls.ended
            call.remove()
        self.between(False)
        self._calls.attach(module)
        for inside in [inside for inside in self._in_place if current.models.holds(inside)]:
            self._in_place.pop(inside).remove()
        if is_compiled(module):
            self.stop()
            self._by_parameters = True
        # Its own hook was registered too late for this call; keyword arguments are not shown to a global one.
        self._calls.before(module, arguments, kwargs)


def is_ours(owner: nn.Module) -> bool:
    """Whether no loop around PyTorch drives the steps of a model and leaves it to PyTorch to collect their values."""
    found = loop_of(owner, drives=True)
    return found is None or found.name == "torch" or found.collects
