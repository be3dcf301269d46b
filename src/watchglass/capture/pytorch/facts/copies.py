"""Bounded copies of tensors for the recorder's thread: alone, or of several tensors that travel together."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import NUMPY, Arrays, Elements
from watchglass.capture.facts.input_sketches import Sample, positions, table_positions
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import on_host
from watchglass.capture.pytorch.saving.reduce import PyTorchArrays, in_numpy, picked

_TENSORS = PyTorchArrays()
#: Errors of tensors without readable elements: inside torch.func, or of a class that a user wrote.
_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, IndexError)


def is_readable(tensor: Any) -> TypeGuard[Tensor]:
    """Whether it is a tensor, all of this process, whose elements can be read in place now."""
    if not isinstance(tensor, Tensor) or hasattr(tensor, "to_local") or tensor.is_meta or tensor.is_nested:
        return False
    return tensor.layout is torch.strided and not tensor.is_quantized and not in_graph_capture(tensor)


def sample(
    path: str, tensor: Tensor, index: NDArray[np.int64] | None = None, shape: tuple[int, ...] | None = None,
    rows: int = 0,
) -> Sample | None:  # fmt: skip
    """A sample of a tensor, see :meth:`Sample.of`; None of one whose values cannot be read now."""
    try:
        return Sample.of(*_read(tensor), path, index, shape, rows)
    except _UNREADABLE:
        return None


def table_sample(path: str, tensor: Tensor) -> Sample | None:
    """Some whole rows of a tensor with two axes; None of others, of small ones and of those with long rows."""
    index = None if hasattr(tensor, "to_local") else table_positions(tuple(tensor.shape))
    return None if index is None else sample(path, tensor, index, rows=len(index) // tensor.shape[1])


def row_sample(tensor: Tensor, rows: int, numbers: int, tokens: int) -> Sample | None:
    """Parts of the first rows of a tensor, see :meth:`Sample.of_first_rows`; None of a distributed one too."""
    try:
        return None if hasattr(tensor, "to_local") else Sample.of_first_rows(*_read(tensor), rows, numbers, tokens)
    except _UNREADABLE:
        return None


def _read(tensor: Tensor) -> tuple[Arrays, Any]:
    """A tensor with one shape and elements that can be read in place, and what reads it."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if not is_readable(tensor):
        raise TypeError("no elements that can be read in place now")
    # Each batch of an evaluation comes here, and NumPy takes a quarter of the time of PyTorch for few elements.
    tensor = tensor.detach()
    return (NUMPY, tensor.numpy()) if in_numpy(tensor) else (_TENSORS, tensor)


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
        if not is_readable(tensor) or not tensor.is_floating_point() or not tensor.numel():
            return None
        if tensor.numel() <= limit:
            return tensor.reshape(-1).clone()
        return picked(tensor, positions(tensor.numel(), limit))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # a user's class of tensor, or one without memory so far
