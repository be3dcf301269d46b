"""The first bad module: which module first produced a NaN or an infinity, in three levels.

Level ``rerun``: while the weights are still those of the failing forward, the search repeats the forward and examines
every module. If the loss is finite and a gradient is not, it repeats the backward too, never into ``.grad``. Level
``next_steps``: if a re-run is impossible, the reason is recorded, and all modules are examined in the next steps. Level
``flags``: the answer until then, which states that the loss, or these gradients, are not finite. Weights that were
already bad before the forward are reported as such, so that the first layer does not appear as the cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer

from watchglass.capture.facts import first_bad as analysis
from watchglass.capture.facts.first_bad import Found
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.first_bad import operations
from watchglass.capture.pytorch.first_bad.forward_replay import RefusedError
from watchglass.capture.pytorch.first_bad.lines import NotedForwards, OperationLines, ways_of
from watchglass.capture.pytorch.first_bad.rerun import Rerun
from watchglass.capture.pytorch.first_bad.suspects import Suspects
from watchglass.capture.pytorch.first_bad.watch_next_steps import NextStepsWatch
from watchglass.capture.pytorch.first_bad.weights import Weights
from watchglass.capture.pytorch.graph.autograd_graph import BackwardStart
from watchglass.capture.pytorch.modules.module_tree import is_compiled
from watchglass.capture.pytorch.saving.norm_interval import NormInterval
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.saving.parameters import LateGradients
from watchglass.record import DeferredFact, OpenStep, Readback
from watchglass.records import OperationFault, facts

_LATE = "on a device the loss is read after the update has changed the weights"
_UNTESTED = "the loss was known before the update, but re-runs on a device are not tested yet"
_LOSS = Found("loss", None, "loss", "the loss is not finite")


class FirstBadModule:
    """Searches once per run, at the first sign of a non-finite value.

    Args:
        current: The state of the run.
    """

    def __init__(self, current: TrainingState) -> None:
        self._current = current
        self._weights = Weights(current.models)
        self._rerun = Rerun(current, self._weights)
        self._next_steps = NextStepsWatch(current, self._weights)
        self._done = False
        # Set by the recorder's thread, which reads numbers from devices first.
        self._late = False
        self._coming: DeviceRows | None = None
        self._lines = OperationLines()
        self._suspects = Suspects(NormInterval(current.port.plan, 1.0, current.port.limits.norm_interval))
        # The step whose gradients an operation may spoil.
        self._feared: tuple[OpenStep, OperationFault] | None = None
        current.events.add(self)
        current.port.detach_with(lambda: self._lines.note(False))
        self._noting = NotedForwards(current.events, self._lines, self._reads, lambda: self._suspects.wants_lines)

    def step_began(self, step: OpenStep) -> None:
        """A captured step begins: lines of its forwards may be wanted."""
        if not self._done:
            self._noting.listen()

    def resting(self, on: bool) -> None:
        """Steps take the fast path."""
        self._lines.note(False)

    def _reads(self, call: ForwardCall) -> bool:
        """Whether the graph of a step is to be read."""
        if not call.step.due or self._done or is_compiled(call.root):
            return False
        return self._suspects.wants(call.forward.model, call.step.mode_step)

    def finite_loss(self, step: OpenStep, start: BackwardStart) -> None:
        """A backward begins from a finite loss: its gradients may not be finite."""
        current = self._current
        if self._done or self._next_steps.on or start.node is None:
            return
        model = current.forward.model if current.forward is not None else 0
        if step.due and self._suspects.wants(model, step.mode_step):
            ways = ways_of(start.graph)
            self._lines.learn(start.graph, ways)
            self._suspects.learn(model, step.mode_step, start.graph, ways, self._lines)
            current.looks_at_loss = self._suspects.are_bad_if_affordable if self._suspects.all else None
        look = self._suspects.are_bad if step.due else self._suspects.are_bad_if_affordable
        if self._suspects.all and look(start.node):
            operation = operations.of_backward(start.graph, self._lines)
            if operation is not None:
                self._feared = step, operation
                current.every_gradient = True

    def loss_suspected(self, step: OpenStep, loss: float | Readback, start: BackwardStart) -> None:
        """A backward begins from a loss that is not finite, or that only the recorder's thread will read."""
        if not isinstance(loss, float):
            self._on_device(step, loss)
            return
        self._current.port.flush()
        step.records.add_fact(facts.NonfiniteLoss(str(loss)), "backward")
        if self._next_steps.on:
            self._next_steps.loss_failed(step, loss, start, self._lines)
        elif not self._done and not self._is_harmless(step, start):
            try:
                answer = self._poisoned(step) or self._rerun.of_forward(step, start, self._lines)
            except RefusedError as reason:
                operation = operations.of_forward(start.graph, self._lines)
                answer = _LOSS.fact("flags", refused=str(reason))
                if operation is not None:
                    answer = Found("loss", None, "loss", operation.sentence, operation).fact("graph")
            self._answer(step, "loss", answer)

    def _is_harmless(self, step: OpenStep, start: BackwardStart) -> bool:
        """Whether the loss is not finite, but its gradients are zero: recorded, and the search goes on."""
        operation = operations.of_forward(start.graph, self._lines)
        if operation is None or not operation.harmless:
            return False
        found = Found("loss", None, "loss", operation.sentence, operation)
        step.records.add_fact(found.fact("graph"), "loss")
        return True

    def gradients_suspected(self, step: OpenStep, bad: list[str] | LateGradients) -> None:
        """The loss is finite, but gradients are not, or may not be."""
        if isinstance(bad, LateGradients):
            if not self._done:
                self._later(step, "update point", lambda: self._last(names) if (names := bad.bad()) else None)
            return
        self._current.port.flush()
        feared, self._feared = self._feared, None
        if self._next_steps.on:
            self._next_steps.gradients_failed(step, self._last(bad))
        elif feared is not None and feared[0] is step and not self._done:
            answer = self._poisoned(step) or self._last(bad).by(feared[1]).fact("graph")
            self._answer(step, "update point", answer)
        elif not self._done:
            try:
                answer = self._poisoned(step) or self._rerun.of_backward(step, bad)
            except RefusedError as reason:
                answer = self._last(bad).fact("flags", refused=str(reason))
            self._answer(step, "update point", answer)

    def _on_device(self, step: OpenStep, loss: Any) -> None:
        self._coming = loss
        if self._late and not self._done:
            self._done = True
            self._next_steps.arm(step)
        if self._next_steps.on:
            self._next_steps.losses.append(loss)
        step.records.add_fact(DeferredFact(facts.NonfiniteLoss, lambda: _failed(loss)), "backward")
        if not self._done:
            self._later(step, "loss", lambda: _LOSS if _failed(loss) else None)

    def each_update_began(self, step: OpenStep, scaled: bool) -> None:
        """Gradients are final: on a device this is the last moment to send the extremes of this step."""
        coming, self._coming = self._coming, None
        if not self._done and coming is not None and coming.ready and _failed(coming):
            # The training itself has waited for its loss. This is where a re-run on a device belongs.
            self._late = True
            self._answer(step, "loss", _LOSS.fact("flags", refused=_UNTESTED))
        if self._next_steps.on:
            self._next_steps.judge_later(step, gradients=not scaled)

    def each_update_ended(self, step: OpenStep, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        self._weights.writers.add(optimizer)
        if self._feared is not None:
            # Its gradients were finite.
            self._feared = None
            self._suspects.alarmed()
        if self._current.every_gradient and not self._next_steps.on:
            self._current.every_gradient = False
        if self._next_steps.on:
            self._next_steps.updated(step, type(optimizer).__name__)

    def _answer(self, step: OpenStep, source: str, answer: facts.FirstBadPlace) -> None:
        self._done = True
        self._current.looks_at_loss = None
        step.records.add_fact(answer, source)
        if answer.refused or (answer.where == "loss" and not answer.verified and answer.operation is None):
            self._next_steps.arm(step)

    def _later(self, step: OpenStep, source: str, find: Callable[[], Found | None]) -> None:
        """Record the answer of the recorder's thread, unless there is one already."""

        def make() -> facts.FirstBadPlace | None:
            found = None if self._late else find()
            if found is None:
                return None
            self._late = True
            return found.fact("flags", refused=_LATE)

        step.records.add_fact(DeferredFact(facts.FirstBadPlace, make), source)

    def _poisoned(self, step: OpenStep) -> facts.FirstBadPlace | None:
        bad = self._weights.bad()
        if bad is None:
            return None
        writer, last = self._weights.writer_of(bad), step.mode_step - 1
        found = analysis.before_forward(bad.place, writer, last)
        return found.fact("flags", **({"optimizer": writer, "updated_at": last} if writer and last >= 0 else {}))

    def _last(self, bad: Sequence[str]) -> Found:
        return analysis.last_gradient(bad[-1], self._weights.place_of(bad[-1]))


def _failed(loss: DeviceRows) -> facts.NonfiniteLoss | None:
    value = float(loss.resolve())
    return None if math.isfinite(value) else facts.NonfiniteLoss(str(value))
