"""Losses and backwards, as the wrapped functions tell of them."""

from __future__ import annotations

import math
import weakref
from typing import Any

from torch import Tensor

from watchglass.capture.pytorch import losses
from watchglass.capture.pytorch.first_bad import FirstBadModule
from watchglass.capture.pytorch.flow import Flow
from watchglass.capture.pytorch.replaying import ForwardState
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

    def loss_computed(
        self, function: str, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, reduction: str
    ) -> None:
        """A loss function returned; it belongs to the last forward while that one's step is open."""
        flow, clock = self._flow, self._flow.hook.clock
        forward = flow.forward
        if forward is None or flow.in_backward or flow.forward_depth:
            return
        evaluating, step = clock.evaluation is not None, clock.train
        if not evaluating:
            if step is None or step.updated:
                return
            if arguments and flow.output is not None and arguments[0] is flow.output():
                flow.loss = weakref.ref(result)
                if isinstance(forward.state, ForwardState):
                    forward.state.loss_call = (function, arguments[1:], kwargs)
            if not step.due:
                return  # what its backward starts from is recorded at every step
        predictions = arguments[0] if arguments else kwargs.get("input")
        target = arguments[1] if len(arguments) > 1 else kwargs.get("target")
        loss = losses.normalised(result, predictions, reduction)
        if loss is None:
            return
        value = losses.number(loss)
        if evaluating and not forward.records.scalars:
            flow.hook.add_scalar(forward.records, "loss", value, Role.LOSS, forward.weight)
        flow.hook.add_scalar(forward.records, f"loss/{function}", value, Role.LOSS, forward.weight)
        judged = losses.accuracy(function, predictions, target)
        if judged is not None:
            flow.hook.add_scalar(forward.records, "accuracy", judged[0], Role.METRIC, judged[1])

    def loss_scaled(self, given: Any, scaled: Any) -> None:
        """Remember which loss a scaled one came from, so that it is recorded unscaled."""
        if isinstance(scaled, Tensor) and isinstance(given, Tensor):
            if len(self._scaled) > _MAX_SCALED:
                self._scaled.clear()
            self._scaled[id(scaled)] = (weakref.ref(scaled), given.detach())

    def before_backward(self, tensors: Any, weighted: bool) -> None:
        """A backward begins. Its tensor is the loss if it turns out to run through one of our forwards."""
        flow = self._flow
        flow.in_backward = True
        self._started_from = None
        step = flow.hook.clock.train
        if isinstance(tensors, (tuple, list)) and len(tensors) == 1:
            tensors = tensors[0]
        if weighted or not isinstance(tensors, Tensor) or tensors.numel() != 1:
            return
        if step is None or step.updated:
            if len(flow.unplaced) < _MAX_UNPLACED:
                flow.unplaced.append(losses.number(self._unscaled(tensors)))
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
        if isinstance(value, float) and not math.isfinite(value):
            self._first_bad.in_forward(step, flow.forward, value)
            flow.hook.flush()

    def after_backward(self) -> None:
        """That backward is over: now it is known which forwards it ran through."""
        flow = self._flow
        flow.in_backward = False
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
