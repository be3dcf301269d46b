"""Level ``next_steps``: all modules are examined in the steps after a failure that could not be explained.

The answer is known when the run fails again, the model returns non-finite values, or an update writes non-finite
weights. On the CPU it is known at once. On a device, the recorder's thread gives it when the numbers have arrived.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from watchglass.capture.facts import first_bad as analysis
from watchglass.capture.facts.first_bad import Found
from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.first_bad import operations
from watchglass.capture.pytorch.first_bad.extremes import bring_back
from watchglass.capture.pytorch.first_bad.lines import OperationLines
from watchglass.capture.pytorch.first_bad.trace import Trace
from watchglass.capture.pytorch.first_bad.weights import Weight, Weights
from watchglass.capture.pytorch.graph.autograd_graph import BackwardStart
from watchglass.capture.pytorch.modules.module_hooks import observe_calls
from watchglass.capture.pytorch.modules.module_tree import is_compiled, unwrap
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import CapturedRecords, DeferredFact, Forward, OpenStep
from watchglass.records import facts

_OVERWRITTEN = "the update that followed the failure overwrote the weights before it could be watched again"


class NextStepsWatch:
    """Looks at every module of the next steps, until an answer is found.

    Args:
        current: The state of the run.
        weights: The parameters.
    """

    def __init__(self, current: TrainingState, weights: Weights) -> None:
        self.losses: list[DeviceRows | float] = []  #: Losses of the step that are not finite, or not known yet.
        self._current = current
        self._weights = weights
        self._undo: list[Callable[[], None]] = []
        # Also set by the recorder's thread.
        self._answered = False
        self._left = 0
        self._failed: OpenStep | None = None
        self._step: OpenStep | None = None
        self._updated: tuple[int, str] | None = None
        self._traced: tuple[Forward, Trace] | None = None
        self._traces: list[tuple[Forward, Trace]] = []
        self._before: list[Weight] = []
        current.port.detach_with(self.disarm)

    @property
    def on(self) -> bool:
        """Whether modules are examined."""
        return bool(self._undo)

    def arm(self, step: OpenStep) -> None:
        """Look from the next forward on. Not where models are compiled, of which hooks see nothing."""
        current = self._current
        if self.on or any(is_compiled(root) for root in current.models.roots()):
            return
        current.models.refresh()
        # So that steps take the full path.
        current.quiet_steps = 0
        self._failed, self._left = step, current.port.limits.next_steps
        # So that a rule about time knows who makes these steps slow.
        step.records.add_fact(facts.ModulesExamined(self._left), "next steps")
        guarded = current.port.guarded
        current.every_gradient = True
        self._undo = [
            current.events.add(self),
            observe_calls(guarded(self._entered, unless=compiling), guarded(self._returned, unless=compiling)),
        ]

    def disarm(self) -> None:
        """Stop watching modules."""
        self._current.every_gradient = False
        while self._undo:
            self._undo.pop()()
        self._forget()
        self._failed = self._step = self._updated = None

    def loss_failed(self, step: OpenStep, loss: float, start: BackwardStart, lines: OperationLines) -> None:
        """The loss is not finite, and its backward, which begins at ``start``, has not run yet."""
        last = self._current.forward
        seen = [trace.seen for forward, trace in self._traces if forward is last or not forward.backpropagated]
        looks = [look for each in seen for look in each.looks]
        if any(look.coming is not None for look in looks):
            self.losses.append(loss)
        elif looks:
            found = analysis.of_loss(seen, "", chained=self._current.chained > 0)
            if found.where in ("forward", "loss"):
                found = found.by(operations.of_forward(start.graph, lines))
            self._answer(step, step.records, "loss", found)

    def gradients_failed(self, step: OpenStep, last: Found) -> None:
        """Gradients are not finite although the loss is; ``last`` is the answer from the gradients alone."""
        if self._traces:
            found = analysis.of_gradients(trace.seen for _, trace in self._traces)
            self._answer(step, step.records, "update point", found or last)

    def judge_later(self, step: OpenStep, *, gradients: bool, records: CapturedRecords | None = None) -> None:
        """Leave the values on devices of this step to the recorder's thread.

        Args:
            step: The step.
            gradients: Whether gradients that are not finite are a failure.
            records: Records for the answer, if not those of the step.
        """
        seen, weights, losses = [trace.seen for _, trace in self._traces], self._before, self.losses
        looks = [look for each in seen for look in (*each.looks, *(look for _, look in each.gradients))]
        looks += [weight.look for weight in weights]
        if not any(look.coming is not None for look in looks):
            return
        arrive = bring_back(looks)
        self._forget()
        number, writer = step.mode_step, self._updated

        def make() -> facts.FirstBadPlace | None:
            if self._answered:
                return None
            arrive()
            bad = next((weight for weight in weights if not weight.look.finite), None)
            found: Found | None
            if bad is not None:
                updated_at, by = writer or (-1, "")
                found = analysis.before_step(bad.place, number, by, updated_at)
            else:
                failed = any(not math.isfinite(one if isinstance(one, float) else one.resolve()) for one in losses)
                failed |= any(look.bad for each in seen for look in analysis.ends(each))
                found = analysis.of_gradients(seen) if gradients and not failed else None
                if failed and any(each.looks for each in seen):
                    found = analysis.of_loss(seen, "", chained=False)
            if found is None:
                return None
            self._answered = True
            return found.fact("next_steps", step=number)

        later = DeferredFact(facts.FirstBadPlace, make)
        (step.records if records is None else records).add_fact(later, "modules")

    def updated(self, step: OpenStep, optimizer: str) -> None:
        """An optimizer has stepped."""
        self._updated = (step.mode_step, optimizer)
        bad = self._weights.bad()
        if bad is not None:
            found = bad.found(f"is not finite since the update of step {step.mode_step} by {optimizer}")
            # After a failure this is neither new nor a cause.
            refused = _OVERWRITTEN if step is self._failed else ""
            more = {"optimizer": optimizer, "updated_at": step.mode_step, "refused": refused}
            self._answer(step, step.records, "update", found, **more)

    def each_forward_began(self, call: ForwardCall) -> None:
        """An outermost module is about to be called with gradients."""
        current, step = self._current, call.step
        current.quiet_steps = 0
        if step is not self._step:
            if self._step is not None:
                # A step whose update was left out.
                self.judge_later(self._step, gradients=False, records=step.records)
            self._forget()
            self._step = step
            if step is not self._failed:
                self._left -= 1
            if self._answered or self._left < 0:
                self.disarm()
                return
            if self._poisoned(call):
                return
        trace = Trace(current.models.module, call.kwargs, gradients=current.port.guard)
        self._traced = (call.forward, trace)
        self._traces.append(self._traced)
        if unwrap(call.root) is call.root:
            # Hooks on all modules were called before this.
            trace.entered(call.root, call.arguments)

    def _poisoned(self, call: ForwardCall) -> bool:
        """Whether the weights that a step begins with are not finite; on a device that is examined later."""
        weights = self._weights.look()
        self._before = [weight for weight in weights if weight.look.coming is not None]
        bad = next((weight for weight in weights if weight.look.coming is None and not weight.look.finite), None)
        if bad is None or call.step is self._failed:
            return False
        # It was finite as the last update ended.
        found = bad.found("was already not finite before this forward, and no optimizer wrote it so")
        self._answer(call.step, call.forward.records, "forward", found)
        return True

    def each_forward_ended(self, call: ForwardCall) -> None:
        """It has returned."""
        traced, self._traced = self._traced, None
        if traced is None or traced[0] is not call.forward:
            return
        if any(look.coming is None and look.bad for look in analysis.ends(traced[1].seen)):
            found = analysis.in_forward(traced[1].seen)
            if found is not None:
                self._answer(call.step, call.forward.records, "forward", found)

    def _entered(self, module: nn.Module, arguments: Any) -> None:
        traced, current = self._traced, self._current
        if traced is not None and not current.in_backward and traced[0] is current.forward:
            traced[1].entered(module, arguments)

    def _returned(self, module: nn.Module, arguments: Any, output: Any) -> None:
        traced, current = self._traced, self._current
        if traced is not None and not current.in_backward and traced[0] is current.forward:
            traced[1].returned(module, arguments, output)

    def _answer(self, step: OpenStep, records: CapturedRecords, source: str, found: Found, **more: Any) -> None:
        if not self._answered:
            self._answered = True
            records.add_fact(found.fact("next_steps", step=step.mode_step, **more), source)
            self._current.port.flush()
        self.disarm()

    def _forget(self) -> None:
        for _, trace in self._traces:
            trace.close()
        self._traces, self._before, self.losses = [], [], []
        self._traced = None
