"""The PyTorch adapter: puts the parts together and finds the models.

It listens through public hook points (module hooks, global optimizer hooks, module registration) and, where there are
none, through the functions wrapped in :mod:`~watchglass.capture.pytorch.switchboard`.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook, register_module_module_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from watchglass.capture.hook import Hook
from watchglass.capture.pytorch import switchboard
from watchglass.capture.pytorch.backwards import Backwards
from watchglass.capture.pytorch.first_bad import FirstBadModule
from watchglass.capture.pytorch.flow import Flow
from watchglass.capture.pytorch.forwards import ModuleCapture
from watchglass.capture.pytorch.outermost import OutermostCalls, describe_training
from watchglass.capture.pytorch.readings import Readings
from watchglass.capture.pytorch.update_point import UpdatePoint
from watchglass.config import environment
from watchglass.record import OpenStep

_adapters: weakref.WeakKeyDictionary[Hook, PyTorchAdapter] = weakref.WeakKeyDictionary()

#: Discovery by a global module hook ends after so many TRAIN steps without a new model.
_DISCOVERY_STEPS = 3


class PyTorchAdapter:
    """Watches PyTorch in this process through one hook.

    Args:
        hook: Where everything goes.
        discover: Find models by their outermost calls; otherwise only those given to :meth:`attach` count.
    """

    def __init__(self, hook: Hook, *, discover: bool) -> None:
        self._flow = Flow(hook)
        self._discover = discover
        self._discovery: Any = None
        self._capture = ModuleCapture(hook, self._flow.models)
        self._readings = Readings(hook, self._flow.models)
        first_bad = FirstBadModule(hook, self._flow.models)
        self._calls = OutermostCalls(self._flow, self._capture, self._begin_step)
        self._backwards = Backwards(self._flow, first_bad)
        self._updates = UpdatePoint(
            self._flow, self._readings, self._capture, first_bad, self._begin_step, self._unknown_parameters
        )
        hook.rank = _rank
        _adapters[hook] = self
        self._install(hook)

    @staticmethod
    def of(hook: Hook) -> PyTorchAdapter | None:
        """The adapter of a hook that has one."""
        return _adapters.get(hook)

    def attach(self, root: nn.Module) -> None:
        """Watch a model whose outermost call is ``root``."""
        self._calls.attach(root)

    def _install(self, hook: Hook) -> None:
        hook.detach_with(register_optimizer_step_pre_hook(hook.guarded(self._updates.before)).remove)
        hook.detach_with(register_optimizer_step_post_hook(hook.guarded(self._updates.after)).remove)
        listener = switchboard.Listener(
            before_backward=hook.guarded(self._backwards.before_backward),
            after_backward=hook.guarded(self._backwards.after_backward),
            loss_computed=hook.guarded(self._backwards.loss_computed),
            loss_scaled=hook.guarded(self._backwards.loss_scaled),
            before_scaler_step=hook.guarded(self._updates.before_scaler_step),
            after_scaler_step=hook.guarded(self._updates.after_scaler_step),
        )
        switchboard.listen(listener)
        hook.detach_with(lambda: switchboard.leave(listener))
        hook.detach_with(self._capture.switch_off)
        if self._discover:
            hook.detach_with(register_module_module_registration_hook(self._flow.models.parents.note).remove)
            hook.detach_with(self._stop_discovery)
            self._start_discovery()

    def _begin_step(self, step: OpenStep) -> None:
        flow = self._flow
        flow.hook.ensure_started()
        if step.due:
            self._readings.begin()
        if step.mode_step == 1:
            # Not at step 0: by the second step every model has been called.
            describe_training(flow, step)
        if self._discovery is not None and flow.quiet_steps > _DISCOVERY_STEPS:
            self._stop_discovery()

    def _start_discovery(self) -> None:
        self._flow.quiet_steps = 0
        if self._discovery is None:
            self._discovery = register_module_forward_pre_hook(self._flow.hook.guarded(self._discover_root))

    def _stop_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.remove()
            self._discovery = None

    def _discover_root(self, module: nn.Module, arguments: Any) -> None:
        flow = self._flow
        if flow.forward_depth or flow.in_backward or torch.compiler.is_compiling() or flow.models.knows(module):
            return
        if next(module.parameters(), None) is None:
            return  # a loss or an activation called by itself is no model
        self._calls.attach(module)
        # Its own hook was registered too late for this call; keyword arguments are not shown to a global one.
        self._calls.before(module, arguments, None)

    def _unknown_parameters(self) -> None:
        """An optimizer has parameters of no known model: look for models again."""
        if self._discover:
            self._start_discovery()


def _rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return environment.rank()
