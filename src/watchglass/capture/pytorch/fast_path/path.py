"""The fast path: the cost of watching a step of which only the loss and the learning rate are kept.

Most steps of a training run are alike: its one model is called, a backward runs, its one optimizer steps (with gradient
accumulation the first two several times). After several such steps in a row on the full path, the steps between two
captures take the fast path. It has three callbacks of a few instructions each: as the model is called, as a backward
begins and as the optimizer has stepped. They only follow the pattern; all other listeners of the full path are off. The
first deviation (an evaluation, a second optimizer, a non-finite loss, a stop) ends the fast path: the full path gets
the state of the step so far, as if it had been on from the start.

``step_pattern.py`` holds what the steps have in common. Where one backward runs through several calls of the model,
``several_forwards.py`` observes each; ``calls_ahead.py`` holds back calls of other models ahead of a step.

Even these callbacks cost more than the budget allows where a step takes less than a millisecond. Then only each n-th
step is recorded, see ``step_interval.py``. In between the fast path *rests*: see
``rest.py``. Steps of several optimizers, as those of a GAN, never take the fast path itself: after a cycle of them on
the full path it rests at once.

Where the script updates the model itself, no callback reports it. Then the versions of a few parameters are noted as
a backward ends, and compared as the model is called again: if they differ, the step was over.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

from torch import Tensor, is_grad_enabled, nn
from torch.optim import Optimizer

from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.compiled.updates import CompiledUpdates
from watchglass.capture.pytorch.fast_path.calls_ahead import CallsAhead
from watchglass.capture.pytorch.fast_path.rest import Cycle, Happened, Rest
from watchglass.capture.pytorch.fast_path.several_forwards import SeveralForwards
from watchglass.capture.pytorch.fast_path.step_interval import StepInterval
from watchglass.capture.pytorch.fast_path.step_pattern import StepPattern
from watchglass.capture.pytorch.fast_path.step_progress import (
    BETWEEN,
    IN_BACKWARD,
    IN_FORWARD,
    OFF,
    RESTING,
    StepProgress,
)
from watchglass.capture.pytorch.saving.parameter_reader import ParameterReader
from watchglass.capture.pytorch.step.forward_state import ForwardState, versions
from watchglass.capture.pytorch.step.module_capture import first_tensor
from watchglass.capture.pytorch.step.random_state import Randomness
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import AFTER_BACKWARD, BACKWARD, FORWARD, NO_PHASES
from watchglass.record import CapturedRecords, Forward
from watchglass.records import facts
from watchglass.store import ABSENT

#: A fast path that ends within this number of steps followed the wrong pattern, which must be learned again.
_SOON = 2
#: Arguments of torch.autograd.backward before the tensors that it is for.
_INPUTS = 5
#: Repetitions of a cycle beyond the steps of a pattern, after which the full path may rest.
_LATER = 2
#: Rests in a row without a whole step, after which there are no more.
_MOST_VAIN = 3

_LEAST, _MOST = -math.inf, math.inf


class FullPath(NamedTuple):
    """The callbacks of the full path, each under the hook's guard; they get the calls that the fast path refuses."""

    before_forward: Callable[[Any, Any, Any], Any]
    before_backward: Callable[[Any, Any, bool], Any]
    after_backward: Callable[[], Any]
    before_update: Callable[[Any, Any, Any], Any]
    after_update: Callable[[Any, Any, Any], Any]


class ScriptChanges(Protocol):
    """Finds updates that the script makes itself; see ``updates/handwritten_updates.py``."""

    def note(self) -> None:
        """A backward has ended on the fast path: an update may follow."""

    @property
    def visible(self) -> bool:
        """Whether versions have shown the last updates."""

    def updated(self) -> bool:
        """Whether an update has followed the last backward; asked once after each."""

    def read(self, records: CapturedRecords) -> None:
        """The fast path ends after a backward: what was read of its gradients, should an update follow."""


class FastPath:
    """Follows steps that are like the ones before, and hands everything else to the full path.

    Its callbacks run in every step of the training and so are written out, with as few calls as possible. They go
    through :meth:`~watchglass.capture.guard.Guard.shielded` only: they check the thread themselves.

    Args:
        current: The state of the run; kept by the full path while this one is off.
        full: The full path; set before the first callback.
        readings: Takes the gradient norm of an optimizer's parameters, where it is due.

    Attributes:
        pattern: What steps have in common; learns from every step of the full path.
        ahead: Calls of other models ahead of steps.
        cycle: The order of calls and updates; learns from every step of the full path.
    """

    def __init__(self, current: TrainingState, readings: ParameterReader) -> None:
        self.full: FullPath
        #: Set before the first callback.
        self.script: ScriptChanges
        self.compiled_updates: CompiledUpdates
        #: Called on leaving after as many backwards as in a whole step, if no update was observed after them.
        self.on_missed_update: Callable[[], None] = lambda: None
        #: Starts or stops observing that an optimizer is about to step.
        self.listen_to_updates: Callable[[bool], None] = lambda on: None
        #: Observes what happens in steps, or only counts them.
        self.observe_steps: Callable[[bool], None] = lambda on: None
        #: Whether a call joins the evaluation step that is open, so that nothing else is to be done.
        self.joins: Callable[[nn.Module, Any, Any], bool] = lambda root, arguments, kwargs: False
        #: Starts or stops observing loss functions.
        self.listen_to_losses: Callable[[bool], None] = lambda on: None
        self._current = current
        self._port = current.port
        self._readings = readings
        self._thread = get_ident()
        self._phases = current.phases
        current.port.records.in_steady_step = self._in_steady_step
        shielded = current.port.guard.shielded
        self._now = now = StepProgress()
        self.ahead = CallsAhead(now, current.models.number, shielded)
        self.pattern = StepPattern(current, self.ahead)
        self.cycle = Cycle(current.port.clock, current.port.limits.alike_steps)
        self._several = SeveralForwards(now, current, shielded)
        #: Backwards on threads that are not watched.
        self.elsewhere = 0
        # What was read of the gradients before an update by the script.
        self._read: CapturedRecords | None = None
        # One comparison per step: the smaller of the step at which the path ends and the next step with a norm.
        self._end = self._norm_step = self._watchful = 0
        # Losses and weights are sums over the backwards of the step; the rest belongs to its last forward.
        self._step = 0
        self._start_ns = 0
        self._backwards = 0
        self._loss = self._total = 0.0
        self._weight = 1.0
        self._arguments: Any = None
        self._kwargs: Any = None
        self._versions: tuple[int, ...] | None = None
        self._states = Randomness()
        limits = current.port.limits
        self._interval = StepInterval(current.port.plan, limits.whole_steps, limits.step_interval)
        self._rest = Rest(lambda: self.ahead.held, shielded(self.ahead.helped))
        # Whether it is of steps that do not take this path, and then whether the time between its steps is measured.
        self._of_several = self._measured = False
        # Steps of the last rest until they have numbers; rests in vain.
        self._unnumbered = self._vain = 0
        # Of several models: the first step after which the next rest may begin.
        self._earliest = 0
        # Where the path was entered, and what it has cost since.
        self._first = self._rested = 0
        self._since_ns = 0
        self._norm_ns = 0

    @property
    def on(self) -> bool:
        """Whether steps take this path at present."""
        return self._now.at != OFF

    def before_forward(self, root: nn.Module, arguments: Any, kwargs: Any) -> Any:
        """An outermost module is about to be called."""
        at = self._now.at
        if at != OFF:
            if get_ident() != self._thread:
                return None
            if at == RESTING:
                at = self._wake_for_call()
            if at == OFF:
                return self._before_full_forward(root, arguments, kwargs)
            if self._now.running:
                # By activation checkpointing, inside the backward.
                self.leave()
                self._current.in_backward = True
                return self.full.before_forward(root, arguments, kwargs)
            pattern = self.pattern
            if at == IN_BACKWARD and pattern.by_script:
                at = self._after_script_updates()
                if at == RESTING and self._rest.follows(root, arguments, kwargs):
                    return None
            if at != RESTING and self._now.follows[at] and pattern.continues(root):
                self._begin_forward(arguments, kwargs)
                return None
            if at == BETWEEN and self.ahead.expects(root):
                now_ns = monotonic_ns() if self._phases is None else self._phases.begin(FORWARD)
                self.ahead.hold_back(root, arguments, kwargs, now_ns)
                return None
            if at == IN_FORWARD and root in pattern.inside and is_grad_enabled():
                return None  # by the wrapper around it; an evaluation past the wrapper has no gradients
            if at == IN_FORWARD and not is_grad_enabled() and self._current.models.number(root) != pattern.model:
                return None  # a teacher, whose call inside a step is a part of it
            self.leave(superseded=True)
        elif self.joins(root, arguments, kwargs):
            return None
        return self._before_full_forward(root, arguments, kwargs)

    def _before_full_forward(self, root: nn.Module, arguments: Any, kwargs: Any) -> Any:
        result = self.full.before_forward(root, arguments, kwargs)
        if get_ident() == self._thread and not (self.on or self._port.guard.is_busy):
            nested = self._current.forward_depth > 1
            self.cycle.saw(root, grad=is_grad_enabled(), training=root.training, nested=nested)
        return result

    def judges(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for a callback about losses: of a call that was held back it makes an evaluation."""

        def run(*arguments: Any) -> Any:
            if self.ahead.held:
                self.leave()
            # Of a step on this path only the start of its backward counts.
            return full(*arguments) if self._now.at == OFF else None

        return run

    def _begin_forward(self, arguments: Any, kwargs: Any) -> None:
        if self.ahead.held:
            self.ahead.helped()
        phases = self._phases
        now_ns = monotonic_ns() if phases is None else phases.begin(FORWARD)
        if self._now.at == BETWEEN:
            self._start_ns = now_ns
            if self._unnumbered:
                self._number_rested()
        self._now.at = IN_FORWARD
        self._arguments = arguments
        self._kwargs = kwargs
        first = arguments[0] if arguments else None
        if not isinstance(first, Tensor):
            first = first_tensor(arguments, kwargs)
        self._weight = float(first.size(0)) if first is not None and first.dim() else 1.0
        self._versions = versions(arguments, kwargs)
        pattern = self.pattern
        if pattern.random:
            self._states = pattern.draws.states()
        if pattern.several:
            forward = Forward(now_ns, pattern.training, pattern.model)
            forward.weight = self._weight
            self._several.begin(forward)

    def before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A backward is about to run."""
        tensors = args[0] if args else kwargs.get("tensors")
        gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        chosen = kwargs.get("inputs") is not None or len(args) > _INPUTS
        at = self._now.at
        if get_ident() != self._thread and not (at == OFF and self._port.guard.is_lent):
            self.elsewhere += 1
            return
        if at == RESTING:
            return  # by a function that the script has put around ours, which stays
        alone = gradients is None and not chosen and not self._several.differentiated
        if at == IN_FORWARD and alone and isinstance(tensors, Tensor) and tensors.is_cpu:
            try:
                loss = tensors.item()
                # Neither holds for NaN; a value that is not finite, or no number, goes to the full path.
                finite = _LEAST < loss < _MOST
            except (RuntimeError, TypeError, ValueError):
                finite = False
            looks = self._current.looks_at_loss
            if looks is not None and finite and looks(tensors.grad_fn):
                finite = False
            backwards = self._backwards
            if finite and not backwards:
                if self._phases is not None:
                    self._phases.begin(BACKWARD)
                self._now.at, self._now.running = IN_BACKWARD, True
                self._loss, self._total = loss, self._weight
                self._backwards = 1
                return
            if finite and backwards < self.pattern.most:
                parameter = self.pattern.parameter()
                if parameter is not None and parameter.grad is not None:
                    if self._phases is not None:
                        self._phases.begin(BACKWARD)
                    self._now.at, self._now.running = IN_BACKWARD, True
                    self._loss += loss
                    self._total += self._weight
                    self._backwards = backwards + 1
                    return
        if at == IN_BACKWARD and self.pattern.by_script:
            at = self._after_script_updates()
        if at == BETWEEN and not self.ahead.held:
            return  # of something that is not watched
        self.leave()
        self.full.before_backward(tensors, gradients, chosen)

    def after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A backward has ended, maybe by an exception."""
        if get_ident() == self._thread:
            self._now.running = False  # also where an optimizer has stepped inside it
        if self._now.at == OFF:
            self.full.after_backward()
        elif self._now.at == IN_BACKWARD and get_ident() == self._thread:
            if self._phases is not None:
                self._phases.begin(AFTER_BACKWARD)
            if self.pattern.by_script:
                self._before_script_updates()
            elif self.pattern.several and self._several.some_left:
                self.leave()

    def before_update(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> Any:
        """An optimizer is about to step. On the fast path observed only for the norm."""
        if compiling():
            return self.compiled_updates.traced(optimizer, ended=False)
        if self._now.at != OFF:
            if get_ident() != self._thread:
                return None
            if optimizer is self.pattern.optimizer() and self._now.at == IN_BACKWARD:
                if self._take_norm(optimizer, self._port.records.current()):
                    return None
            elif optimizer in self._current.foreign:
                return None
            self.leave()
        return self.full.before_update(optimizer, arguments, kwargs)

    def after_update(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> None:
        """An optimizer has stepped: the step is over."""
        if compiling():
            self.compiled_updates.traced(optimizer, ended=True)
            return
        at = self._now.at
        if at != OFF and get_ident() != self._thread:
            return
        if at == IN_BACKWARD and optimizer is self.pattern.optimizer() and len(arguments) == 1 and not kwargs:
            # Read each time: a state that is loaded has other groups, and unfreezing adds one.
            groups = optimizer.param_groups
            rate = groups[0].get("lr")
            if type(rate) is float and len(groups) == 1:
                self._end_step(rate)
                return
        if at != OFF:
            if at in (BETWEEN, RESTING) and optimizer in self._current.foreign:
                return
            # Its beginning was not observed.
            self.leave()
            self.full.before_update(optimizer, arguments[:1], {})
        step = self._port.clock.train
        self.full.after_update(optimizer, arguments, kwargs)
        if get_ident() == self._thread and not self._port.guard.is_busy and optimizer not in self._current.foreign:
            self.cycle.saw(optimizer, model=0 if step is None else step.model)
            if not self.on:
                self._rest_on_full_path()

    def _take_norm(self, optimizer: Optimizer, records: CapturedRecords) -> bool:
        started = time.perf_counter_ns()
        taken = self._readings.quick_norm(optimizer, records)
        self._norm_ns += time.perf_counter_ns() - started
        return taken

    def _before_script_updates(self) -> None:
        """A backward has ended, and the script may update before the next begins."""
        if self._step == self._norm_step:
            # Micro-batches add up: the gradients of the last backward are those that count.
            self._read = CapturedRecords()
            script = self.pattern.optimizer()
            if script is None or not self._take_norm(script, self._read):
                self._read = None
                self.leave()
                self.full.after_backward()
                return
        self.script.note()

    def _after_script_updates(self) -> int:
        """The step is over if the script has updated since its last backward; returns the phase."""
        if self.script.updated():
            if self._read is not None:
                self._port.records.current().absorb(self._read)
                self._read = None
            self._end_step(ABSENT)
        return self._now.at

    def _end_step(self, rate: float) -> None:
        """The step is over, with this learning rate."""
        port = self._port
        if self._phases is None:
            end_ns, phases = monotonic_ns(), NO_PHASES
        else:
            end_ns, phases = self._phases.end()
            if self._phases.rows:
                self._phases.hand_over(port.records.current())
        port.steady.step(self._start_ns, end_ns, self._loss, rate, self._total, phases)
        self._backwards = 0
        self._now.follows = self.pattern.begins
        if self.pattern.several:
            self._several.clear()
        self._arguments = self._kwargs = None
        self._step = step = self._step + 1
        self._now.at = BETWEEN
        if step >= self._watchful or port.changes.pending or not port.guard.active:
            # What a step costs that is recorded on this path, grows with its calls.
            calls = max(1, len(self.cycle.found()) - 1)
            if self._interval.look(step, self._port.limits.row_ns * calls):
                port.records.current().add_fact(facts.RecordedInterval(self._interval.interval), "budget")
            self._look_around()

    def _look_around(self, *, rests: bool = True) -> None:
        """Between steps: leave where the path ends, rest, or listen to the beginning of an update for its norm."""
        if self._step >= self._end or self._port.changes.pending or not self._port.guard.active:
            self.leave()
            return
        pattern, events = self.pattern, self._repeated()
        recorded = self._interval.next_due(self._step)
        if rests and events and recorded > self._step:
            self._several.ignore()
            steps = min(recorded, self._end) - self._step
            self._go_to_rest(events, steps, pattern.parameter if pattern.by_script else None)
            return
        # Both intervals are powers of two: the norm of a step that is not recorded would be lost.
        self._norm_step = self._interval.next_due(self._readings.norm_pace.next_due(self._step))
        self.listen_to_updates(self._step == self._norm_step and not pattern.by_script)
        soon = self._step == self._norm_step or (events and self._interval.interval > 1)
        ahead = 1 if soon else min(self._interval.measured, self._norm_step - self._step)
        self._watchful = min(self._end, self._step + ahead)

    def _repeated(self) -> tuple[Happened, ...]:
        """The events of each step of the pattern, if steps can be counted by them; else none."""
        if not self._may_rest() or (self.pattern.by_script and not self.script.visible):
            return ()
        events = self.cycle.found()
        return events if sum(event.opens for event in events) == 1 else ()

    def _may_rest(self) -> bool:
        """Whether the steps can be counted, and nothing that a script saves, or another rank does, depends on them."""
        port = self._port
        return self._vain < _MOST_VAIN and not port.records.saves_between and port.rank() is None

    def _rest_on_full_path(self) -> None:
        """After an update on the full path: rest for the next cycles if these take turns."""
        # Later than the fast path, which costs less, would take them.
        current, port, events = self._current, self._port, self.cycle.found(_LATER)
        models = Counter(event.model for event in events if event.ends)
        if not models or not self._may_rest() or current.recomputed or not port.plan.budget.knows_idle:
            self._measured, self._earliest = False, 0
            return
        step, interval = port.clock.next_train_step, self._interval
        if not self._measured:
            interval.begin(step)
            self._measured = True
        elif interval.look(step, max(port.limits.row_ns, port.plan.budget.idle_ns)):
            port.records.current().add_fact(facts.RecordedInterval(interval.interval), "budget")
        # Between two rests whole cycles are recorded.
        apart = step - self._earliest if self._earliest else 0
        if interval.interval == 1 or apart < 0 or apart % models.total() or port.changes.pending or port.clock.awaits:
            return
        if not port.steady.begin(events[-1].model, rated=False):
            return
        due = [(port.alternating.next_due(model, step) - step) // steps for model, steps in models.items()]
        observed = (current.next_observed(step) - step) // models.total()
        cycles = min(interval.interval - 1, observed, *due)
        if cycles < 1:
            return
        self.ahead.expected = tuple((event.of, event.training) for event in events if event.ahead)
        self._begin(step)
        self._of_several = True
        self._go_to_rest(events, cycles * models.total())

    def _go_to_rest(self, events: Sequence[Happened], steps: int, parameter: Any = None) -> None:
        self._rest.begin(events, steps, parameter)
        self._now.at = RESTING
        self.listen_to_updates(False)
        self.observe_steps(False)

    def called(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for calls of a model while the path rests: they are as before, or the rest ends."""
        ident, thread, follows = get_ident, self._thread, self._rest.follows

        def run(root: nn.Module, arguments: Any, kwargs: Any) -> Any:
            if follows(root, arguments, kwargs):
                return None
            return None if ident() != thread else full(root, arguments, kwargs)

        return run

    def updated(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for the steps of optimizers while the path rests: they are counted."""
        ident, thread, changes, rest = get_ident, self._thread, self._port.changes, self._rest
        wake = self._port.guard.shielded(self._wake)

        def run(optimizer: Optimizer, arguments: Any, kwargs: Any) -> Any:
            if ident() != thread or not rest.updates(optimizer):
                return full(optimizer, arguments, kwargs)
            return wake() if not rest.left or changes.pending else None

        return run

    def _count_rest(self) -> None:
        """The rest is over."""
        steps, self._rest.steps, self._rest.left = self._rest.steps, 0, 0
        self._vain = 0 if steps else self._vain + 1
        self._unnumbered += steps
        self._step += steps
        self._rested += steps

    def _number_rested(self) -> None:
        steps, self._unnumbered = self._unnumbered, 0
        self._port.clock.pass_train(steps)

    def _record_last(self, models: Sequence[int] = ()) -> None:
        """Record the last steps of a rest without their losses, so that the number of steps is known whatever comes.

        Args:
            models: Their models, if they are of several.
        """
        if not self._unnumbered:
            return
        last = models[-self._unnumbered :] or (self.pattern.model,)
        self._port.clock.pass_train(self._unnumbered - len(last))
        self._unnumbered = 0
        now_ns = monotonic_ns() if self._phases is None else self._phases.end()[0]
        for model in last:
            if models:
                self._port.steady.begin(model, rated=False)
            self._port.steady.step(now_ns, now_ns, ABSENT, ABSENT, 0.0, NO_PHASES)

    def _wake(self) -> None:
        """The rest is over, between two steps."""
        if self._phases is not None:
            self._phases.end()  # the time so far belongs to steps that are not recorded
        if self._of_several:
            self._rest.left = 0  # the next call ends it: the full path begins with a call
            return
        self._count_rest()
        self.observe_steps(True)
        self._follow()
        self._look_around()

    def _follow(self) -> None:
        """Follow steps from here on, between two of them."""
        self._now.at, self._now.follows = BETWEEN, self.pattern.begins
        root = self.pattern.root()
        if self.pattern.several and root is not None:
            self._several.observe(root)

    def _wake_for_call(self) -> int:
        """A call is not as before, or enough steps are over; returns where the step is now."""
        if self._rest.left:
            self.leave()
        elif self._of_several:
            self.leave(superseded=is_grad_enabled())
        else:
            self._wake()
        return self._now.at

    def _in_steady_step(self) -> bool:
        if self._now.at == RESTING:
            self.leave()  # a value is saved: its step must be recorded
        return self._now.at > BETWEEN or bool(self.ahead.held)

    def scaler_acts(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for a callback about a scaler, of which fast-path steps have none."""

        def run(*arguments: Any) -> Any:
            if self._now.at != OFF and get_ident() != self._thread:
                return None
            self.leave()
            return full(*arguments)

        return run

    # -- entering, leaving -------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Take this path from the next step to the next captured one, if that is not the same."""
        port, pattern = self._port, self.pattern
        self._step = port.clock.next_train_step
        captured = port.alternating.next_due(pattern.model, self._step)
        self._end = min(captured, self._current.next_observed(self._step))
        if self._end <= self._step or port.changes.pending:
            return
        if not port.steady.begin(pattern.model, rated=not pattern.by_script):
            return
        self._begin(self._step)
        self._follow()
        self._look_around(rests=False)

    def _begin(self, step: int) -> None:
        self._step = self._first = step
        self._interval.begin(step)
        self._norm_ns = self._rested = 0
        self._since_ns = self._port.clock.now_ns()
        # Its records belong to the recorder now; they must not be kept alive up to the next forward on the full path.
        self._current.forward = None
        self._current.unseen.clear()
        self.ahead.observe()
        for listener in self._current.events.resting:
            listener(True)
        if self.ahead.observed:
            self.listen_to_losses(True)

    def enter_with(self, root: nn.Module, arguments: Any, kwargs: Any) -> bool:
        """Take this path from the call of ``root`` on that begins now; returns False where it does not."""
        if self.pattern.continues(root):
            self.enter()
            if self.on:
                self._begin_forward(arguments, kwargs)
        return self.on

    def settle(self) -> None:
        """Go back to the full path outside of any callback: after a backward, the step is over."""
        self.leave(superseded=self._now.at in (BETWEEN, IN_BACKWARD))

    def leave(self, *, superseded: bool = False) -> None:
        """Go back to the full path, which takes over the state of the open step.

        Args:
            superseded: Another forward begins, so none of the pattern's backwards will run through the last one.
        """
        at, self._now.at, self._now.running = self._now.at, OFF, False
        if at == OFF:
            return
        calls, through = list[Happened](), False
        models, length = list[int](), 0
        if at == RESTING:
            calls, through, last = self._rest.end()
            models, length = self._rest.models()
            self.observe_steps(True)
            self._count_rest()
            if calls or self._of_several:
                self._current.objectives.forget(None if calls else last)
            if not superseded:
                self._record_last(models[-length:] if self._of_several else ())
        elif at == BETWEEN and (superseded or self.ahead.held):
            self._record_last()
        self._number_rested()
        self._interval.end(self._step)
        steps = self._step - self._first
        several, self._of_several = self._of_several, False
        if several:
            self._measured, self._earliest = True, self._step + length
            self._interval.begin(self._step)
        elif steps < _SOON and self._step < self._end:
            self.pattern.forget()
        self.listen_to_updates(True)
        self._several.ignore()
        self.ahead.ignore()
        for listener in self._current.events.resting:
            listener(False)
        for model, count in (Counter(models) if several else {self.pattern.model: steps}).items():
            self._port.alternating.passed(model, count)
        now_ns = self._port.clock.now_ns()
        self._port.cost.steady_steps_ended(steps, self._since_ns, now_ns, self._norm_ns, self._rested)
        if calls:
            self._open_again(calls, through)
        if at in (IN_FORWARD, IN_BACKWARD):
            self._hand_over(at, superseded)
        if at == IN_BACKWARD and self._read is not None:
            self.script.read(self._read)
        self._read = None
        self._backwards = 0
        self._several.clear()
        self._arguments = self._kwargs = None
        self.ahead.give_back()

    def _open_again(self, calls: Sequence[Happened], through: bool) -> None:
        """The rest has ended inside a step: its calls are known, not when they were and which backwards have run."""
        current, clock = self._current, self._port.clock
        for call in calls:
            root = call.of()
            if root is None:
                continue
            before, model = clock.train, current.models.number(root)
            current.root = root
            current.forward = clock.forward(grad=True, training=call.training, model=model)
            # Of one call only, any backward counts.
            current.forward.marked, current.forward.backpropagated = False, through
            if clock.train is not None and clock.train is not before:
                current.begin_step(clock.train)
        current.output = current.loss = None
        current.forward_depth = 0
        if self.pattern.by_script:
            self.script.note()

    def _hand_over(self, at: int, superseded: bool) -> None:
        current, clock, pattern = self._current, self._port.clock, self.pattern
        root, forwards = pattern.root(), self._several.all
        training = root is None or root.training
        if not pattern.several:
            weights = [self._total] if self._backwards else []
            if at == IN_FORWARD:
                weights.append(self._weight)
            forwards = [Forward(self._start_ns, training, pattern.model) for _ in weights]
            for forward, weight in zip(forwards, weights, strict=True):
                forward.weight = weight
        # Those that backwards have run through.
        through = forwards if pattern.several else forwards[:1]
        for forward in through if self._backwards else ():
            forward.backpropagated |= not (pattern.several and forward.marked)
        for forward in forwards:
            before = clock.train
            current.forward = clock.forward(
                grad=True, training=training, start_ns=forward.start_ns, model=pattern.model, begun=forward
            )
            if clock.train is not None and (clock.train is not before or clock.train.by_hand):
                current.begin_step(clock.train)
            if self._backwards and forward is through[-1]:
                current.objectives.restore(self.pattern.optimizer(), self._loss, self._total, self._backwards)
                if self._backwards >= pattern.most and (at == IN_FORWARD or superseded):
                    self.on_missed_update()
        current.unseen += self._several.differentiated
        last = forwards[-1]
        if not pattern.several or self._several.called is last:
            # Where no mark was set, any backward counts.
            last.marked = superseded or at != IN_FORWARD
            if superseded and at == IN_FORWARD:
                current.unseen.append(last)
        if pattern.settings is not None and root is not None:
            # Without the output of the model: it must not live longer than in an unwatched run.
            last.state = state = ForwardState(
                root, self._arguments, self._kwargs, pattern.settings, self._versions, self._states, pattern.draws,
                self._port.limits.kept_forward_bytes,
            )  # fmt: skip
            state.loss = self._loss if at == IN_BACKWARD and self._backwards == 1 else None
        current.root = root
        current.output = current.loss = None
        current.forward_depth = 0
        # Should the backward still run, what is recomputed in it passes for a forward that leads nowhere.
        current.in_backward = False
