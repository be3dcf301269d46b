"""Losses and backwards, as the wrapped functions tell of them."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.pytorch import losses
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.events import LossCall
from watchglass.capture.pytorch.first_bad.replaying import ForwardState
from watchglass.capture.pytorch.first_bad.search import FirstBadModule
from watchglass.capture.pytorch.flow import Flow
from watchglass.capture.pytorch.switchboard import argument_of
from watchglass.record import StepRecords
from watchglass.records import Role

_MAX_SCALED, _MAX_UNPLACED = 64, 64


class Backwards:
    """Finds the loss of each forward, and its accuracy where it has one."""

    def __init__(self, flow: Flow, first_bad: FirstBadModule) -> None:
        self._flow = flow
        self._first_bad = first_bad
        self._scaled: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._started_from: Any = None
        self._trained_before: list[bool] = []
        self._chained = False
        # Backwards that run inside another: of checkpoints that recompute what lies between them.
        self._inner = 0

    def loss_computed(self, function: str, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """A loss function returned; it belongs to the last forward while that one's step is open."""
        flow, clock = self._flow, self._flow.hook.clock
        forward = flow.forward
        if forward is None or flow.in_backward:
            return
        # A model may compute its loss itself; what that is given is worth the same, what it returns is an output.
        inside = flow.forward_depth > 0
        evaluating, step = clock.evaluation is not None, clock.train
        due = clock.evaluation.due if clock.evaluation is not None else step is not None and step.due
        if not evaluating:
            if step is None or step.updated:
                return
            if arguments and not inside and flow.output is not None and arguments[0] is flow.output():
                flow.loss = weakref.ref(result)
                if isinstance(forward.state, ForwardState):
                    forward.state.loss_call = (function, arguments[1:], kwargs)
            if not due and forward.training:
                return  # what its backward starts from is recorded at every step
        predictions = arguments[0] if arguments else kwargs.get("input")
        target = arguments[1] if len(arguments) > 1 else kwargs.get("target")
        if due:
            call = LossCall(forward, function, predictions, target, arguments, kwargs, result, not evaluating)
            with torch.no_grad():
                flow.events.tell(flow.events.loss_computed, call, forward.records)
        if inside:
            return
        reduction = argument_of(function, "reduction", arguments, kwargs, "mean")
        loss = losses.normalised(result, predictions, str(reduction))
        if loss is None:
            return
        value = losses.number(loss)
        if value is None:
            return
        # With gradients on it shows later only that a forward was an evaluation.
        later = forward.records if evaluating else StepRecords()
        records = forward.records if evaluating or due else later
        if not (forward.has_loss or (forward.training and not evaluating)):
            forward.has_loss = True
            flow.hook.add_scalar(later, "loss", value, Role.LOSS, forward.weight)
        flow.hook.add_scalar(records, f"loss/{function}", value, Role.LOSS, forward.weight)
        judged = None
        if evaluating or due or result.is_cpu:
            ignored = argument_of(function, "ignore_index", arguments, kwargs, -100)
            judged = losses.accuracy(function, predictions, target, ignored)
        if judged is not None:
            flow.hook.add_scalar(records, "accuracy", judged[0], Role.METRIC, judged[1])
        if not evaluating:
            forward.if_evaluated = [*forward.if_evaluated, *later.scalars]

    def loss_scaled(self, given: Any, scaled: Any) -> None:
        """Remember which loss a scaled one came from, so that it is recorded unscaled."""
        if isinstance(scaled, Tensor) and isinstance(given, Tensor):
            if len(self._scaled) > _MAX_SCALED:
                self._scaled.clear()
            self._scaled[id(scaled)] = (weakref.ref(scaled), given.detach())

    def before_backward(self, tensors: Any, weighted: bool) -> None:
        """A backward begins. Its tensor is the loss if it turns out to run through one of our forwards."""
        flow = self._flow
        if flow.in_backward:
            flow.recomputed = True
            self._inner += 1
            return
        # On devices a backward runs on threads of autograd's, and with it whatever it calls: an optimizer, for one.
        flow.in_backward = flow.hook.guard.waiting = True
        self._started_from = None
        step = flow.hook.clock.train
        if isinstance(tensors, (tuple, list)) and len(tensors) == 1:
            tensors = tensors[0]
        if weighted or not isinstance(tensors, Tensor) or tensors.numel() != 1:
            return
        if step is None or step.updated:
            if len(flow.unplaced) < _MAX_UNPLACED:
                value = losses.number(self._unscaled(tensors))
                flow.unplaced += [] if value is None else [value]
            return
        self._trained_before = [forward.backpropagated for forward in step.forwards]
        self._chained = flow.loss is not None and tensors is flow.loss()
        if self._chained and flow.forward is not None:
            flow.chained += 1
            flow.forward.backpropagated = True
        else:
            flow.chained = 0
        value = losses.number(self._unscaled(tensors))
        self._started_from = value
        if isinstance(value, DeviceRows):
            self._first_bad.on_device(step, value)
            return
        if value is None:
            return
        state = flow.forward.state if flow.forward is not None else None
        if isinstance(state, ForwardState):
            state.loss = value
        if not math.isfinite(value):
            self._first_bad.in_forward(step, flow.forward, value)
            flow.hook.flush()

    def after_backward(self) -> None:
        """That backward is over: now it is known which forwards it ran through."""
        flow = self._flow
        if self._inner:
            self._inner -= 1
            return
        flow.in_backward = flow.hook.guard.waiting = False
        step, value = flow.hook.clock.train, self._started_from
        self._started_from = None
        if step is None or value is None:
            return
        target = None
        for forward, before in zip(step.forwards, self._trained_before, strict=False):
            if not (forward.marked or self._chained):
                forward.backpropagated = True
            # A second backward through the same forward (two losses, retain_graph) is a loss of its too.
            if forward.backpropagated and (target is None or not before):
                target = forward
        if target is not None:
            flow.hook.add_scalar(target.records, "loss", value, Role.LOSS, target.weight)

    def _unscaled(self, loss: Tensor) -> Tensor:
        known = self._scaled.pop(id(loss), None)
        return known[1] if known is not None and known[0]() is loss else loss
