"""Fact ``clip`` and metric ``gradient_norm_before_clip``: gradients that the script clips."""

from __future__ import annotations

import functools
import sys
import types
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.facts.clips import NORM_BEFORE_CLIP, Clippings
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.record import OpenStep
from watchglass.records import Role, TensorInfo, facts

_BY_NORM, _BY_VALUE = "clip_grad_norm_", "clip_grad_value_"
#: Names of the arguments behind the parameters.
_ARGUMENTS = {
    _BY_NORM: ("max_norm", "norm_type"),
    _BY_VALUE: ("clip_value",),
    "clip_grads_with_norm_": ("max_norm", "total_norm"),
}


class ClipCalls:
    """Listens to the clip functions of ``torch.nn.utils``."""

    def __init__(self, port: Port, leave: ExitStack) -> None:
        self._port = port
        self._clippings = Clippings()
        for function, call in calls.CLIPS.items():
            leave.callback(call.listen(port.guard, after=port.guarded(functools.partial(self._clipped, function))))

    def step_began(self, step: OpenStep) -> None:
        """A captured step has begun: record how often a gradient was clipped."""
        for fact in self._clippings.due():
            step.records.add_fact(fact, fact.function)

    def _clipped(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = {**dict(zip(_ARGUMENTS[function], args[1:], strict=False)), **kwargs}
        limit = given.get("clip_value" if function == _BY_VALUE else "max_norm")
        norm_type = given.get("norm_type", 2.0) if function == _BY_NORM else None
        norm = result if function == _BY_NORM else given.get("total_norm")
        # A limit that is a tensor is not read: its device might have to be waited for.
        limit = limit if isinstance(limit, (int, float)) else None
        value = self._record(norm)
        make = functools.partial(_settings, function, limit, norm_type, norm)
        first = self._clippings.called((function, limit, norm_type), make, value)
        if first is not None:
            self._port.records.current().add_fact(first, function)

    def _record(self, norm: Any) -> float | None:
        """Record the norm at captured steps; returns it where that needs no wait."""
        if not isinstance(norm, Tensor) or norm.numel() != 1 or in_graph_capture(norm):
            return None
        partial = _is_partial(norm)
        if hasattr(norm, "to_local"):
            norm = norm.to_local()
        step = self._port.clock.train
        due = step is not None and step.due
        value: Any
        if norm.device.type == "cpu":
            value = float(norm)
        elif due:
            with torch.no_grad():
                value = DeviceRows(norm.detach().reshape(()).float())
        if due and step is not None:
            if partial:
                # The norm of this rank's shards: the total is the root of the sum of squares over ranks.
                self._port.ids.of(
                    NORM_BEFORE_CLIP,
                    lambda: TensorInfo(0, NORM_BEFORE_CLIP, Role.METRIC, dtype="float64", placement="partial"),
                )
            self._port.add_scalar(step.records, NORM_BEFORE_CLIP, value, Role.METRIC)
        return value if norm.device.type == "cpu" and not partial else None


def _is_partial(norm: Any) -> bool:
    """Whether this is a distributed tensor of which each rank holds the norm of its own shards."""
    return any(placement.is_partial() for placement in getattr(norm, "placements", ()))


def _settings(function: str, limit: float | None, norm_type: Any, norm: Any) -> facts.Clip:
    by_value = function == _BY_VALUE
    return facts.Clip(
        function,
        _caller(sys._getframe()),
        None if by_value else limit,
        limit if by_value else None,
        float(norm_type) if isinstance(norm_type, (int, float, str)) else None,
        "shards of this rank" if _is_partial(norm) else None,
    )


def _caller(frame: types.FrameType | None) -> str:
    """``module:function`` that called into PyTorch."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("watchglass.", "torch.")):
            return f"{name}:{frame.f_code.co_name}"
        frame = frame.f_back
    return ""
