"""Calls of root modules: steps begin there, and they show whether a forward is trained on."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from watchglass.capture.pytorch.compiled.calls import CompiledCall, is_compiled_in_place
from watchglass.capture.pytorch.compiled.graphs import compiled_so_far, compiling
from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.fast_path.calls_ahead import CallAhead
from watchglass.capture.pytorch.fast_path.joined_batches import JoinedBatches
from watchglass.capture.pytorch.fast_path.path import FastPath
from watchglass.capture.pytorch.graph.autograd_graph import differentiates
from watchglass.capture.pytorch.losses.counted_answers import CountedAnswers
from watchglass.capture.pytorch.losses.handwritten_losses import HandwrittenLosses
from watchglass.capture.pytorch.modules.module_hooks import Exchange, Unsaved, unsaved
from watchglass.capture.pytorch.modules.module_tree import described, inside, is_compiled, unwrap
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.step.forward_state import ForwardState, Settings, versions
from watchglass.capture.pytorch.step.module_capture import ModuleCapture, first_tensor
from watchglass.capture.pytorch.step.planned_steps import planned_steps
from watchglass.capture.pytorch.step.random_state import Habits
from watchglass.capture.pytorch.step.tensor_hooks import hook_gradient
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import FORWARD
from watchglass.record import Forward, OpenStep
from watchglass.records import Role, facts

#: Backwards from the loss of the last output, in a row, after which marks are left out.
_HABIT = 8
#: Series of the losses that models return.
_PART = "loss/output"


class RootCalls:
    """Hooks on outermost modules.

    Args:
        current: The state of the run.
        capture: Switched on around the forward of a captured step.
        fast_path: Takes the calls that follow the learned pattern.
    """

    def __init__(self, current: TrainingState, capture: ModuleCapture, fast_path: FastPath) -> None:
        self._current = current
        self._capture = capture
        #: Called with True as a call of an evaluation has ended, with False as the next call or a backward begins.
        #: Returns whether calls of other models are observed from now on.
        self.between: Callable[[bool], bool] = lambda evaluating: False
        self._fast_path = fast_path
        # Root modules with hooks on their returns.
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._begins: weakref.WeakKeyDictionary[nn.Module, Callable[[], None]] = weakref.WeakKeyDictionary()
        self._exchanges: weakref.WeakKeyDictionary[nn.Module, Exchange] = weakref.WeakKeyDictionary()
        # Losses that the script wrote as modules, and functions that remove their hooks.
        self._criteria: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._ends: list[Callable[[], None]] = []
        self._judged = current.port.guarded(fast_path.judges(self._criterion_returned), unless=compiling)
        self._arrived = current.port.guard.shielded(self._through)
        current.events.resting.append(self.rest)
        current.sources.on_found = self._was_evaluated
        current.port.detach_with(lambda: self.rest(True))
        self._evaluating = False
        # Whether a root was in training mode as it was last called with gradients.
        self._training: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        self._habits = Habits()
        self._answers = CountedAnswers(current, lambda: capture.compiled.expected)
        self._handwritten = HandwrittenLosses(current, self._record_loss, lambda: capture.compiled.expected)
        #: Batches of evaluations that make one step.
        self.joined = JoinedBatches(current, self._answers, self._joinable)
        fast_path.joins = self.joined.join
        ended = self.joined.ended(current.port.guarded(self.after))
        self.ended = current.port.guard.shielded(ended, unless=compiling)

    def attach(self, root: nn.Module) -> None:
        """Watch the calls of a module from now on."""
        if self._current.models.knows(root):
            return
        self._fast_path.leave()
        self._current.models.add(root)
        self._current.quiet_steps = 0
        self._capture.prepare(root)
        self._observe(root)
        # Scripts evaluate past a wrapper as well: the module of a DistributedDataParallel, the one that was compiled.
        for inner in inside(root):
            if not self._current.models.knows(inner):
                self._current.models.add(inner)
                self._observe(inner)

    def compiled(self, root: nn.Module) -> None:
        """An outermost module has been compiled in place: its hooks are now part of compiled code."""
        self._fast_path.leave()
        self._begins.pop(root)()
        self._roots.discard(root)
        self.rest(False)
        self._observe(root)

    def _observe(self, root: nn.Module) -> None:
        if isinstance(root, torch.jit.ScriptModule):
            return  # TorchScript takes no hooks
        # Where a model is called hooks may be removed, other than where an optimizer goes through them.
        before = self._current.port.guard.shielded(self._fast_path.before_forward, unless=compiling, leaves=True)
        if is_compiled_in_place(root):
            remove = CompiledCall(root, before, self.ended).remove
        else:
            usual, counted = Unsaved(before), Unsaved(self._fast_path.called(before))
            handle = root.register_forward_pre_hook(usual, with_kwargs=True)
            remove = unsaved(handle)
            self._exchanges[root] = Exchange(handle, usual, counted)
            self._roots.add(root)
            self._observe_ends(root)
        self._begins[root] = remove
        self._current.port.detach_with(remove)

    def count(self, on: bool) -> None:
        """Let the fast path only look whether models are called as before (``on``), or observe the calls again."""
        for exchange in self._exchanges.values():
            exchange(on)

    def rest(self, on: bool) -> None:
        """Remove the hooks on returns of root modules while steps are alike (``on``), or put them back."""
        while self._ends:
            self._ends.pop()()
        if not on:
            for root in self._roots:
                self._observe_ends(root)
        if not on or self._fast_path.ahead.observed:
            for criterion in self._criteria:
                self._ends.append(unsaved(criterion.register_forward_hook(Unsaved(self._judged))))

    def _observe_ends(self, root: nn.Module) -> None:
        self._ends.append(unsaved(root.register_forward_hook(Unsaved(self.ended))))

    def _joinable(self, root: nn.Module) -> bool:
        """Whether only loss functions make the losses of a model, and nothing of it is compiled."""
        sources = self._current.sources
        handmade = bool(self._criteria) or sources.knows(root) or sources.expression_of(root) is not None
        return not (handmade or compiled_so_far() or self._current.models.is_owned(root))

    def criterion(self, module: nn.Module) -> None:
        """A module without parameters is called outside of any model: it may be the loss."""
        if module not in self._criteria and not self._fast_path.on:
            self._criteria.add(module)
            self._ends.append(unsaved(module.register_forward_hook(Unsaved(self._judged))))

    def _criterion_returned(self, module: nn.Module, arguments: Any, output: Any) -> None:
        current = self._current
        forward, evaluation, step = current.forward, current.port.clock.evaluation, current.port.clock.train
        if forward is None or current.forward_depth or current.in_backward or module not in self._criteria:
            return
        tensors = list(tensors_in(output))
        if evaluation is None and any(tensor.grad_fn is not None and tensor.numel() == 1 for _, tensor in tensors):
            due = step is not None and step.due
            current.sources.returned(module, tensors, again=due)
            if due:
                self._record_part(module, forward, tensors)
            if not forward.training:
                self._evaluated(module, forward, output)
        elif evaluation is not None and current.sources.knows(module):
            self._evaluated(module, forward, output)
        else:
            # A metric, a transform of data: dropped, unless it is found once more.
            self._criteria.discard(module)

    def before(self, root: nn.Module, arguments: Any, kwargs: Any) -> None:
        """An outermost module is about to be called."""
        current = self._current
        grad = torch.is_grad_enabled()
        if grad:
            current.models.called(root, current.port.clock.next_train_step)
        if current.in_backward:
            current.recomputed = True
            return  # by activation checkpointing
        if current.root is not root and current.in_forward:
            current.forward_depth += 1
            return  # a watched model inside another
        if current.models.is_owned(root) and not current.in_owned_step:
            self._fast_path.leave()
            current.silent = True
            current.quiet_steps += 1
            self.between(False)
            return
        # At depth 1 already: the last call was left by an exception.
        current.forward_depth, current.root, current.silent = 1, root, False
        current.observes_others = self.between(False)
        if not current.in_closure:
            if current.update_depth:
                current.leave_update()
            if current.port.changes.pending:
                current.port.apply_changes()
        if current.phases is not None:
            current.phases.begin(FORWARD)
        self._open(root, arguments, kwargs, grad=grad)

    def give_back(self, call: CallAhead) -> None:
        """A call without gradients that the fast path has held back is no part of a step there."""
        current = self._current
        current.forward_depth, current.root, current.silent = 1, call.root, False
        current.observes_others = self.between(False)
        self._open(call.root, call.arguments, call.kwargs, grad=False, start_ns=call.start_ns)
        if call.outputs is not None:
            living = [tensor for output in call.outputs if (tensor := output()) is not None]
            self.after(call.root, call.arguments, living)

    def _open(self, root: nn.Module, arguments: Any, kwargs: Any, *, grad: bool, start_ns: int = 0) -> None:
        current, clock = self._current, self._current.port.clock
        before = clock.train
        model = current.models.number(root)
        if model < 0 and grad:
            # Nothing is trained through a teacher that is frozen, whether or not gradients are on.
            grad = current.models.trainable(root) or any(t.requires_grad for _, t in tensors_in((arguments, kwargs)))
            model = current.models.settle(model) if grad else model
        last, forward = (
            current.forward,
            clock.forward(grad=grad, training=root.training, start_ns=start_ns, model=model),
        )
        current.helping = forward.helps
        self._handwritten.called(root, evaluating=clock.evaluation is not None)
        self._answers.called(root, evaluating=clock.evaluation is not None)
        if current.helping:
            return
        if not grad and model != self._fast_path.pattern.model:
            self._fast_path.ahead.called(root, model)
        current.forward, current.outputs, current.called_another = forward, (), False
        current.own_losses.clear()
        if last is not None:
            last.state = None
            self._supersede(last)
        batch = first_tensor(arguments, kwargs)
        forward.weight = float(batch.size(0)) if batch is not None and batch.dim() else 1.0
        current.inputs = 0 if batch is None else batch.numel()
        evaluating = clock.evaluation is not None
        step = clock.evaluation or clock.train
        if step is None:
            return
        if not evaluating:
            if step is not before or step.by_hand:
                current.begin_step(step)
            elif step.due:
                current.port.plan.resume()
            if batch is not None and batch.is_cpu:
                forward.state = self._state(step, root, arguments, kwargs)
        else:
            current.sources.entered()
        if evaluating and not self._evaluating:
            self._notify(current.events.evaluation_began, ForwardCall(step, forward, root, arguments, kwargs))
        self._evaluating = evaluating
        if evaluating and current.events.each_evaluated:
            self._notify(current.events.each_evaluated, ForwardCall(step, forward, root, arguments, kwargs))
        if evaluating and not step.by_hand:
            self.joined.opened(step, root)
        else:
            self.joined.forget()
        if step.due:
            self._capture.switch_on(forward.records, root)
            self._notify(current.events.forward_began, ForwardCall(step, forward, root, arguments, kwargs))
        elif self._capture.on:
            # Ahead of a step that is captured, which this is not, or in a forward that was left by an exception.
            self._capture.switch_off()
        if not evaluating and self._training.get(root) is not forward.training:
            self._training[root] = forward.training
            if not step.due:
                self._notify(current.events.mode_changed, ForwardCall(step, forward, root, arguments, kwargs))
        if not evaluating and current.events.each_forward_began:
            self._notify([*current.events.each_forward_began], ForwardCall(step, forward, root, arguments, kwargs))

    def _supersede(self, forward: Forward) -> None:
        """Mark an unmarked forward late: the next backward need not run through it."""
        if forward.marked or forward.backpropagated:
            return
        forward.marked = True
        for left in (self._current.loss, self._current.output):
            tensor = left() if left is not None else None
            if tensor is not None and tensor.grad_fn is not None:
                self._mark(forward, "", tensor)
                return
        if forward.training:
            self._current.unseen.append(forward)

    def _mark(self, forward: Forward, path: str, tensor: torch.Tensor) -> None:
        """Note that a backward runs through a forward, and the gradient for this output."""
        hook_gradient(tensor, partial(self._arrived, forward, path))

    def _through(self, forward: Forward, path: str, gradient: torch.Tensor | None) -> None:
        # On any of autograd's threads.
        current = self._current
        if current.in_backward:
            forward.backpropagated = True
        elif differentiates() and forward not in current.unseen:
            current.unseen.append(forward)
        state = forward.state
        if gradient is not None and isinstance(state, ForwardState):
            state.keep_gradient(path, gradient)

    def _state(self, step: OpenStep, root: nn.Module, arguments: Any, kwargs: Any) -> ForwardState:
        draws = self._habits.of(root)
        states = self._habits.begin(root) if step.due else draws.states()
        most_bytes, seen = self._current.port.limits.kept_forward_bytes, versions(arguments, kwargs)
        return ForwardState(root, arguments, kwargs, Settings.now(), seen, states, draws, most_bytes)

    def after(self, root: nn.Module, arguments: Any, output: Any) -> None:
        """An outermost module has returned."""
        current = self._current
        if current.in_backward or not current.forward_depth:
            return
        current.forward_depth -= 1
        if current.forward_depth:
            return
        if current.helping:
            current.helping = False
            return
        forward, clock = current.forward, current.port.clock
        if forward is None:
            self._capture.switch_off()
            return
        self._capture.finish(root)
        step = clock.evaluation or clock.train
        if step is not None and step.due:
            self._notify(current.events.forward_ended, ForwardCall(step, forward, root, arguments, None, output))
        if clock.evaluation is not None:
            if current.phases is not None:
                current.phases.end_in(forward.records)
            self._evaluated(root, forward, output)
            self._handwritten.returned(root, forward, output)
            self._answers.returned(root, forward, output)
            if not forward.has_loss and not current.port.started:
                current.sources.keep(root, forward, tensors_in(output))
            self._returned(output)
            return
        if step is not None and current.events.each_forward_ended:
            call = ForwardCall(step, forward, root, arguments, None, output)
            self._notify([*current.events.each_forward_ended], call)
        current.loss = current.output = None
        if isinstance(output, torch.Tensor):
            tensors = [("", output)]
            current.output = weakref.ref(output)
        else:
            tensors = list(tensors_in(output))
        again = step is not None and step.due
        current.sources.returned(root, tensors, again=again, model=True, apart=bool(current.unseen))
        if step is not None and step.due:
            self._record_part(root, forward, tensors)
        if not forward.training:
            self._evaluated(root, forward, output)  # should no backward run through it
            self._returned(output)
        forward.marked = False
        several = current.several_models
        if current.output is None or current.chained < _HABIT or several:
            # A hook that autograd calls costs as much as all other bookkeeping of a small step.
            for path, tensor in tensors:
                # A parameter that is returned as it is would keep the hooks of all steps.
                if tensor.grad_fn is not None:
                    self._mark(forward, path, tensor)
                    forward.marked = True
                    if several:
                        forward.output = weakref.ref(tensor)
        state = forward.state
        if isinstance(state, ForwardState):
            state.keep_outputs(tensors)
            if step is not None and step.due:
                state.draws = self._habits.end(root, state.states)

    def _returned(self, output: Any) -> None:
        """A forward has returned that is an evaluation, or may be."""
        current = self._current
        current.hold_outputs(output)
        current.observes_others = self.between(True)

    def _record_part(self, module: nn.Module, forward: Forward, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Record the loss that a module returned in training: that of the step may hold more than an evaluation's."""
        value = self._current.sources.loss_of(module, tensors)
        if value is not None:
            forward.records.series.append((_PART, Role.LOSS, forward.weight, value))

    def _evaluated(self, module: nn.Module, forward: Forward, output: Any) -> None:
        """Record the loss of an evaluation that a module returned, in place of one that was found before."""
        value = self._current.sources.loss_of(module, tensors_in(output))
        if value is not None:
            self._record_loss(forward, value, _PART, value)

    def _record_loss(self, forward: Forward, loss: Any, part_name: str, part: Any) -> list[Any]:
        """Record the loss of an evaluation and the part of it that is comparable; returns the rows."""
        evaluating = self._current.port.clock.evaluation is not None
        rows = forward.records.series if evaluating else list(forward.if_evaluated)
        if forward.has_loss and loss is not None:
            before = [index for index, row in enumerate(rows) if row[0] == "loss"]
            del rows[before[-1] : before[-1] + 1]
        added = [(part_name, Role.LOSS, forward.weight, part)]
        if loss is not None:
            added.insert(0, ("loss", Role.LOSS, forward.weight, loss))
            forward.has_loss = True
        rows += added
        if not evaluating:
            forward.if_evaluated = rows
        return added

    def _was_evaluated(self, module: nn.Module, forward: Forward, loss: Any) -> None:
        """A forward that was over before its module was trained was an evaluation with this loss."""
        port, model = self._current.port, self._current.models.number(module)
        if forward.has_loss or model < 0:
            return
        forward.has_loss = True
        for name in ("loss", _PART):
            port.add_scalar(forward.records, name, loss, Role.LOSS, forward.weight, model)

    def _notify(self, listeners: list[Callable[[ForwardCall], None]], call: ForwardCall) -> None:
        with torch.no_grad():
            self._current.events.notify(listeners, call, call.forward.records)


def describe_training(current: TrainingState, step: OpenStep) -> None:
    """Record, once, the model and the planned number of steps."""
    models = current.models
    parameters = [each for root in models.roots() for each in unwrap(root).parameters()]
    about = dataclasses.replace(
        described(models),
        parameters=sum(each.numel() for each in parameters),
        devices=tuple(sorted({each.device.type for each in parameters})),
        roots=tuple(type(unwrap(root)).__name__ for root in models.roots()),
        compiled=any(is_compiled(root) for root in models.roots()),
    )
    step.records.add_fact(about, "second step")
    given, advice = current.port.config.planned_steps, current.port.advice
    advised = None if given else advice.planned_steps()
    if given or advised:
        planned: facts.PlannedSteps | None = facts.PlannedSteps(
            given or advised, "as given" if given else advice.source
        )
    else:
        planned = planned_steps(sys._getframe(), advice.batches_per_step())
    if planned is not None:
        step.records.add_fact(planned, planned.source)
