"""The PyTorch adapter: puts the parts together and finds the models.

It listens through public hook points (module hooks, global optimizer hooks, module registration) and, where there are
none, through the functions wrapped in :mod:`~watchglass.capture.pytorch.public_calls`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from watchglass.capture.frameworks import FRAMEWORKS, member
from watchglass.capture.loops import skipped
from watchglass.capture.phase_source import record_phases
from watchglass.capture.port import Port
from watchglass.capture.profiling.step_windows import profile_windows
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.compilations import Compilations
from watchglass.capture.pytorch.compiled.graphs import unless_captured
from watchglass.capture.pytorch.compiled.hidden_forwards import HiddenForwards
from watchglass.capture.pytorch.compiled.scripting import script_unwatched
from watchglass.capture.pytorch.compiled.updates import CompiledUpdates
from watchglass.capture.pytorch.facts import Facts
from watchglass.capture.pytorch.fast_path.path import FastPath, FullPath
from watchglass.capture.pytorch.first_bad.search import FirstBadModule
from watchglass.capture.pytorch.modules.model_discovery import Discovery, is_ours
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_hooks import Exchange, Switch
from watchglass.capture.pytorch.modules.module_tree import ModuleTree
from watchglass.capture.pytorch.modules.unwatched_models import UnwatchedModels
from watchglass.capture.pytorch.profiling.module_times import ModuleTiming
from watchglass.capture.pytorch.profiling.operator_windows import OperatorProfiler
from watchglass.capture.pytorch.profiling.optimizer_steps import OptimizerSteps
from watchglass.capture.pytorch.profiling.phases import PyTorchPhases
from watchglass.capture.pytorch.profiling.python_windows import CProfile, Pyinstrument
from watchglass.capture.pytorch.profiling.tensor_reads import TensorReads
from watchglass.capture.pytorch.saving.parameter_reader import ParameterReader
from watchglass.capture.pytorch.saving.reduce import PyTorchArrays
from watchglass.capture.pytorch.saving.unoptimized_weights import UnoptimizedWeights
from watchglass.capture.pytorch.step.backwards import Backwards
from watchglass.capture.pytorch.step.module_capture import ModuleCapture
from watchglass.capture.pytorch.step.root_calls import RootCalls, describe_training
from watchglass.capture.pytorch.step.stages import TrainingStages
from watchglass.capture.pytorch.step.update_point import UpdatePoint
from watchglass.capture.pytorch.tensors.parts import TENSOR_PARTS
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.pytorch.updates.handwritten_updates import HandwrittenUpdates
from watchglass.capture.pytorch.updates.watched_optimizers import WatchedOptimizers
from watchglass.capture.saving.saving import Saving
from watchglass.record import OpenStep
from watchglass.records import facts

_adapters: weakref.WeakKeyDictionary[Port, PyTorchAdapter] = weakref.WeakKeyDictionary()


class PyTorchAdapter:
    """Watches PyTorch in this process through one hook.

    Args:
        port: Gets all records.
        discover: Find models by their outermost calls; otherwise only those given to :meth:`attach` count.
    """

    def __init__(self, port: Port, *, discover: bool) -> None:
        self._current = TrainingState(port, Models(port.model_numbers))
        # Before the fast path, which keeps where the marks go.
        record_phases(port, PyTorchPhases(self._current))
        self._current.models.on_numbered = self._numbered
        self._current.begin_step = self._begin_step
        port.clock.number_of = self._current.models.settle
        self._discovery: Discovery | None = None
        self._discovers = discover
        # The last step of another loop that was prepared.
        self._begun = -1
        arrays: PyTorchArrays = member(FRAMEWORKS["torch"].arrays)
        saving = Saving(port.plan, port.ids, port.cost, arrays)
        port.on_finished.append(lambda step: arrays.on_device(port.cost).send())
        self._capture = ModuleCapture(port, self._current.models, saving, self._current.events)
        self._readings = ParameterReader(port, self._current.models, saving)
        self.fast_path = FastPath(self._current, self._readings)
        self._calls = self.fast_path.ahead.full = RootCalls(self._current, self._capture, self.fast_path)
        self._hidden = HiddenForwards(self._current, self._capture)
        self._backwards = Backwards(self._current)
        self._optimizers = WatchedOptimizers(self._current, self._readings, self._unknown)
        stages = TrainingStages(self._current.models, self.fast_path.leave)
        self._current.events.add(stages)
        port.detach_with(calls.loads(port.guard, after=port.guarded(stages.iterated)))
        self._updates = UpdatePoint(
            self._current, self._readings, self._capture, self.fast_path, self._optimizers, stages
        )
        self._handwritten = HandwrittenUpdates(self._current, self._updates, self._without_optimizer, self._find)
        self._backwards.on_begin = self._before_backward
        self.fast_path.script = self._handwritten
        self.fast_path.on_missed_update = self._handwritten.look_back
        self._backwards.on_end = self._handwritten.after_backward
        UnoptimizedWeights(port, self._current.models, saving, self._optimizers.living)
        self._current.models.carried.listen(self._current.events)
        for part in TENSOR_PARTS:
            part(port, self._current.models, saving, self._current.events)
        FirstBadModule(self._current)
        ModuleTiming(self._current, self._capture)
        _adapters[port] = self
        port.detach_with(lambda: _adapters.pop(port, None))
        self._install(port, discover=discover)

    @staticmethod
    def of(port: Port) -> PyTorchAdapter | None:
        """The adapter of a hook that has one."""
        return _adapters.get(port)

    def attach(self, root: nn.Module) -> None:
        """Watch a model whose outermost call is ``root``."""
        if skipped(root, list(root.parameters()), lambda: False):
            return
        models = self._current.models
        if not is_ours(models.parents.owner(root)):
            models.own(root)
        self._calls.attach(root)
        if not self._discovers:
            models.on_given(root)
        models.settle(models.number(root))
        self._hidden.each_step_updated(None)

    def _install(self, port: Port, *, discover: bool) -> None:
        fast_path, updates, backwards = self.fast_path, self._updates, self._backwards
        guarded, shielded = port.guarded, port.guard.shielded
        # The fast path hands over its steps before others use them.
        port.on_settle.insert(0, fast_path.settle)
        port.on_end.append(self._report_elsewhere)
        acts, detach = fast_path.scaler_acts, port.detach_with
        before_scaler_step = acts(guarded(updates.before_scaler_step))
        after_scaler_step = acts(unless_captured(guarded(updates.after_scaler_step)))
        begins, ends = fast_path.before_backward, fast_path.after_backward
        listening = [calls.EVERY_BACKWARD.listen(port.guard, before=begins, ended=ends)]
        detach(lambda: [leave() for leave in listening])
        TensorReads(self._current)
        detach(calls.SCALER_SCALE.listen(port.guard, after=acts(guarded(backwards.loss_scaled))))
        detach(calls.SCALER_STEP.listen(port.guard, before=before_scaler_step, ended=after_scaler_step))
        for name, call in calls.LOSSES.items():
            full = guarded(unless_captured(functools.partial(backwards.loss_computed, name)))
            computed = self._calls.joined.computed(name, full, backwards.accuracy)
            detach(call.listen(port.guard, after=fast_path.judges(computed)))
        rest = functools.partial(calls.LOSS_HOOKS.rest, port)
        rest(False)
        detach(lambda: rest(True))
        self._current.events.resting.append(rest)
        fast_path.listen_to_losses = lambda on: rest(not on)
        # After the other wrappers of the same functions: the last one is restored first.
        Facts(port, self._current.models, self._current.events)
        fast_path.full = FullPath(
            before_forward=unless_captured(guarded(self._before_forward)),
            before_backward=unless_captured(guarded(backwards.before_backward)),
            after_backward=guarded(backwards.after_backward),
            before_update=unless_captured(guarded(updates.before)),
            after_update=guarded(updates.after),
        )
        before, after = shielded(fast_path.before_update), shielded(fast_path.after_update)
        fast_path.compiled_updates = CompiledUpdates(before, after, self._readings.updates.forget)
        beginnings = fast_path.listen_to_updates = Switch(lambda: register_optimizer_step_pre_hook(before))
        port.detach_with(lambda: beginnings(False))
        beginnings(True)
        updated = Exchange(register_optimizer_step_post_hook(after), after, fast_path.updated(after))
        port.detach_with(updated.remove)

        def observe_steps(on: bool) -> None:
            if not on and calls.BACKWARD.observed:
                pass  # around ours, until the facts about the order of calls are complete
            elif not on:
                listening.pop()()
            elif not listening:
                listening.append(calls.EVERY_BACKWARD.listen(port.guard, before=begins, ended=ends))
            self._calls.count(not on)
            updated(not on)

        fast_path.observe_steps = observe_steps
        operators = OperatorProfiler(port, self._current.models, self._optimizers.living)
        # After the fast path and the update point, which end the step.
        profile_windows(port, (operators, CProfile(), Pyinstrument()), OptimizerSteps(port))
        port.detach_with(self._capture.switch_off)
        if discover:
            self._discovery = Discovery(self._current, self._calls)
            self._calls.between = self._discovery.between
        else:
            self._calls.between = UnwatchedModels(self._current, self._optimizers.living).between
        self._calls.joined.between = self._calls.between
        Compilations(port, self._current.models, self._calls, self._capture, self._discovery, self._hidden)
        script_unwatched(port)

    def _before_forward(self, root: nn.Module, arguments: Any, kwargs: Any) -> None:
        if self._handwritten.look() and self.fast_path.enter_with(root, arguments, kwargs):
            return
        self._calls.before(root, arguments, kwargs)

    def _before_backward(self, roots: Sequence[Any]) -> None:
        self._calls.between(False)
        self._handwritten.before_backward(roots)

    def _numbered(self, tree: ModuleTree | None, provisional: int, number: int) -> None:
        self._current.port.clock.renumber(provisional, number)
        if tree is not None:
            self._current.objectives.follow(tree)

    def _report_elsewhere(self) -> None:
        if self.fast_path.elsewhere:
            reason = "the loop ran in a thread that is not watched; call watchglass.watch in the thread that trains"
            self._current.port.add_fact(facts.UnsteppedBackwards(self.fast_path.elsewhere, reason), "backward")

    def _without_optimizer(self) -> bool:
        return self._discovery is not None and not self._discovery.has_optimizers

    def _find(self, parameters: list[Tensor]) -> None:
        if self._discovery is not None:
            self._discovery.find(parameters)

    def _unknown(self, optimizer: Optimizer) -> bool:
        """An optimizer has parameters of no known model; returns whether that may yet be found."""
        return self._discovery is not None and self._discovery.unknown(optimizer)

    def _begin_step(self, step: OpenStep) -> None:
        current = self._current
        if step.by_hand:
            if step.global_step == self._begun:
                return
            self._begun = step.global_step
        if step.due:
            self._readings.begin()
            current.events.notify(current.events.step_began, step, step.records)
        if step.mode_step == current.port.clock.first_train_step + 1:
            # Not at the first: by the second step every model has been called.
            describe_training(current, step)
        if self._discovery is not None:
            self._discovery.between(False)
