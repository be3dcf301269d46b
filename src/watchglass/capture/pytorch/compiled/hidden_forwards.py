"""Forwards that no hook observes: a compiled function calls the model, and all its hooks run inside compiled code.

Such a forward is visible only at captured steps, where its modules report their outputs. So it must be known before the
forward whether its step is captured. All other steps are recognised by their updates alone.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from torch import nn

from watchglass.capture.pytorch.step.module_capture import ModuleCapture, first_tensor
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import CapturedRecords, Forward, OpenStep
from watchglass.records import facts

_log = logging.getLogger("watchglass")

#: Captured steps without a visible forward, before that is reported.
_PATIENCE = 2


class HiddenForwards:
    """Opens a forward when its first module returns. For the training thread.

    Args:
        current: The state of the training run.
        capture: Receives the outputs of modules.
    """

    def __init__(self, current: TrainingState, capture: ModuleCapture) -> None:
        self._current = current
        self._capture = capture
        self._forward: Forward | None = None
        # Captured steps in a row that had no forward; None when that has been reported.
        self._missing: int | None = 0
        capture.records_of = self.records_of
        current.events.add(self)

    def expect(self) -> None:
        """A function was compiled that may call any module."""
        self._capture.expect_compiled()
        self.each_step_updated(None)

    def each_step_updated(self, step: OpenStep | None) -> None:
        """After the update of ``step``, or before the first: be ready if the next one is captured."""
        current, capture = self._current, self._capture
        if step is not None:
            if any(forward is not self._forward for forward in step.forwards):
                return
            self._report(step)
        model, next_step = 0 if step is None else step.model, current.port.clock.next_train_step
        if capture.compiled.has_roots and current.port.alternating.next_due(model, next_step) == next_step:
            capture.compiled.switch(True)

    def records_of(self, module: nn.Module, output: Any, grad: bool) -> CapturedRecords | None:
        """Records for a module's output outside any observed forward; None to skip it."""
        current, clock = self._current, self._current.port.clock
        forward, before = self._forward, clock.train
        if not grad or current.in_backward or current.update_depth:
            return None
        if forward is None or forward.backpropagated or before is None or before.updated:
            forward = self._forward = current.forward = clock.forward(grad=True, training=module.training)
            # Without hooks it stays unknown which backward runs through it.
            forward.marked = False
            batch = first_tensor((output,), None)
            forward.weight = float(batch.shape[0]) if batch is not None and batch.dim() else 1.0
            if clock.train is not None and (clock.train is not before or clock.train.by_hand):
                current.begin_step(clock.train)
        return forward.records if clock.train is not None and clock.train.due else None

    def _report(self, step: OpenStep) -> None:
        if self._missing is None or not step.due:
            return
        # Without compiled code, the script may never call the watched modules.
        self._missing = self._missing + 1 if not step.forwards and "torch._dynamo" in sys.modules else 0
        if self._missing >= _PATIENCE:
            self._missing = None
            names = [type(root).__name__ for root in self._current.models.roots()]
            step.records.add_fact(facts.NotCapturable(tuple(names)), "calls are not observed")
            _log.warning(
                "watchglass: activations of %s are not capturable: its calls cannot be observed: a function that calls "
                "it was compiled and called before, it is TorchScript, its forward is called directly, or an autograd "
                "function calls it; where possible, call watchglass.watch before all of these, and the module itself",
                ", ".join(names) or "the model",
            )
