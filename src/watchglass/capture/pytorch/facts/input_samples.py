"""Bounded copies of tensors, by the positions of :mod:`~watchglass.capture.input_sketches`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from watchglass.capture.input_sketches import LIMIT, Sample, positions, rows_of
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.device.readback import DeviceRows

_MOST_INDICES = 64
_indices: dict[tuple[int, int, torch.device], Tensor] = {}


def sample(path: str, tensor: Tensor) -> Sample | None:
    """A sample of a tensor; None of one whose values cannot be read now."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return _sample(path, tensor, scattered)


def table_sample(path: str, tensor: Tensor) -> Sample | None:
    """Some whole rows of a tensor with two axes; None of others, of small ones and of those with long rows."""
    if tensor.dim() != 2 or tensor.numel() <= LIMIT or tensor.shape[1] > LIMIT or hasattr(tensor, "to_local"):
        return None
    most = max(4, 4 * LIMIT // tensor.shape[1])
    taken = _sample(path, tensor, lambda each: _rows(each, most))
    if taken is not None:
        taken.rows = taken.size // tensor.shape[1]
    return taken


def row_sample(tensor: Tensor, rows: int, numbers: int, tokens: int) -> Sample | None:
    """Parts of the first rows of a tensor, equal for equal rows; None of one that has none.

    Args:
        tensor: A batch of samples.
        rows: Most rows.
        numbers: Most elements of a row, spread over it.
        tokens: Most elements of a row of integers, the first ones in a row.
    """
    if not _is_plain(tensor) or tensor.dim() < 1 or not tensor.numel() or hasattr(tensor, "to_local"):
        return None
    shape = tuple(tensor.shape)
    count, length = min(rows, shape[0]), tensor.numel() // shape[0]
    in_order = len(shape) == 2 and not tensor.is_floating_point()
    columns = slice(tokens) if in_order else slice(None, None, -(-length // numbers))
    if type(tensor) is Tensor and tensor.device.type == "cpu" and not in_graph_capture(tensor):
        # Each batch of an evaluation comes here, and NumPy takes a quarter of the time of PyTorch for few elements.
        with suppress(RuntimeError, TypeError):  # inside torch.func, or a type that NumPy has not
            part = tensor.detach().numpy()[:count].reshape(count, length)[:, columns].copy()
            dtype = str(tensor.dtype).removeprefix("torch.")
            found = Sample("", shape, dtype, tensor.numel(), part.size, part.reshape(-1).view(np.uint8))
            found.rows = count
            return found
    taken = _sample("", tensor, lambda each: each[:count].reshape(count, length)[:, columns].reshape(-1).clone())
    if taken is not None:
        taken.rows = count
    return taken


def elements(path: str, tensor: Tensor, index: Tensor, shape: tuple[int, ...]) -> Sample | None:
    """The elements of a tensor at some flat positions, as a sample of another shape; None if they cannot be read."""
    return _sample(path, tensor, lambda each: _at(each, index), shape)


def _rows(tensor: Tensor, most: int) -> Tensor:
    return tensor.index_select(0, rows_of(torch.arange, tensor.shape[0], most, device=tensor.device)).reshape(-1)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has one shape and elements that can be read in place."""
    return not (tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested)


def _sample(path: str, tensor: Tensor, take: Callable[[Tensor], Tensor], shape: Any = None) -> Sample | None:
    if not _is_plain(tensor):
        return None
    if in_graph_capture(tensor):
        return None
    try:
        with torch.no_grad():
            taken = take(tensor.detach())
            size = taken.numel()
            if taken.is_complex():
                taken = torch.view_as_real(taken.resolve_conj()).reshape(-1)
            octets = taken.view(torch.uint8)
            # To NumPy at once: for an object that only looks like a tensor (inside torch.func) this raises here.
            copied = octets.numpy() if octets.device.type == "cpu" else DeviceRows(octets)
    except (RuntimeError, NotImplementedError, TypeError, IndexError):
        return None  # inside torch.func, or a user's class of tensor
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Sample(path, tuple(tensor.shape if shape is None else shape), dtype, tensor.numel(), size, copied)


def scattered(tensor: Tensor, limit: int = LIMIT) -> Tensor:
    """A copy of at most ``limit`` elements, at places that depend on their number alone; of a small tensor all.

    Args:
        tensor: A strided tensor.
        limit: Elements of the sample, a multiple of 16.
    """
    total = tensor.numel()
    if total <= limit:
        return tensor.reshape(-1).clone()
    key = (total, limit, tensor.device)
    index = _indices.get(key)
    if index is None:
        if len(_indices) >= _MOST_INDICES:
            _indices.clear()
        # Worked out on its device: nothing is copied there, which would wait.
        index = _indices[key] = positions(torch.arange, total, limit, device=tensor.device)
    return _at(tensor, index)


def _at(tensor: Tensor, index: Tensor) -> Tensor:
    if tensor.is_contiguous():
        return tensor.view(-1).index_select(0, index)
    return tensor[_coordinates(index, tensor.shape)]


def _coordinates(index: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Flat indices by axis. ``torch.unravel_index`` sends the shape to the device, and waits for that."""
    found: list[Tensor] = []
    for size in reversed(shape):
        found.append(index % size)
        index = index // size
    return tuple(reversed(found))
