"""Fact and metric ``loss_scale``: the factor of a gradient scaler."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

import torch

from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.records import Role, facts


class LossScales:
    """Listens to ``step`` and ``update`` of ``torch.amp.GradScaler``."""

    def __init__(self, port: Port, leave: ExitStack) -> None:
        self._port = port
        self._scales: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._ones: dict[torch.device, torch.Tensor] = {}
        leave.callback(calls.SCALER_STEP.listen(port.guard, after=port.guarded(self._after_step)))
        leave.callback(calls.SCALER_UPDATE.listen(port.guard, after=port.guarded(self._after_update)))

    def _after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        # Only its update changes the scale.
        scaler = args[0]
        optimizer = args[1] if len(args) > 1 else kwargs["optimizer"]
        first = next(iter(parameters_of(optimizer)), None) if hasattr(optimizer, "param_groups") else None
        if first is None or not scaler.is_enabled():
            return
        device = first.device
        step = self._port.clock.train
        due = step is not None and step.due
        if device.type == "cpu":
            # Only of a scaler on the CPU can the scale be read without a wait.
            scale = float(scaler.get_scale())
            if scaler not in self._scales:
                self._changed(scaler, scale)
            if due and step is not None:
                self._port.add_scalar(step.records, "loss_scale", scale, Role.METRIC)
        elif due and step is not None:
            self._port.add_scalar(step.records, "loss_scale", self._on_device(scaler, device), Role.METRIC)

    def _after_update(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        scaler = args[0]
        if scaler in self._scales:
            scale = float(scaler.get_scale())
            if scale != self._scales[scaler]:
                self._changed(scaler, scale)

    def _changed(self, scaler: Any, scale: float) -> None:
        fact = facts.LossScale(scale, self._scales.get(scaler))
        self._scales[scaler] = scale
        self._port.records.current().add_fact(fact, "GradScaler.update")

    def _on_device(self, scaler: Any, device: torch.device) -> DeviceRows:
        """The scale, read from its effect: every other public way waits for the device."""
        one = self._ones.get(device)
        if one is None:
            one = self._ones[device] = torch.ones((), device=device)
        with torch.no_grad():
            return DeviceRows(scaler.scale(one))
