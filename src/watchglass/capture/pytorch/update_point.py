"""The update point: what happens around an optimizer's step, and around a scaler's."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.pytorch.first_bad import FirstBadModule
from watchglass.capture.pytorch.flow import Flow
from watchglass.capture.pytorch.forwards import ModuleCapture
from watchglass.capture.pytorch.readings import Readings, describe_bad
from watchglass.record import OpenStep
from watchglass.records import Role


class UpdatePoint:
    """Callbacks of optimizers and scalers.

    Args:
        flow: Where the training is.
        readings: What is read of parameters.
        capture: Switched off at the update.
        first_bad: Asked where a non-finite gradient came from.
        begin_step: Called when a TRAIN step has opened.
        unknown: Called when an optimizer steps parameters of no known model.
    """

    def __init__(
        self,
        flow: Flow,
        readings: Readings,
        capture: ModuleCapture,
        first_bad: FirstBadModule,
        begin_step: Callable[[OpenStep], None],
        unknown: Callable[[], None],
    ) -> None:
        self._flow = flow
        self._readings = readings
        self._capture = capture
        self._first_bad = first_bad
        self._begin_step = begin_step
        self._unknown = unknown
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._stepped_in_scaler = False
        self._gradients_read = False

    def before(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> Any:
        """An optimizer is about to step; returns changed arguments when there is a closure to be wrapped."""
        flow = self._flow
        self._stepped_in_scaler = True
        if flow.update_depth:
            flow.update_depth += 1
            return None  # super().step(), or an optimizer inside another
        if not self._ours(optimizer):
            return None
        before = flow.hook.clock.train
        if before is None or id(optimizer) in before.optimizers:
            flow.hook.check_stop()
        flow.update_depth = 1
        self._gradients_read = False
        closure = kwargs.get("closure", arguments[1] if len(arguments) > 1 else None)
        step = flow.hook.clock.begin_update(id(optimizer))
        if step is not before:
            self._begin_step(step)
            if closure is None:
                self._readings.trust()
            for loss in flow.unplaced:
                flow.hook.add_scalar(step.records, "loss", loss, Role.LOSS)
        flow.unplaced.clear()
        if step.due:
            with torch.no_grad():
                self._readings.describe(step, optimizer)
                self._readings.weights(step, optimizer)
        if closure is None:
            self._read_gradients(step, optimizer)
            return None
        flow.in_closure = True
        return self._with_closure(step, optimizer, arguments, kwargs, closure)

    def after(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        flow = self._flow
        if not flow.update_depth or optimizer not in self._optimizers:
            return
        flow.update_depth -= 1
        if flow.update_depth:
            return
        flow.in_closure = False
        step = flow.hook.clock.train
        if step is None:
            return
        found = optimizer.__dict__.get("found_inf")
        if isinstance(found, Tensor) and found.device.type == "cpu" and bool(found):
            step.records.facts.append(("step_skipped", type(optimizer).__name__, {"loss_scale": None}))
        if step.due:
            with torch.no_grad():
                self._readings.updated(step)
        self._readings.learning_rates(step, optimizer, self._optimizers[optimizer], len(self._optimizers) > 1)
        self._end(step)

    def before_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        """A scaler is about to step an optimizer or to skip it."""
        self._stepped_in_scaler = False

    def after_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        """When no optimizer stepped, or a fused one did nothing, the update was skipped: that too ends the step."""
        clock = self._flow.hook.clock
        if self._stepped_in_scaler or clock.train is None or not self._ours(optimizer):
            return
        step = clock.begin_update(id(optimizer))
        scale = float(scaler.get_scale()) if _on_cpu(optimizer) else None
        step.records.facts.append(("step_skipped", "GradScaler.step", {"loss_scale": scale}))
        self._readings.forget()
        self._end(step)

    def _ours(self, optimizer: Optimizer) -> bool:
        if optimizer in self._optimizers:
            return True
        if not self._readings.parameters(optimizer):
            self._unknown()
            return False
        self._optimizers[optimizer] = sum(len(other.param_groups) for other in self._optimizers)
        return True

    def _with_closure(
        self, step: OpenStep, optimizer: Optimizer, arguments: Any, kwargs: Any, closure: Callable[[], Any]
    ) -> tuple[Any, Any]:
        read = self._flow.hook.guarded(functools.partial(self._read_gradients, step, optimizer))

        def watched() -> Any:
            result = closure()
            read()
            return result

        if "closure" in kwargs:
            return arguments, {**kwargs, "closure": watched}
        return (arguments[0], watched, *arguments[2:]), kwargs

    def _read_gradients(self, step: OpenStep, optimizer: Optimizer) -> None:
        if self._gradients_read or not (step.due or self._readings.norm_due(step)):
            return
        # A closure may be called many times; its first gradients are those of the weights as they were.
        self._gradients_read = True
        scale = getattr(optimizer, "grad_scale", None)
        with torch.no_grad():
            fresh = self._readings.fresh_gradients(optimizer, step.due)
            bad = self._readings.norm(step, fresh, scale)
            if step.due:
                self._readings.gradients(step, fresh, scale)
        # With a scaler on, overflow is how it finds its scale: the update will be skipped.
        if bad and scale is None:
            step.records.facts.append(("nonfinite_gradients", "update point", describe_bad(bad)))
            self._first_bad.in_backward(step, self._flow.forward, bad)
            self._flow.hook.flush()

    def _end(self, step: OpenStep) -> None:
        flow = self._flow
        self._capture.switch_off()
        flow.hook.clock.end_update()
        for forward in step.forwards:
            forward.state = None
        flow.quiet_steps += 1


def _on_cpu(optimizer: Optimizer) -> bool:
    first: Tensor | None = next((p for group in optimizer.param_groups for p in group["params"]), None)
    return first is not None and first.device.type == "cpu"
