"""Copies of some elements of several tensors, which travel together to the recorder's thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import Elements
from watchglass.capture.facts.input_sketches import positions
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import on_host
from watchglass.capture.pytorch.saving.reduce import picked


class _CopiedPart(NamedTuple):
    """One of the copies, once they have been sent."""

    copies: Copies
    device: torch.device
    number: int

    def resolve(self) -> NDArray[Any]:
        return self.copies.received(self.device)[self.number]


class Copies:
    """Copies of tensors; those on one device come to the host in one piece, in float64 if any of them has it."""

    def __init__(self) -> None:
        self._parts: dict[torch.device, list[Tensor]] = {}
        self._sent: dict[torch.device, tuple[Elements, list[int]]] = {}
        self._received: dict[torch.device, list[NDArray[Any]]] = {}

    def add(self, values: Tensor) -> Elements:
        """Take a tensor along, which nothing changes until :meth:`send`; returns its elements, in one axis."""
        parts = self._parts.setdefault(values.device, [])
        parts.append(values.detach().reshape(-1))
        return Elements(_CopiedPart(self, values.device, len(parts) - 1))

    def send(self) -> None:
        """All are there: copy them. Waits for no device."""
        for device, parts in self._parts.items():
            wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
            together = torch.cat([part.to(wide) for part in parts])
            self._sent[device] = Elements(on_host(together)), [part.numel() for part in parts]
        self._parts = {}

    def received(self, device: torch.device) -> list[NDArray[Any]]:
        """The arrays from a device, in the order in which they were added. Waits: for the recorder's thread."""
        if device not in self._received:
            sent, sizes = self._sent[device]
            self._received[device] = np.split(sent.received(), np.cumsum(sizes)[:-1])
        return self._received[device]


def some(tensor: Tensor | None, limit: int) -> Tensor | None:
    """A copy of at most ``limit`` elements of a tensor of floats; None where they cannot be read cheaply."""
    if tensor is None:
        return None
    try:
        tensor = tensor.detach()
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        usable = tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
        if not usable or not tensor.is_floating_point() or not tensor.numel() or in_graph_capture(tensor):
            return None
        if tensor.numel() <= limit:
            return tensor.reshape(-1).clone()
        return picked(tensor, positions(tensor.numel(), limit))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # a user's class of tensor, or one without memory so far
