"""The update point: callbacks around the steps of optimizers and scalers."""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import Update
from watchglass.capture.pytorch.fast_path.path import FastPath
from watchglass.capture.pytorch.losses.objective import Objective, groups
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.capture.pytorch.saving.parameter_reader import ParameterReader
from watchglass.capture.pytorch.step.module_capture import ModuleCapture
from watchglass.capture.pytorch.step.stages import TrainingStages
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.pytorch.updates.update_counters import settle_start
from watchglass.capture.pytorch.updates.watched_optimizers import WatchedOptimizers
from watchglass.capture.saving.parameters import LateGradients, describe_bad
from watchglass.capture.wrappers_importlib_bootstrap import RAISED, around
from watchglass.config import chosen_facts
from watchglass.record import CapturedRecords, DeferredFact, OpenStep
from watchglass.records import SCALARS, Mode, Role, facts, series_name


@dataclass(eq=False)
class ScriptOptimizer:
    """Represents the lines of a script that change parameters, where other parts expect an optimizer."""

    parameters: Callable[[], list[Tensor]]
    state: dict[Any, Any] = field(default_factory=dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """All parameters that are there now, as one group."""
        return [{"params": self.parameters()}]


class UpdatePoint:
    """Callbacks of optimizers and scalers.

    Args:
        current: The state of the run.
        readings: Reads parameters.
        capture: Switched off at the update.
        fast_path: Learns from every step that is over.
        optimizers: Those that update watched models.
        stages: Notices that an update begins a stage of the training.
    """

    def __init__(
        self,
        current: TrainingState,
        readings: ParameterReader,
        capture: ModuleCapture,
        fast_path: FastPath,
        optimizers: WatchedOptimizers,
        stages: TrainingStages,
    ) -> None:
        self._current = current
        self._readings = readings
        self._capture = capture
        self._fast_path = fast_path
        self._optimizers = optimizers
        self._stages = stages
        self._in_scaler = self._stepped_in_scaler = False
        # A closure's first call has the loss of the weights before the update.
        self._first_objectives: dict[int, Objective] | None = None
        self._plain = False
        #: Called as an optimizer steps: other changes that a script makes to weights are no updates.
        self.on_step: Callable[[Optimizer], None] = lambda optimizer: None
        # Weights and gradients, read in advance for a possible update by the script.
        self._weights_read: OpenStep | None = None
        self._late_gradients: OpenStep | None = None
        current.port.on_finished.append(self._record_left)
        # The last updated step, with the objectives of its models.
        self._objectives: tuple[int, dict[int, Objective]] = (-1, {})

    def before(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> Any:
        """An optimizer is about to step; returns changed arguments when there is a closure to be wrapped."""
        current = self._current
        for listener in current.events.optimizer_steps:
            listener(optimizer)
        self._stepped_in_scaler = True
        if current.update_depth:
            if _inside_another():
                current.update_depth += 1
                self._plain = False
                return None  # super().step(), or an optimizer that another one holds
            current.leave_update()
        if optimizer in current.foreign or current.silent:
            return None
        self._plain = len(arguments) == 1 and not kwargs and not self._in_scaler
        closure = kwargs.get("closure", arguments[1] if len(arguments) > 1 else None)
        if not self._optimizers.admit(optimizer):
            # The closure may be the first to call the model.
            late = functools.partial(self._begin_late, optimizer)
            return None if closure is None else self._with_closure(late, arguments, kwargs, closure)
        before = current.port.clock.train
        if before is None or id(optimizer) in before.optimizers:
            current.port.apply_changes()
        step = self._begin(optimizer, closure=closure is not None)
        if closure is not None:
            read = functools.partial(self._read_gradients, step, optimizer)
            return self._with_closure(read, arguments, kwargs, closure)
        self._read_gradients(step, optimizer)
        return None

    def _begin_late(self, optimizer: Optimizer) -> None:
        """The closure of an optimizer of unknown parameters has returned."""
        if not self._current.update_depth and self._optimizers.admit(optimizer):
            self._read_gradients(self._begin(optimizer, closure=True), optimizer)

    def _begin(self, optimizer: Optimizer, *, closure: bool) -> OpenStep:
        current = self._current
        if current.phases is not None:
            current.phases.begin_update()
        before = current.port.clock.train
        self.on_step(optimizer)
        current.update_depth = 1
        self._first_objectives = None
        step = current.port.clock.begin_update(id(optimizer))
        if current.port.resumption.open:
            settle_start(optimizer, current.models, current.port.resumption)
        # Not with the first forward: one with gradients on may be all that this process ever does.
        current.port.ensure_started()
        if step is not before or step.by_hand:
            self._current.begin_step(step)
            if not closure:
                self._readings.trust()
        if step.due:
            # An evaluation in the middle of the step has queried the plan for its own step.
            current.port.plan.resume()
            with torch.no_grad():
                self._readings.weights(step, optimizer)
        return step

    def after(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        current = self._current
        for stepped in current.events.optimizer_stepped:
            stepped(optimizer)
        if current.update_depth > 1:
            current.update_depth -= 1  # whichever it is: its beginning was counted as well
            return
        if not current.update_depth or optimizer not in self._optimizers.numbers:
            return
        current.update_depth = 0
        step = current.port.clock.train
        if step is None:
            return
        found = optimizer.__dict__.get("found_inf")
        if isinstance(found, Tensor):
            self._skipped_where(found, step, type(optimizer).__name__)
        if step.due:
            with torch.no_grad():
                self._readings.updates.save(step.records)
            self._notify(current.events.update_ended, step, optimizer)
        self._readings.learning_rates(step, optimizer, self._optimizers.numbers[optimizer], self._optimizers.several)
        for listener in current.events.each_update_ended:
            listener(step, optimizer)
        losses = [objective.value for objective in self._objectives[1].values()]
        if not self._plain or not all(type(loss) is float and math.isfinite(loss) for loss in losses):
            self._fast_path.cycle.forget()
        plain = self._plain and len(self._optimizers.numbers) == 1
        learned = self._fast_path.pattern.learn(step, optimizer, self._objective(), plain=plain)
        current.objectives.updated(optimizer)
        self._end(step)
        if learned:
            self._fast_path.enter()

    def may_be_handwritten(self, script: Any, *, read: bool) -> None:
        """A backward has ended, and lines of the script may change parameters before the next begins.

        Args:
            script: A :class:`ScriptOptimizer` for these lines.
            read: Read weights and gradients as they are now, where the step is captured: later they may be others.
        """
        clock = self._current.port.clock
        step = clock.train
        if step is None or step.updated:
            # Tensors outside all modules; the update is given up again if none of them changes.
            step = clock.begin_update(id(script))
            step.optimizers.discard(id(script))
            self._current.begin_step(step)
            self._readings.trust()
        if not read:
            return
        known = self._weights_read
        if step.due and (known is None or known.global_step != step.global_step):
            self._current.port.plan.resume()
            self._weights_read = known = replace(step, records=CapturedRecords())
            self._readings.weights(known, script)
        # Micro-batches add up: those of the last backward before the update are those that it uses.
        self._late_gradients = late = replace(step, records=CapturedRecords())
        self._gradients_are_final(late, scaled=False)
        self._look_at_gradients(late, script, min(self._readings.models_of(script), default=0), None)
        if step.due:
            self._notify(self._current.events.script_update_began, step, script)

    def gradients_read(self, records: CapturedRecords) -> None:
        """Take these for what was read of the gradients that an update by the script may use."""
        step = self._current.port.clock.train
        if step is not None:
            self._late_gradients = replace(step, records=records)

    def replaced(self, script: Any) -> None:
        """Lines of the script have replaced parameters."""
        self._readings.look_again(script)

    def handwritten(self, script: Any, *, plain: bool) -> bool:
        """Lines of the script have changed parameters since the last backward, or replaced them: that step is over.

        Args:
            script: A :class:`ScriptOptimizer` for these lines.
            plain: Whether all parameters are those of modules.

        Returns:
            Whether enough steps followed the pattern of the fast path.
        """
        current = self._current
        step = current.port.clock.train
        if step is None or step.updated:
            return False
        step.optimizers.add(id(script))
        current.port.ensure_started()
        for held in (self._weights_read, self._late_gradients):
            if held is not None and held.global_step == step.global_step:
                step.records.absorb(held.records)
        with torch.no_grad():
            if self._weights_read is not None and self._weights_read.global_step == step.global_step:
                self._readings.updates.save(step.records)
            if step.due:
                self._notify(current.events.script_update_ended, step, script)
            model = self._meet(step, script, current.objectives.of(script) or current.objectives.recent())
            self._readings.describe(step, script, model)
        self._weights_read = self._late_gradients = None
        plain = plain and not self._optimizers.numbers
        learned = self._fast_path.pattern.learn(step, script, self._objective(), plain=plain, by_script=True)
        current.objectives.updated(script)
        self._end(step)
        return learned

    def before_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A scaler is about to step an optimizer or to skip it."""
        self._stepped_in_scaler = False
        self._in_scaler = True

    def after_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """When no optimizer stepped, or a fused one did nothing, the update was skipped: that too ends the step."""
        scaler, optimizer = args[0], args[1] if len(args) > 1 else kwargs["optimizer"]
        self._in_scaler = False
        clock = self._current.port.clock
        if self._stepped_in_scaler or clock.train is None or not self._optimizers.admit(optimizer):
            return
        step = clock.begin_update(id(optimizer))
        if self._current.port.resumption.open:
            settle_start(optimizer, self._current.models, self._current.port.resumption)
        scale = float(scaler.get_scale()) if _on_cpu(optimizer) else None
        self._skipped(step, "GradScaler.step", facts.StepSkipped(scale))
        self._readings.updates.forget()
        self._meet(step, optimizer)
        self._current.objectives.updated(optimizer)
        self._end(step)

    def _skipped_where(self, found: Tensor, step: OpenStep, source: str) -> None:
        """``found`` reported to a fused optimizer whether to skip its update."""
        if found.device.type == "cpu":
            if bool(found):
                self._skipped(step, source, facts.StepSkipped())
            return
        with torch.no_grad():
            skips = DeviceRows(found.detach().reshape(()).float())
        later = DeferredFact(facts.StepSkipped, lambda: facts.StepSkipped() if skips.resolve() else None)
        self._skipped(step, source, later)

    def _skipped(self, step: OpenStep, source: str, fact: facts.StepSkipped | DeferredFact[facts.StepSkipped]) -> None:
        if fact.KIND in chosen_facts(self._current.port.config.facts):
            step.records.add_fact(fact, source)

    def _with_closure(
        self, then: Callable[[], None], arguments: Any, kwargs: Any, closure: Callable[[], Any]
    ) -> tuple[Any, Any]:
        """The arguments of a step whose closure calls ``then`` as it returns."""
        current = self._current
        returned = current.port.guarded(then)

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            current.in_closure = True
            return True

        def end(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            current.in_closure = False
            if result is not RAISED:
                returned()

        watched = around(closure, begin, end)
        if "closure" in kwargs:
            return arguments, {**kwargs, "closure": watched}
        return (arguments[0], watched, *arguments[2:]), kwargs

    def _meet(self, step: OpenStep, optimizer: Optimizer, found: dict[int, Objective] | None = None) -> int:
        """Add the objectives of an optimizer's gradients to the step; returns the number of the model that leads.

        Models whose gradients are of the same losses are trained together, and the first of them leads.

        Args:
            step: The step.
            optimizer: The optimizer.
            found: The objectives of its gradients, where these are not as they were.
        """
        step.models |= self._readings.models_of(optimizer)
        if found is None:
            found = self._current.objectives.of(optimizer)
        self._first_objectives = found
        if self._objectives[0] != step.global_step:
            self._objectives = (step.global_step, {})
        known = self._objectives[1]
        for model, objective in found.items():
            known[model] = objective.joined(known[model]) if model in known else objective
        led = groups(known)
        port = self._current.port
        for leader, members in led.items():
            port.clock.leaders.update(dict.fromkeys(members, leader))
        losses = {port.ids.known(series_name("loss", model)) for model in known}
        scalars = step.records.rows[SCALARS]
        scalars[:] = [row for row in scalars if row[0] not in losses]
        self._record_losses(step, known, led)
        step.model = min(led or step.models, default=0)
        mine = [leader for leader, members in led.items() if not found.keys().isdisjoint(members)]
        return min(mine or self._readings.models_of(optimizer), default=0)

    def _objective(self) -> Objective | None:
        """The objective of the last updated step where it has one model."""
        found = self._objectives[1]
        return next(iter(found.values())) if len(found) == 1 else None

    def _record_left(self, step: OpenStep) -> None:
        """A step is over: a step without an optimizer was updated by the script, or is the unfinished last one."""
        if step.mode is Mode.TRAIN and not step.optimizers:
            found = self._current.objectives.take()
            self._record_losses(step, found, groups(found))
            step.model = min(found, default=step.model)

    def _record_losses(self, step: OpenStep, found: dict[int, Objective], led: dict[int, set[int]]) -> None:
        for leader, members in led.items():
            objective = functools.reduce(Objective.joined, (found[model] for model in members))
            if (loss := objective.value) is not None:
                self._current.port.add_scalar(step.records, "loss", loss, Role.LOSS, objective.weight, leader)

    def _read_gradients(self, step: OpenStep, optimizer: Optimizer) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        # With a scaler on, overflow is how it finds its scale: the update will be skipped.
        scaled = scale is not None or self._in_scaler
        self._gradients_are_final(step, scaled=scaled)
        if self._first_objectives is not None:
            return  # a closure may be called many times: the first is of the weights as they were
        model = self._meet(step, optimizer)
        self._readings.describe(step, optimizer, model)
        self._stages.look(step, optimizer, model)
        self._look_at_gradients(step, optimizer, model, scale, scaled=scaled)
        if step.due:
            self._notify(self._current.events.update_began, step, optimizer)

    def _gradients_are_final(self, step: OpenStep, *, scaled: bool) -> None:
        for listener in self._current.events.each_update_began:
            listener(step, scaled)

    def _look_at_gradients(
        self, step: OpenStep, optimizer: Optimizer, model: int, scale: Any, *, scaled: bool = False
    ) -> None:
        if not (step.due or self._readings.norm_pace.due(step.mode_step) or self._current.every_gradient):
            return
        with torch.no_grad():
            fresh = self._readings.fresh_gradients(optimizer, step.due)
            known = self._readings.gradients(step, fresh, scale) if step.due else None
            bad = self._readings.norm(step.records, fresh, scale, known, model)
        if not bad or scaled:
            return
        if isinstance(bad, LateGradients):
            step.records.add_fact(DeferredFact(facts.NonfiniteGradients, bad.describe), "update point")
        else:
            step.records.add_fact(describe_bad(bad), "update point")
        for listener in self._current.events.gradients_suspected:
            listener(step, bad)

    def _notify(self, listeners: list[Callable[[Update], None]], step: OpenStep, optimizer: Optimizer) -> None:
        if listeners:
            scale = getattr(optimizer, "grad_scale", None)
            update = Update(step, optimizer, self._readings.parameters(optimizer), scale)
            with torch.no_grad():
                self._current.events.notify(listeners, update, step.records)

    def _end(self, step: OpenStep) -> None:
        current = self._current
        self._capture.switch_off()
        for listener in current.events.each_step_updated:
            listener(step)
        current.port.clock.end_update()
        current.port.updated(step)
        for forward in step.forwards:
            forward.state = None
        current.quiet_steps += 1
        current.unseen.clear()
        current.sources.forget()


def _inside_another() -> bool:
    """Whether the step that begins is called by another one: then PyTorch's function around steps is there twice."""
    frame: types.FrameType | None = sys._getframe()
    around: types.CodeType | None = None
    while frame is not None:
        if frame.f_globals.get("__name__") == Optimizer.__module__:
            if around is frame.f_code:
                return True
            around = around or frame.f_code
        frame = frame.f_back
    return False


def _on_cpu(optimizer: Optimizer) -> bool:
    first: Tensor | None = next(iter(parameters_of(optimizer)), None)
    return first is not None and first.device.type == "cpu"
