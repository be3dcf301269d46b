"""The cost of watching an evaluation whose batches are short: batches that join the evaluation step before them.

An evaluation step is one call of a model. To open one takes many times as long as a short call itself. So, after the
first batches of a run, some batches in a row make one step, which counts as many: its losses and accuracies are the
means over all of them, weighted by their samples. Whether training steps have had its rows is looked up for each eighth
batch.

A batch joins if it is like the one before: a call of the same model, without gradients, whose losses come from loss
functions. Anything else takes the full path, and opens a step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from operator import add
from threading import get_ident
from typing import Any

from torch import Tensor, is_grad_enabled, nn

from watchglass.capture.pytorch.compiled.graphs import captured
from watchglass.capture.pytorch.events import ForwardCall
from watchglass.capture.pytorch.fast_path.step_interval import StepInterval
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.losses.counted_answers import CountedAnswers
from watchglass.capture.pytorch.step.module_capture import first_tensor
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import FORWARD
from watchglass.record import Forward, OpenStep
from watchglass.records import PHASES, RAW, STATISTICS, Role, facts, loss_kind

#: Batches between two looks at how long they take, and between those whose rows are looked for in the training data.
_LOOKS, _ROWS = 32, 8

#: Judges predictions: given a loss function's name, predictions, target and the label that is none, returns the share
#: of right ones and how many were judged, or None.
Judge = Callable[[str, Any, Any, Any], tuple[Any, int] | None]
#: A listener to a loss function: arguments, keyword arguments, result.
Listener = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


def _gone() -> None:
    """In the place of a reference to a model, where there is none."""


class JoinedBatches:
    """Lets batches join the open evaluation. For the training thread.

    Its callbacks run at each batch and so are written out, with as few calls as possible.

    Args:
        current: The state of the run.
        answers: Finds the accuracy of a script that counts.
        joinable: Whether batches of a model may join, asked once for each step: only loss functions make its losses,
            and nothing is compiled.
    """

    def __init__(self, current: TrainingState, answers: CountedAnswers, joinable: Callable[[nn.Module], bool]) -> None:
        port = current.port
        self._current, self._answers, self._joinable = current, answers, joinable
        self._clock, self._guard, self._cost = port.clock, port.guard, port.cost
        limits = port.limits
        self._interval = StepInterval(port.plan, limits.whole_batches, limits.joined_batches)
        #: Set before the first callback, see :class:`~watchglass.capture.pytorch.step.root_calls.RootCalls`.
        self.between: Callable[[bool], bool] = lambda evaluating: False
        # The training step before the evaluation, and the batch at which its length was measured last.
        self._after, self._looked = -2, 0
        # The step that others may join: its model, and how many still may; whether the script counts right answers.
        self._step: OpenStep | None = None
        self._root: Callable[[], nn.Module | None] = _gone
        self._left = 0
        self._counts = False
        # The batch that has joined last, until another call begins; positions of rows in the records of the step.
        self._forward: Forward | None = None
        self._rows: dict[str, int] = {}
        current.events.resting.append(lambda on: self.forget())
        port.detach_with(self.forget)

    def opened(self, step: OpenStep, root: nn.Module) -> None:
        """The full path has opened a step for a batch of an evaluation."""
        self.forget()
        number = step.mode_step
        interval = self._interval
        if step.train_step != self._after or number < self._looked:
            # The first batch stays alone: its number is where the evaluation begins.
            self._after, self._looked = step.train_step, number
            interval.begin(number)
            return
        if number - self._looked >= _LOOKS:
            self._looked = number
            if interval.look(number, self._current.port.limits.batch_ns):
                step.records.add_fact(facts.EvaluationInterval(interval.interval), "budget")
        if interval.interval == 1 or step.due or self._current.port.rank() is not None or not self._joinable(root):
            return
        following = self._current.port.plan.next_due_evaluation(number + 1)
        self._left = min(interval.interval, following - number) - 1
        if self._left > 0:
            self._step, self._root = step, weakref.ref(root)

    def forget(self) -> None:
        """No batch joins the evaluation step that was open."""
        self._step = self._forward = None
        self._root, self._left = _gone, 0
        self._rows.clear()

    def join(self, root: nn.Module, arguments: Any, kwargs: Any) -> bool:
        """A model is about to be called; returns whether the call joins the open step, so that nothing else is due."""
        if self._step is None or root is not self._root() or is_grad_enabled():
            return False
        started, current, step = self._cost.now_ns(), self._current, self._step
        records = step.records
        if (
            self._clock.evaluation is not step or self._left <= 0 or current.root is not root
            or current.forward_depth or current.in_backward or current.silent or self._guard.is_busy
            or get_ident() != self._guard.thread or current.port.changes.pending or self._cost.measures or captured()
            or records.saved or records.rows.get(STATISTICS) or records.rows.get(RAW) or not self._clock.join()
        ):  # fmt: skip
            return False
        if self._forward is None:
            self._counts = self._answers.found
        if self._counts or self._forward is None:
            self._answers.called(root, evaluating=True)
        self._left -= 1
        current.forward_depth = 1
        current.observes_others = self.between(False)
        current.outputs, current.called_another = (), False
        current.own_losses.clear()
        batch = arguments[0] if arguments else None
        if not isinstance(batch, Tensor):
            batch = first_tensor(arguments, kwargs)
        forward = Forward(step.start_ns, root.training, step.model, grad=False)
        forward.records = records
        if batch is not None:
            forward.weight = float(batch.size(0)) if batch.dim() else 1.0
            current.inputs = batch.numel()
        else:
            current.inputs = 0
        self._forward = current.forward = forward
        if self._left % _ROWS == 0:
            for listener in current.events.each_evaluated:
                listener(ForwardCall(step, forward, root, arguments, kwargs))
        if current.phases is not None:
            current.phases.begin(FORWARD)
        self._cost.callbacks_ns += self._cost.now_ns() - started
        return True

    def ended(self, full: Callable[..., Any]) -> Callable[..., Any]:
        """``full`` for the returns of models, unless the call has joined."""

        def run(root: nn.Module, arguments: Any, output: Any) -> None:
            current, forward = self._current, self._forward
            if forward is None or forward is not current.forward or self._guard.is_busy:
                full(root, arguments, output)
                return
            if get_ident() != self._guard.thread or not current.forward_depth or root is not current.root:
                return
            started = self._cost.now_ns()
            current.forward_depth = 0
            if current.phases is not None:
                self._add_phases(forward)
            if self._counts:
                self._answers.returned(root, forward, output)
            current.hold_outputs(output)
            current.observes_others = self.between(True)
            self._cost.callbacks_ns += self._cost.now_ns() - started

        return run

    def _add_phases(self, forward: Forward) -> None:
        phases, records = self._current.phases, forward.records
        if phases is None:
            return
        _, spent_ns = phases.end()
        known = records.rows[PHASES]
        seconds = [each / 1e9 for each in spent_ns]
        if known:
            known[-1] = tuple(map(add, known[-1], seconds))
        else:
            known.append(tuple(seconds))
        if phases.rows:
            phases.hand_over(records)

    def computed(self, function: str, full: Listener, judge: Judge) -> Listener:
        """``full`` for the results of a loss function, unless they are of a batch that has joined."""
        series = f"loss/{function}"

        def run(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            forward = self._forward
            if forward is None or forward is not self._current.forward or self._guard.is_busy:
                full(args, kwargs, result)
                return
            started = self._cost.now_ns()
            taken = self._take(function, series, judge, args, kwargs, result)
            self._cost.callbacks_ns += self._cost.now_ns() - started
            if not taken:
                full(args, kwargs, result)

        return run

    def _take(
        self, function: str, series: str, judge: Judge, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> bool:
        """Add a loss that is the mean over a batch, as most are, and its accuracy; returns whether it is one."""
        current, forward = self._current, self._forward
        if (
            forward is None or len(args) != 2 or type(result) is not Tensor or result.dim() or is_grad_enabled()
            or current.forward_depth or get_ident() != self._guard.thread or kwargs.get("reduction", "mean") != "mean"
            or not result.is_cpu or captured()
        ):  # fmt: skip
            return False
        if current.is_of_another(function, (*args, *kwargs.values())):
            return True
        value = losses.number(result)
        if type(value) is not float:
            return False
        if not forward.has_loss:
            forward.has_loss = True
            self._add(forward, "loss", Role.LOSS, forward.weight, value)
        self._add(forward, series, Role.LOSS, forward.weight, value)
        if forward.has_accuracy:
            if self._counts and loss_kind(function).of_classes and (root := self._root()) is not None:
                # Both say the same, and this one takes less.
                self._counts = False
                self._answers.called(root, evaluating=True)
        else:
            judged = judge(function, args[0], args[1], kwargs.get("ignore_index", -100))
            if judged is not None:
                forward.has_accuracy = True
                self._add(forward, "accuracy", Role.METRIC, judged[1], judged[0])
        return True

    def _add(self, forward: Forward, name: str, role: Role, weight: float, value: Any) -> None:
        """Add to the mean of the batches that have joined before: a row for each would cost as much as a step."""
        rows = forward.records.series
        at = self._rows.get(name, -1)
        if 0 <= at < len(rows) and rows[at][0] == name and type(rows[at][3]) is float is type(value):
            _, _, total, mean = rows[at]
            both = total + weight
            rows[at] = name, role, both, (mean * total + value * weight) / both if both else value
        else:
            self._rows[name] = len(rows)
            rows.append((name, role, weight, value))
