"""Finds losses, from calls of loss functions and the starts of backwards that the wrapped functions report."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import BackwardCall, LossCall
from watchglass.capture.pytorch.graph.autograd_graph import BackwardStart, reaches
from watchglass.capture.pytorch.graph.loss_expressions import Expression
from watchglass.capture.pytorch.graph.nodes import node_at
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.losses.handwritten_losses import HANDWRITTEN
from watchglass.capture.pytorch.losses.objective import Objective
from watchglass.capture.pytorch.public_calls import argument_of
from watchglass.capture.pytorch.step.forward_state import ForwardState
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.capture.step_phases import AFTER_BACKWARD, BACKWARD
from watchglass.record import CapturedRecords, Forward, OpenStep
from watchglass.records import Role, loss_kind

_MAX_SCALED = 64


class Backwards:
    """Finds the loss of each forward, and the accuracy of a classification. For the training thread."""

    def __init__(self, current: TrainingState) -> None:
        self._current = current
        #: Called with the roots of a backward before it runs, and after it.
        self.on_begin: Callable[[Sequence[Any]], None] = lambda roots: None
        self.on_end: Callable[[], None] = lambda: None
        # On a device the first targets of each loss function decide whether it classifies, once they are on the host.
        self._labels: dict[str, DeviceRows] = {}
        self._scaled: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._everywhere = True
        self._trained_before: list[bool] = []
        self._chained = False
        # Depth of backwards inside another: checkpointing recomputes forwards in a backward.
        self._inner = 0

    def loss_computed(self, function: str, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A loss function returned. Its result belongs to the last forward while the step of that forward is open."""
        current, clock = self._current, self._current.port.clock
        if not isinstance(result, Tensor):
            return
        forward = current.forward
        if (
            forward is None
            or current.in_backward
            or current.silent
            or current.is_of_another(function, (*arguments, *kwargs.values()))
        ):
            return
        # A model may compute its loss itself: then the arguments count too, and the result is an output.
        inside = current.forward_depth > 0
        evaluating, step = clock.evaluation is not None, clock.train
        due = clock.evaluation.due if clock.evaluation is not None else step is not None and step.due
        if not evaluating:
            if step is None or step.updated:
                return
            if arguments and not inside and current.output is not None and arguments[0] is current.output():
                current.loss = weakref.ref(result)
                if isinstance(forward.state, ForwardState):
                    forward.state.loss_call = (function, arguments[1:], kwargs)
            if not due and forward.training:
                return  # the start of its backward is recorded at every step
        predictions = arguments[0] if arguments else kwargs.get("input")
        target = arguments[1] if len(arguments) > 1 else kwargs.get("target")
        if due:
            call = LossCall(forward, function, predictions, target, arguments, kwargs, result, not evaluating)
            with torch.no_grad():
                current.events.notify(current.events.loss_computed, call, forward.records)
        if inside:
            if evaluating:
                current.sources.computed(result)
            return
        reduction = str(argument_of(function, "reduction", arguments, kwargs, "mean"))
        ignored = argument_of(function, "ignore_index", arguments, kwargs, -100)
        with torch.no_grad():
            loss = losses.normalised(result, predictions, reduction)
            terms = loss
            if reduction != "mean":
                terms = losses.mean_of_terms(function, result, predictions, target, reduction, ignored)
        value = None if loss is None else losses.number(loss)
        if value is None:
            return
        # With gradients on, it turns out only later that a forward was an evaluation.
        later = forward.records if evaluating else CapturedRecords()
        records = forward.records if evaluating or due else later
        if not (forward.has_loss or (forward.training and not evaluating)):
            forward.has_loss = True
            later.series.append(("loss", Role.LOSS, forward.weight, value))
        mean = value if terms is loss else None if terms is None else losses.number(terms)
        if mean is not None:
            records.series.append((f"loss/{function}", Role.LOSS, forward.weight, mean))
        judged = None
        if (evaluating or due or result.is_cpu) and not forward.has_accuracy:
            judged = self.accuracy(function, predictions, target, ignored)
        if judged is not None:
            records.series.append(("accuracy", Role.METRIC, judged[1], judged[0]))
            forward.has_accuracy = True
        if not evaluating:
            forward.if_evaluated = [*forward.if_evaluated, *later.series]

    def accuracy(self, function: str, predictions: Any, target: Any, ignored: Any) -> tuple[Any, int] | None:
        """The share of right predictions of a loss function, and their number; None where none are right or wrong."""
        if not self._is_classification(function, predictions, target):
            return None
        return losses.accuracy(function, predictions, target, ignored)

    def _is_classification(self, function: str, predictions: Any, target: Any) -> bool:
        if not losses.is_classification(function, predictions, target, self._current.inputs):
            return False
        if not loss_kind(function).of_labels:
            return True
        with torch.no_grad():
            if target.is_cpu:
                return bool(losses.are_labels(target))
            # Known from the second call on, because this thread never waits for a device.
            known = self._labels.get(function)
            if known is None:
                known = self._labels[function] = DeviceRows(losses.are_labels(target).float())
        return (known.here or known.ready) and bool(known.resolve())

    def loss_scaled(self, args: tuple[Any, ...], kwargs: dict[str, Any], scaled: Any) -> None:
        """Remember the loss that a scaler has scaled, so that it is recorded unscaled."""
        given = args[1] if len(args) > 1 else kwargs.get("outputs")
        # A scaler that is switched off returns the loss itself, with its graph.
        if isinstance(scaled, Tensor) and isinstance(given, Tensor) and scaled is not given:
            if len(self._scaled) > _MAX_SCALED:
                self._scaled.clear()
            self._scaled[id(scaled)] = (weakref.ref(scaled), given.detach())

    def before_backward(self, tensors: Any, gradients: Any, chosen: bool) -> None:
        """A backward begins, from a loss or from several tensors.

        Args:
            tensors: The tensors that it starts from.
            gradients: Gradients of these tensors, if the script gave some.
            chosen: Whether gradients are computed only for chosen tensors.
        """
        current = self._current
        if current.silent:
            return
        if current.in_backward:
            current.recomputed = True
            self._inner += 1
            return
        if current.phases is not None:
            current.phases.begin(BACKWARD)
        for began in current.events.each_backward_began:
            began()
        roots = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
        self.on_begin(roots)
        # On devices a backward and everything that it calls (even an optimizer) run on autograd's threads.
        current.in_backward = current.port.guard.waiting = True
        self._trained_before = []
        self._chained = False
        self._everywhere = not chosen
        if current.unseen:
            self._look_for_unseen(roots)
        step = current.port.clock.train
        open_step = None if step is None or step.updated else step
        weights = gradients if isinstance(gradients, (tuple, list)) else (gradients,) * len(roots)
        plain = [self._unscaled(root) if isinstance(root, Tensor) else root for root in roots]
        found = [self._number(root, weight) for root, weight in zip(plain, weights, strict=False)]
        numbers = [number for number in found if number is not None]
        value = numbers[0] if len(numbers) == 1 else Objective.sum_of(numbers) if numbers else None
        within = open_step is not None and current.forward is not None
        weight = current.forward.weight if within and current.forward is not None else 1.0
        current.objectives.begin(value, weight, plain=isinstance(tensors, Tensor) and gradients is None and not chosen)
        start = BackwardStart(None)
        if len(roots) == 1 and gradients is None and isinstance(roots[0], Tensor):
            start = unscaled = BackwardStart(roots[0].grad_fn)
            if plain[0] is not roots[0]:
                unscaled = BackwardStart(node_at(start.node, (0,)))
            captured = step if within and not chosen and step is not None and step.due else None
            if captured is not None and current.events.backward_began:
                self._notify_began(captured, unscaled)
            made = current.sources.started_from(roots[0], unscaled)
            if made is not None and captured is not None:
                self._record_handwritten(plain[0], value, made)
        if open_step is not None:
            self._trained_before = [forward.backpropagated for forward in open_step.forwards]
        if open_step is None or len(roots) != 1 or gradients is not None or value is None:
            return
        step = open_step
        self._chained = current.loss is not None and roots[0] is current.loss()
        if self._chained and current.forward is not None:
            # Where an earlier forward waits for its backward, as the inner steps of MAML do, each needs a mark.
            alone = all(forward.backpropagated for forward in step.forwards[-2:-1])
            current.chained = current.chained + 1 if alone else 0
            current.forward.backpropagated = True
        else:
            current.chained = 0
        if type(value) is float:
            state = current.forward.state if current.forward is not None else None
            if isinstance(state, ForwardState):
                state.loss = value
            if math.isfinite(value):
                for looks in current.events.finite_loss:
                    looks(step, start)
                return
        for listener in current.events.loss_suspected:
            listener(step, value, start)

    def after_backward(self) -> None:
        """The backward is over: the forwards that it ran through are known."""
        current = self._current
        if current.silent:
            return
        if self._inner:
            self._inner -= 1
            return
        if current.phases is not None:
            current.phases.begin(AFTER_BACKWARD)
        for ended in current.events.each_backward_ended:
            ended()
        current.in_backward = current.port.guard.waiting = False
        step = current.port.clock.train
        trained_before, self._trained_before = self._trained_before, []
        through: list[Forward] = []
        for forward, before in zip(step.forwards if step is not None else (), trained_before, strict=False):
            if not (forward.marked or self._chained):
                forward.backpropagated = True
            # A second backward through the same forward (two losses, retain_graph) has a loss of that forward too.
            if forward.backpropagated and (not through or not before):
                through.append(forward)
        # A failed or partial backward may reach a forward but not all parameters of its model.
        everywhere = self._everywhere and sys.exc_info()[0] is None
        current.objectives.end({forward.model for forward in through} if everywhere else ())
        self.on_end()

    def _look_for_unseen(self, roots: Sequence[Any]) -> None:
        """Whether this backward runs through forwards whose outputs have no mark: beside the outputs of others."""
        unseen, model = self._current.unseen, self._current.unseen[-1].model
        owners = [tree.owner for tree in self._current.models if tree.number == model]
        # Not from the tree, which has not been read again if the script has replaced them.
        parameters = {id(each) for owner in owners if owner is not None for each in owner.parameters()}
        if any(isinstance(root, Tensor) and reaches(root, lambda each: id(each) in parameters) for root in roots):
            for forward in unseen:
                forward.marked = False
            unseen.clear()

    def _notify_began(self, step: OpenStep, start: BackwardStart) -> None:
        forward = self._current.forward
        if forward is not None:
            call = BackwardCall(step, forward, start)
            with torch.no_grad():
                self._current.events.notify(self._current.events.backward_began, call, forward.records)

    def _record_handwritten(self, loss: Tensor, value: Any, made: Expression) -> None:
        """Record the part of a handwritten loss that evaluations have, too."""
        forward = self._current.forward
        if type(value) is not float and made.divisor != 1:
            with torch.no_grad():
                value = losses.number(loss.detach() / made.divisor)
        elif value is not None:
            value = value / made.divisor if made.divisor != 1 else value
        if value is not None and forward is not None:
            forward.records.series.append((HANDWRITTEN, Role.LOSS, forward.weight, value))

    def _number(self, root: Any, weight: Any) -> Any:
        """What a root of a backward, unscaled, counts: a number or a readback of one, times the gradient given with it.

        None where it is no scalar.
        """
        if not isinstance(root, Tensor) or root.numel() != 1:
            return None
        if weight is None:
            return losses.number(root)
        if not isinstance(weight, Tensor) or weight.numel() != 1:
            return None
        return losses.number(root.detach().reshape(()) * weight.detach().reshape(()))

    def _unscaled(self, loss: Tensor) -> Tensor:
        known = self._scaled.pop(id(loss), None)
        return known[1] if known is not None and known[0]() is loss else loss
