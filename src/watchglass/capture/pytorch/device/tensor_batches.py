"""Splits the tensors of a call into batches that are read one after another, so that memory is bounded.

Kernels read a tensor's memory from start to end. A tensor with gaps in memory, or with another memory order than its
older values, is copied first. A large one is copied in pieces, whose rows and histograms are merged on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES, DeviceSizes
from watchglass.stats import DTYPE_CODES, Histograms, Rows, merge, merge_histograms

_KNOWN = {getattr(torch, name) for name in DTYPE_CODES if hasattr(torch, name)}


class TensorBatch(NamedTuple):
    """Tensors that are read together."""

    parts: list[tuple[Tensor, Tensor | None]]  #: Tensors with their older values, None for none.
    owners: list[int]  #: For each part the index of its tensor in the call.
    nbytes: int  #: Bytes that :meth:`flat` copies.

    def flat(self) -> tuple[list[Tensor], list[Tensor] | None]:
        """The parts as contiguous tensors of one dimension, and their older values, element by element."""
        found = [readable(tensor, before) for tensor, before in self.parts]
        older = [before.view(-1) for _, before in found if before is not None]
        return [tensor.view(-1) for tensor, _ in found], older or None


def batches(
    tensors: Sequence[Tensor], before: Sequence[Tensor] | None, sizes: DeviceSizes = DEFAULT_SIZES
) -> Iterator[TensorBatch]:
    """The tensors of a call in batches; nothing is copied yet."""
    made = TensorBatch([], [], 0)
    for owner, tensor in enumerate(tensors):
        for part, older, size in _pieces(tensor, None if before is None else before[owner], sizes.copied_bytes):
            full = size and made.nbytes and made.nbytes + size > sizes.copied_bytes
            if full or len(made.parts) == sizes.tensors:
                yield made
                made = TensorBatch([], [], 0)
            made.parts.append((part, older))
            made.owners.append(owner)
            made = made._replace(nbytes=made.nbytes + size)
    yield made


def joined_rows(parts: Sequence[Any], owners: Sequence[int]) -> Rows:
    """Rows of statistics of all batches of a call, float64[n, 11], one for each tensor; waits for the device."""
    rows = np.concatenate([part.resolve() for part in parts])
    return np.stack([_merged(rows, pieces) for pieces in _by_owner(owners)])


def joined_histograms(parts: Sequence[Any], owners: Sequence[int]) -> Histograms:
    """Histograms of all batches of a call, one for each tensor; waits for the device."""
    found = Histograms.concatenate([part.resolve() for part in parts])
    result = []
    for first, *others in _by_owner(owners):
        whole = found.take([first])
        for piece in others:
            whole = merge_histograms(whole, found.take([piece]))
        result.append(whole)
    return Histograms.concatenate(result)


def _merged(rows: Rows, pieces: Iterable[int]) -> Any:
    first, *others = pieces
    row = rows[first]
    for piece in others:
        row = merge(row, rows[piece])
    return row


def _by_owner(owners: Sequence[int]) -> list[list[int]]:
    """The pieces of each tensor, which come one after another."""
    found: list[list[int]] = [[] for _ in range(owners[-1] + 1)]
    for piece, owner in enumerate(owners):
        found[owner].append(piece)
    return found


def _pieces(tensor: Tensor, before: Tensor | None, most_bytes: int) -> Iterator[tuple[Tensor, Tensor | None, int]]:
    """A tensor, or consecutive parts of it, each with the number of bytes to copy."""
    size = _copied_bytes(tensor, before)
    if size <= most_bytes or tensor.numel() < 2:
        yield tensor, before, size
        return
    axis = max(range(tensor.dim()), key=lambda dim: (tensor.shape[dim] > 1, tensor.stride(dim)))
    half = tensor.shape[axis] // 2
    for begin, length in ((0, half), (half, tensor.shape[axis] - half)):
        older = None if before is None else before.narrow(axis, begin, length)
        yield from _pieces(tensor.narrow(axis, begin, length), older, most_bytes)


def _copied_bytes(tensor: Tensor, before: Tensor | None) -> int:
    if tensor.dtype in _KNOWN:
        if tensor.is_contiguous() and (before is None or before.is_contiguous()):
            return 0
        order = memory_order(tensor)
        given = (tensor, before)
        return sum(each.nbytes for each in given if each is not None and not each.permute(order).is_contiguous())
    return tensor.numel() * (8 if tensor.is_complex() else 4) * (1 if before is None else 2)


def readable(tensor: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both with elements in the same order, contiguous, in a dtype that kernels read.

    Copied only if memory has gaps or the two have different orders.
    """
    if tensor.dtype not in _KNOWN:
        dtype = torch.complex64 if tensor.is_complex() else torch.float32
        tensor, before = tensor.to(dtype), None if before is None else before.to(dtype)
    if not tensor.is_contiguous() or not (before is None or before.is_contiguous()):
        order = memory_order(tensor)
        tensor = tensor.permute(order).contiguous()
        before = None if before is None else before.permute(order).contiguous()
    return tensor, before


def memory_order(tensor: Tensor) -> list[int]:
    """Axes in their order in memory. Statistics do not depend on the order of elements, so this saves copies."""
    return sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
