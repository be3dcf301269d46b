"""The fast path: the cost of watching a step of which only the loss and the learning rate are kept.

Most steps of a training run are alike: its one model is called, a backward runs, its one optimizer steps (with gradient
accumulation the first two several times). After several such steps in a row on the full path, the steps between two
captures take the fast path. It has three callbacks of a few instructions each: as the model is called, as a backward
begins and as the optimizer has stepped. They only follow the pattern; all other listeners of the full path are off. The
first deviation (an evaluation, a second optimizer, a non-finite loss, a stop) ends the fast path: the full path gets
the state of the step so far, as if it had been on from the start.

In reinforcement learning one backward runs through many calls of the model. A call that it does not run through is an
evaluation, so in such steps each output has a hook, as on the full path.

A teacher that is called without gradients ahead of each step helps to train the model, or is evaluated: what follows
shows it. So these calls are held back until the model is called. Anything else that comes first (a loss function, the
call of another model) gives them to the full path.

Where the script updates the model itself, no callback reports it. Then the versions of a few parameters are noted as
a backward ends, and compared as the model is called again: if they differ, the step was over.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

from torch import Tensor, is_grad_enabled, nn
from torch.optim import Optimizer

from watchglass.capture.pytorch.compiled.graphs import compiling
from watchglass.capture.pytorch.compiled.updates import CompiledUpdates
from watchglass.capture.pytorch.forward_state import ForwardState, Settings, versions
from watchglass.capture.pytorch.module_capture import first_tensor
from watchglass.capture.pytorch.module_hooks import Unsaved, unsaved
from watchglass.capture.pytorch.module_tree import inside, is_compiled
from watchglass.capture.pytorch.nested_tensors import tensors_in
from watchglass.capture.pytorch.objective import Objective
from watchglass.capture.pytorch.parameter_reader import ParameterReader
from watchglass.capture.pytorch.random_state import NONE, Randomness
from watchglass.capture.pytorch.tensor_hooks import hook_gradient
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import AFTER_BACKWARD, BACKWARD, FORWARD, NO_PHASES
from watchglass.record import CapturedRecords, Forward, OpenStep
from watchglass.store import ABSENT

#: A fast path that ends within this number of steps followed the wrong pattern, which must be learned again.
_SOON = 2
#: Most calls of the model for one backward: the clock takes the oldest of many more for evaluations.
_MOST_FORWARDS = 512
#: Most calls of other models without gradients ahead of a step.
_MOST_AHEAD = 4
#: Arguments of torch.autograd.backward before the tensors that it is for.
_INPUTS = 5


#: Phases of a step on the fast path. Plain numbers: looking up a member of an enumeration costs more than comparing it.
_OFF, _BETWEEN, _FORWARD, _BACKWARD = range(4)
_LEAST, _MOST = -math.inf, math.inf
# By phase: whether the next call of the model is a part of the pattern.
_ONE_EACH = (False, True, False, True)
_SEVERAL_FOR_ONE = (False, True, True, False)
_NO_MORE = (False, False, False, False)
_AFTER_OTHERS = (False, False, False, True)
_SEVERAL_AFTER_OTHERS = (False, False, True, False)


class FullPath(NamedTuple):
    """The callbacks of the full path, each under the hook's guard; they get the calls that the fast path refuses."""

    before_forward: Callable[[Any, Any, Any], Any]
    before_backward: Callable[[Any, Any, bool], Any]
    after_backward: Callable[[], Any]
    before_update: Callable[[Any, Any, Any], Any]
    after_update: Callable[[Any, Any, Any], Any]


class CallAhead:
    """A call without gradients ahead of a step, until it shows whether it helps the step or is an evaluation.

    Attributes:
        root: The outermost module.
        arguments: Its positional arguments.
        kwargs: Its keyword arguments.
        start_ns: Monotonic clock when it began.
        outputs: What it returned; None while it is under way, or after an exception.
    """

    __slots__ = ("arguments", "kwargs", "outputs", "root", "start_ns")

    def __init__(self, root: nn.Module, arguments: Any, kwargs: Any, start_ns: int) -> None:
        self.root, self.arguments, self.kwargs, self.start_ns = root, arguments, kwargs, start_ns
        self.outputs: tuple[weakref.ref[Tensor], ...] | None = None


class CallsAhead(Protocol):
    """The full path of such calls."""

    between: Callable[[bool], bool]

    def give_back(self, call: CallAhead) -> None:
        """A call that was held back is no part of a step on the fast path."""


class ScriptChanges(Protocol):
    """Finds updates that the script makes itself; see :mod:`~watchglass.capture.pytorch.handwritten_updates`."""

    def note(self) -> None:
        """A backward has ended on the fast path: an update may follow."""

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
    """

    def __init__(self, current: TrainingState, readings: ParameterReader) -> None:
        self.full: FullPath
        #: Set before the first callback.
        self.script: ScriptChanges
        self.calls: CallsAhead
        self.compiled_updates: CompiledUpdates
        #: Called on leaving after as many backwards as in a whole step, if no update was observed after them.
        self.on_missed_update: Callable[[], None] = lambda: None
        #: Starts or stops observing that an optimizer is about to step.
        self.listen_to_updates: Callable[[bool], None] = lambda on: None
        #: Starts or stops observing loss functions.
        self.listen_to_losses: Callable[[bool], None] = lambda on: None
        self._current = current
        self._hook = current.hook
        self._readings = readings
        self._thread = get_ident()
        self._phases = current.phases
        current.hook.in_steady_step = lambda: self._at > _BETWEEN or bool(self._held)
        #: Backwards on threads that are not watched.
        self.elsewhere = 0
        self._at = _OFF
        # Whether a backward runs now.
        self._running = False
        self._alike, self._habit = 0, current.hook.limits.alike_steps
        # Weak references: the pattern must keep no object of the script alive.
        self._root: Callable[[], nn.Module | None] = _gone
        self._inside: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._training = True
        self._optimizer: Callable[[], Optimizer | None] = _gone
        # Whether that is the script itself, and what was read of the gradients before its update.
        self._by_script = False
        self._read: CapturedRecords | None = None
        self._model = 0
        self._settings: Settings | None = None
        self._draws = NONE
        self._random = False
        # One comparison per step: the smaller of the step at which the path ends and the next step with a norm.
        self._end = self._norm_step = self._watchful = 0
        # Losses and weights are sums over the backwards of the step; the rest belongs to its last forward.
        self._step = 0
        self._start_ns = 0
        self._backwards = 0
        # Whether one backward runs through several forwards: then each is observed, by a hook on what it returned.
        self._several = False
        self._follows = _ONE_EACH
        self._forwards: list[Forward] = []
        self._called: Forward | None = None
        shielded = current.hook.guard.shielded
        self._returned: Callable[..., Any] = shielded(self._after_forward, unless=compiling)
        self._arrived: Callable[..., Any] = shielded(self._through)
        self._helped: Callable[..., Any] = shielded(self._after_helper, unless=compiling)
        self._forget_returns: list[Callable[[], None]] = []
        # Outermost modules that are called without gradients ahead of each step, with their mode; those since the last
        # step; and on the fast path their calls so far.
        self._ahead: tuple[tuple[weakref.ref[nn.Module], bool], ...] = ()
        self._others: list[tuple[weakref.ref[nn.Module], bool, int]] = []
        self._held: list[CallAhead] = []
        # Most backwards in a step, and a parameter whose gradient is there from the first on.
        self._most = 1
        self._parameter: Callable[[], Tensor | None] = _gone
        self._loss = self._total = 0.0
        self._weight = 1.0
        self._arguments: Any = None
        self._kwargs: Any = None
        self._versions: tuple[int, ...] | None = None
        self._states = Randomness()
        # Where the path was entered, and what it has cost since.
        self._first = 0
        self._since_ns = 0
        self._norm_ns = 0

    @property
    def on(self) -> bool:
        """Whether steps take this path at present."""
        return self._at != _OFF

    @property
    def holds_back(self) -> bool:
        """Whether steps take this path now in which calls ahead of them are held back."""
        return self._at != _OFF and bool(self._ahead)

    def before_forward(self, root: nn.Module, arguments: Any, kwargs: Any) -> Any:
        """An outermost module is about to be called."""
        at = self._at
        if at != _OFF:
            if get_ident() != self._thread:
                return None
            if self._running:
                # By activation checkpointing, inside the backward.
                self.leave()
                self._current.in_backward = True
                return self.full.before_forward(root, arguments, kwargs)
            if at == _BACKWARD and self._by_script:
                at = self._after_script_updates()
            # An evaluation need not be without gradients.
            if self._follows[at] and self._continues(root):
                self._begin_forward(arguments, kwargs)
                return None
            if at == _BETWEEN and self._is_ahead(root):
                self._hold_back(root, arguments, kwargs)
                return None
            if at == _FORWARD and root in self._inside and is_grad_enabled():
                return None  # by the wrapper around it; an evaluation past the wrapper has no gradients
            if at == _FORWARD and not is_grad_enabled() and self._current.models.number(root) != self._model:
                return None  # a teacher, whose call inside a step is a part of it
            self.leave(superseded=True)
        return self.full.before_forward(root, arguments, kwargs)

    def _continues(self, root: nn.Module) -> bool:
        return root is self._root() and is_grad_enabled() and root.training is self._training

    def _is_ahead(self, root: nn.Module) -> bool:
        number = len(self._held)
        if number >= len(self._ahead) or is_grad_enabled():
            return False
        expected, training = self._ahead[number]
        called = not self._held or self._held[-1].outputs is not None
        return called and root is expected() and root.training is training and self._current.models.number(root) < 0

    def _hold_back(self, root: nn.Module, arguments: Any, kwargs: Any) -> None:
        now_ns = monotonic_ns() if self._phases is None else self._phases.begin(FORWARD)
        if self._held:
            self.calls.between(False)
        self._held.append(CallAhead(root, arguments, kwargs, now_ns))

    def _after_helper(self, root: nn.Module, arguments: Any, output: Any) -> None:
        """A model has returned that is called ahead of steps."""
        if get_ident() != self._thread or self._at != _BETWEEN or not self._held:
            return
        call = self._held[-1]
        if root is not call.root or call.outputs is not None:
            return
        call.outputs = tuple(weakref.ref(tensor) for _, tensor in tensors_in(output))
        self.calls.between(True)
        if len(self._held) == len(self._ahead):
            self._follows = _SEVERAL_FOR_ONE if self._several else _ONE_EACH

    def judges(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for a callback about losses: of a call that was held back it makes an evaluation."""

        def run(*arguments: Any) -> Any:
            if self._held:
                self.leave()
            return full(*arguments)

        return run

    def _begin_forward(self, arguments: Any, kwargs: Any) -> None:
        if self._held:
            self._held = []
            self.calls.between(False)
        phases = self._phases
        now_ns = monotonic_ns() if phases is None else phases.begin(FORWARD)
        if self._at == _BETWEEN:
            self._start_ns = now_ns
        self._at = _FORWARD
        self._arguments = arguments
        self._kwargs = kwargs
        first = arguments[0] if arguments else None
        if not isinstance(first, Tensor):
            first = first_tensor(arguments, kwargs)
        self._weight = float(first.size(0)) if first is not None and first.dim() else 1.0
        self._versions = versions(arguments, kwargs)
        if self._random:
            self._states = self._draws.states()
        if self._several:
            self._called = forward = Forward(now_ns, self._training, self._model)
            forward.weight = self._weight
            self._forwards.append(forward)
            if len(self._forwards) >= _MOST_FORWARDS:
                self._follows = _NO_MORE

    def _after_forward(self, root: nn.Module, arguments: Any, output: Any) -> None:
        """The model has returned, where one backward runs through several of its calls."""
        if get_ident() != self._thread:
            return
        forward, self._called = self._called, None
        if forward is None or self._at != _FORWARD:
            return
        forward.marked = False
        arrived = partial(self._arrived, forward)
        for _, tensor in (("", output),) if isinstance(output, Tensor) else tensors_in(output):
            if tensor.grad_fn is not None:  # a parameter would keep the hook
                hook_gradient(tensor, arrived)
                forward.marked = True

    def _through(self, forward: Forward, gradient: Tensor | None) -> None:
        if self._running or self._current.in_backward:  # not by torch.autograd.grad, which trains nothing
            forward.backpropagated = True

    def before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A backward is about to run."""
        tensors = args[0] if args else kwargs.get("tensors")
        gradients = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
        chosen = kwargs.get("inputs") is not None or len(args) > _INPUTS
        at = self._at
        if get_ident() != self._thread and not (at == _OFF and self._hook.guard.is_lent):
            self.elsewhere += 1
            return
        if at == _FORWARD and gradients is None and not chosen and isinstance(tensors, Tensor) and tensors.is_cpu:
            try:
                loss = tensors.item()
                # Neither holds for NaN; a value that is not finite, or no number, goes to the full path.
                finite = _LEAST < loss < _MOST
            except (RuntimeError, TypeError, ValueError):
                finite = False
            backwards = self._backwards
            if finite and not backwards:
                if self._phases is not None:
                    self._phases.begin(BACKWARD)
                self._at, self._running = _BACKWARD, True
                self._loss, self._total = loss, self._weight
                self._backwards = 1
                return
            if finite and backwards < self._most:
                parameter = self._parameter()
                if parameter is not None and parameter.grad is not None:
                    if self._phases is not None:
                        self._phases.begin(BACKWARD)
                    self._at, self._running = _BACKWARD, True
                    self._loss += loss
                    self._total += self._weight
                    self._backwards = backwards + 1
                    return
        if at == _BACKWARD and self._by_script:
            at = self._after_script_updates()
        if at == _BETWEEN and not self._held:
            return  # of something that is not watched
        self.leave()
        self.full.before_backward(tensors, gradients, chosen)

    def after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A backward has ended, maybe by an exception."""
        if get_ident() == self._thread:
            self._running = False  # also where an optimizer has stepped inside it
        if self._at == _OFF:
            self.full.after_backward()
        elif self._at == _BACKWARD and get_ident() == self._thread:
            if self._phases is not None:
                self._phases.begin(AFTER_BACKWARD)
            if self._by_script:
                self._before_script_updates()
            elif self._several and any(each.marked and not each.backpropagated for each in self._forwards):
                self.leave()

    def before_update(self, optimizer: Optimizer, arguments: Any, kwargs: Any) -> Any:
        """An optimizer is about to step. On the fast path observed only for the norm."""
        if compiling():
            return self.compiled_updates.traced(optimizer, ended=False)
        if self._at != _OFF:
            if get_ident() != self._thread:
                return None
            if optimizer is self._optimizer() and self._at == _BACKWARD:
                if self._take_norm(optimizer, self._hook.current_records()):
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
        at = self._at
        if at != _OFF and get_ident() != self._thread:
            return
        if at == _BACKWARD and optimizer is self._optimizer() and len(arguments) == 1 and not kwargs:
            # Read each time: a state that is loaded has other groups, and unfreezing adds one.
            groups = optimizer.param_groups
            rate = groups[0].get("lr")
            if type(rate) is float and len(groups) == 1:
                self._end_step(rate)
                return
        if at != _OFF:
            if at == _BETWEEN and optimizer in self._current.foreign:
                return
            # Its beginning was not observed.
            self.leave()
            self.full.before_update(optimizer, arguments[:1], {})
        self.full.after_update(optimizer, arguments, kwargs)

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
            script = self._optimizer()
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
                self._hook.current_records().absorb(self._read)
                self._read = None
            self._end_step(ABSENT)
        return self._at

    def _end_step(self, rate: float) -> None:
        """The step is over, with this learning rate."""
        hook = self._hook
        if self._phases is None:
            end_ns, phases = monotonic_ns(), NO_PHASES
        else:
            end_ns, phases = self._phases.end()
            if self._phases.pauses or self._phases.loads:
                self._phases.hand_over(hook.current_records())
        hook.steady_step(self._start_ns, end_ns, self._loss, rate, self._total, phases)
        self._backwards = 0
        if self._several or self._ahead:
            self._forwards, self._follows = [], self._pattern()
        self._arguments = self._kwargs = None
        self._step = step = self._step + 1
        self._at = _BETWEEN
        if step >= self._watchful or hook.changing or not hook.active:
            self._look_around()

    def _look_around(self) -> None:
        """Between steps: leave where the path ends, listen to the beginning of an update where the norm is due."""
        if self._step >= self._end or self._hook.changing or not self._hook.active:
            self.leave()
            return
        self._norm_step = self._readings.norm_pace.next_due(self._step)
        self.listen_to_updates(self._step == self._norm_step and not self._by_script)
        self._watchful = min(self._end, self._step + 1 if self._step == self._norm_step else self._norm_step)

    def scaler_acts(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for a callback about a scaler, of which fast-path steps have none."""

        def run(*arguments: Any) -> Any:
            if self._at != _OFF and get_ident() != self._thread:
                return None
            self.leave()
            return full(*arguments)

        return run

    # -- learning, entering, leaving ---------------------------------------------------------------------------------

    def learn(
        self, step: OpenStep, optimizer: Optimizer, objective: Objective | None, *, plain: bool, by_script: bool = False
    ) -> bool:
        """The full path has seen a whole step; returns whether it, and enough before it, followed the pattern.

        Args:
            step: The step, updated.
            optimizer: The optimizer that updated it.
            objective: The losses that were minimised.
            plain: Whether the update was a call of ``step()`` with no closure, scaler or call inside it.
            by_script: Whether ``optimizer`` stands for lines of the script.
        """
        if not plain:
            # Of several optimizers, each step: what follows costs more.
            self._alike = 0
            self._others.clear()
            return False
        forwards, groups, backwards = step.forwards, optimizer.param_groups, self._current.objectives.backwards
        root = self._current.models.only_root(step.mode_step - self._habit)
        same = (
            not self._current.recomputed
            and self._current.quiet_steps >= self._habit
            and root is not None
            and len(step.optimizers) == 1
            and len(groups) == 1
            and (by_script or type(groups[0].get("lr")) is float)
            and objective is not None
            and type(objective.value) is float
            and math.isfinite(objective.value)
            # One loss for each backward, and forward: nothing was cleared between them.
            and len(objective.losses) == backwards
            and (len(forwards) == backwards or (len(forwards) > backwards == 1 and not by_script))
            and all(loss.plain for loss in objective.losses)
            and all(forward.backpropagated for forward in forwards)
        )
        ahead = self._calls_ahead(step)
        same = same and ahead is not None and not (ahead and by_script)
        if not same or optimizer is not self._optimizer() or root is not self._root() or ahead != self._ahead:
            self._alike = 0
            self._optimizer, self._root = weakref.ref(optimizer), _gone if root is None else weakref.ref(root)
            self._inside = weakref.WeakSet(() if root is None else inside(root))
            self._ahead = ahead or ()
        self._most = max(self._most, backwards) if self._alike else backwards
        self._several = len(forwards) > backwards or (self._several and self._alike > 0)
        self._alike += same
        if self._alike < self._habit:
            return False
        if self._ahead and step.due:
            return False  # what is looked at in the step after a captured one ends with the first call ahead of it
        observed = [each() for each, _ in self._ahead]
        if any(each is None or is_compiled(each) for each in (*observed, *((root,) if self._several else ()))):
            self._alike = 0
            return False
        self._follows = self._pattern()
        self._model, self._by_script = step.model, by_script
        state = forwards[-1].state
        known = isinstance(state, ForwardState)
        self._settings, self._draws = (state.settings, state.draws) if known else (None, NONE)
        self._random = True in self._draws
        parameter = self._current.objectives.parameter_of(optimizer)
        self._parameter = _gone if parameter is None else weakref.ref(parameter)
        self._training = root is not None and root.training
        return True

    def _pattern(self) -> tuple[bool, bool, bool, bool]:
        """Which calls of the model are expected, as a step ends."""
        if self._ahead:
            return _SEVERAL_AFTER_OTHERS if self._several else _AFTER_OTHERS
        return _SEVERAL_FOR_ONE if self._several else _ONE_EACH

    def called_other(self, root: nn.Module, model: int) -> None:
        """An outermost module is called without gradients between steps, of the model of this number."""
        if model != self._model and len(self._others) <= _MOST_AHEAD:
            self._others.append((weakref.ref(root), root.training, model))

    def _calls_ahead(self, step: OpenStep) -> tuple[tuple[weakref.ref[nn.Module], bool], ...] | None:
        """The calls ahead of a step, None where they are no pattern.

        If another model than that of the pattern was evaluated, only the full path can tell what for.
        """
        others, self._others = self._others, []
        numbers = tuple(model for _, _, model in others)
        if numbers != step.helpers or len(others) > _MOST_AHEAD or any(model >= 0 for model in numbers):
            return None
        return tuple((root, training) for root, training, _ in others)

    def enter(self) -> None:
        """Take this path from the next step to the next captured one, if that is not the same."""
        hook = self._hook
        self._step = hook.clock.next_train_step
        captured = hook.alternating.next_due(self._model, self._step)
        self._end = min(captured, self._current.next_observed(self._step))
        if self._end <= self._step or hook.changing:
            return
        if not hook.begin_steady_steps(self._model, rated=not self._by_script):
            return
        self._first = self._step
        self._norm_ns = 0
        self._since_ns = monotonic_ns()
        self._at = _BETWEEN
        # Its records belong to the recorder now; they must not be kept alive up to the next forward on the full path.
        self._current.forward = None
        self._current.unseen.clear()
        for listener in self._current.events.resting:
            listener(True)
        root = self._root()
        if self._several and root is not None:
            self._observe_returns(root, self._returned)
        if self._ahead:
            self.listen_to_losses(True)
            for other in {each() for each, _ in self._ahead}:
                if other is not None:
                    self._observe_returns(other, self._helped)
        self._look_around()

    def _observe_returns(self, root: nn.Module, returned: Callable[..., Any]) -> None:
        self._forget_returns.append(unsaved(root.register_forward_hook(Unsaved(returned))))

    def enter_with(self, root: nn.Module, arguments: Any, kwargs: Any) -> bool:
        """Take this path from the call of ``root`` on that begins now; returns False where it does not."""
        if self._continues(root):
            self.enter()
            if self.on:
                self._begin_forward(arguments, kwargs)
        return self.on

    def settle(self) -> None:
        """Go back to the full path outside of any callback: after a backward, the step is over."""
        self.leave(superseded=self._at == _BACKWARD)

    def leave(self, *, superseded: bool = False) -> None:
        """Go back to the full path, which takes over the state of the open step.

        Args:
            superseded: Another forward begins, so none of the pattern's backwards will run through the last one.
        """
        at, self._at, self._running = self._at, _OFF, False
        if at == _OFF:
            return
        steps = self._step - self._first
        if steps < _SOON and self._step < self._end:
            self._alike = 0
        self.listen_to_updates(True)
        while self._forget_returns:
            self._forget_returns.pop()()
        for listener in self._current.events.resting:
            listener(False)
        self._hook.alternating.passed(self._model, steps)
        self._hook.cost.steady_steps_ended(steps, monotonic_ns() - self._since_ns, self._norm_ns)
        if at != _BETWEEN:
            self._hand_over(at, superseded)
        if at == _BACKWARD and self._read is not None:
            self.script.read(self._read)
        self._read = None
        self._backwards = 0
        self._forwards, self._called = [], None
        self._arguments = self._kwargs = None
        held, self._held = self._held, []
        for call in held:
            self.calls.give_back(call)

    def _hand_over(self, at: int, superseded: bool) -> None:
        current, clock, root = self._current, self._hook.clock, self._root()
        training = root is None or root.training
        forwards = self._forwards
        if not self._several:
            weights = [self._total] if self._backwards else []
            if at == _FORWARD:
                weights.append(self._weight)
            forwards = [Forward(self._start_ns, training, self._model) for _ in weights]
            for forward, weight in zip(forwards, weights, strict=True):
                forward.weight = weight
        # Those that backwards have run through.
        through = forwards if self._several else forwards[:1]
        for forward in through if self._backwards else ():
            forward.backpropagated |= not (self._several and forward.marked)
        for forward in forwards:
            before = clock.train
            current.forward = clock.forward(
                grad=True, training=training, start_ns=forward.start_ns, model=self._model, begun=forward
            )
            if clock.train is not None and clock.train is not before:
                current.begin_step(clock.train)
            if self._backwards and forward is through[-1]:
                current.objectives.restore(self._optimizer(), self._loss, self._total, self._backwards)
                if self._backwards >= self._most and (at == _FORWARD or superseded):
                    self.on_missed_update()
        last = forwards[-1]
        if not self._several or self._called is last:
            # Where no mark was set, any backward counts.
            last.marked = superseded or at != _FORWARD
            if superseded and at == _FORWARD:
                current.unseen.append(last)
        if self._settings is not None and root is not None:
            # Without the output of the model: it must not live longer than in an unwatched run.
            last.state = state = ForwardState(
                root, self._arguments, self._kwargs, self._settings, self._versions, self._states, self._draws,
                self._hook.limits.kept_forward_bytes,
            )  # fmt: skip
            state.loss = self._loss if at == _BACKWARD and self._backwards == 1 else None
        current.root = root
        current.output = current.loss = None
        current.forward_depth = 0
        # Should the backward still run, what is recomputed in it passes for a forward that leads nowhere.
        current.in_backward = False


def _gone() -> None:
    """A reference to nothing."""
