"""Copies of some elements of several tensors, which travel together to the recorder's thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.facts.input_samples import scattered

#: Place of a tensor among the copies.
CopyPlace = tuple[torch.device, int]


class Copies:
    """Copies of tensors; those on one device come to the host in one piece, in float64 if any of them has it."""

    def __init__(self) -> None:
        self._parts: dict[torch.device, list[Tensor]] = {}
        self._sent: dict[torch.device, tuple[Any, list[int]]] = {}

    def add(self, values: Tensor) -> CopyPlace:
        """Take a tensor along, which nothing changes until :meth:`send`; returns its place."""
        parts = self._parts.setdefault(values.device, [])
        parts.append(values.detach().reshape(-1))
        return values.device, len(parts) - 1

    def send(self) -> None:
        """All are there: copy them. Waits for no device."""
        for device, parts in self._parts.items():
            wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
            together = torch.cat([part.to(wide) for part in parts])
            sent = together.numpy() if device.type == "cpu" else DeviceRows(together)
            self._sent[device] = sent, [part.numel() for part in parts]
        self._parts = {}

    def values(self) -> dict[CopyPlace, NDArray[Any]]:
        """The arrays by their places. Waits for devices: for the recorder's thread."""
        found = {}
        for device, (sent, sizes) in self._sent.items():
            values = sent if isinstance(sent, np.ndarray) else sent.resolve()
            for place, part in enumerate(np.split(values, np.cumsum(sizes)[:-1])):
                found[device, place] = part
        return found


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
        return scattered(tensor, limit)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # a user's class of tensor, or one without memory so far
