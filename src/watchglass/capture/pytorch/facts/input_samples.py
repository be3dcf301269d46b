"""Bounded copies of tensors, by the positions of :mod:`~watchglass.capture.facts.input_sketches`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import NUMPY, Arrays
from watchglass.capture.facts.input_sketches import Sample, table_positions
from watchglass.capture.pytorch.compiled.graphs import in_graph_capture
from watchglass.capture.pytorch.saving.reduce import PyTorchArrays, in_numpy

_TENSORS = PyTorchArrays()
#: Errors of tensors without readable elements: inside torch.func, or of a class that a user wrote.
_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, IndexError)


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
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError("no elements in place")
    if in_graph_capture(tensor):
        raise TypeError("not now")
    # Each batch of an evaluation comes here, and NumPy takes a quarter of the time of PyTorch for few elements.
    tensor = tensor.detach()
    return (NUMPY, tensor.numpy()) if in_numpy(tensor) else (_TENSORS, tensor)
