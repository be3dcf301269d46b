"""Statistics of PyTorch tensors: on the CPU at once, on a device without waiting for it.

On the CPU the native kernel reads each tensor once. Without it each is reduced by a handful of vectorised passes over
a float64 copy; only where the sum of absolutes is not finite does a second, exact look sort out NaN and infinities.
On a device nothing may be read back in
the training's thread, so the masks are always computed, all rows are stacked, and one asynchronous copy brings them
back (:class:`DeviceRows`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from watchglass.config import environment
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import native

#: Codes of the native kernel by PyTorch's dtype.
_CODES = {getattr(torch, name): code for name, code in native.DTYPE_CODES.items()}
_NAN = float("nan")
_EMPTY = [0.0, 0.0, 0.0, 0.0, 0.0, _NAN, _NAN, 0.0, 0.0, 0.0, 0.0]


class DeviceRows:
    """Numbers on their way from a device; :meth:`resolve` waits for them and is called by the recorder's thread."""

    def __init__(self, values: Tensor) -> None:
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
        self._host.copy_(values, non_blocking=True)
        self._event: Any = None
        if values.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def resolve(self) -> Any:
        """The numbers as a NumPy array."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy()


def plain(tensor: Tensor) -> Tensor | None:
    """A dense, real, strided tensor with the same values, detached; None where the values cannot be read.

    Complex tensors become their magnitudes, a sharded one its local part, a sparse one the values it stores.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.is_meta:
        return None
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_complex():
        tensor = tensor.abs()
    return tensor


def rows(tensors: Sequence[Tensor]) -> Any:
    """One row of :data:`~watchglass.records.STATISTIC_FIELDS` per tensor: an array, or a :class:`DeviceRows`.

    All tensors must have come through :func:`plain` and live on one device.
    """
    if not tensors:
        return np.empty((0, len(STATISTIC_FIELDS)))
    if tensors[0].device.type != "cpu":
        return DeviceRows(torch.stack([_row_on_device(tensor) for tensor in tensors]))
    if native.available and not environment.native_disabled():
        return _native_rows(tensors)
    return np.array([_row_on_cpu(tensor) for tensor in tensors])


def _native_rows(tensors: Sequence[Tensor]) -> Any:
    # Kept until the kernel has returned: a copy made here must not be freed before it is read.
    readable = [_readable(tensor) for tensor in tensors]
    return native.rows(
        [tensor.data_ptr() for tensor in readable],
        [tensor.numel() for tensor in readable],
        [_CODES[tensor.dtype] for tensor in readable],
    )


def _readable(tensor: Tensor) -> Tensor:
    """The tensor itself where the kernel can read it, else a contiguous copy in a dtype that it can."""
    if tensor.dtype not in _CODES:
        tensor = tensor.float()
    return tensor if tensor.is_contiguous() else _dense(tensor)


def _dense(tensor: Tensor) -> Tensor:
    # The order of elements does not matter: a permutation of a dense tensor needs no copy.
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    permuted = tensor.permute(order)
    return permuted if permuted.is_contiguous() else tensor.contiguous()


def inactive_units(tensor: Tensor, unit_axis: int) -> Any:
    """For each unit whether it is exactly zero on every element: a boolean array, or a readback of one."""
    others = [axis for axis in range(tensor.dim()) if axis != unit_axis % tensor.dim()]
    active = torch.count_nonzero(tensor, dim=others) if others else tensor != 0
    inactive = active == 0
    return inactive.numpy() if inactive.device.type == "cpu" else DeviceRows(inactive)


def _row_on_cpu(tensor: Tensor) -> list[float]:
    count = tensor.numel()
    if count == 0:
        return _EMPTY
    # Comparisons and counts are exact in the tensor's own dtype where it has them; sums need float64.
    flat = tensor.reshape(-1)
    wide = flat.to(torch.float64)
    # Through abs().sum(): vector_norm(ord=1) is several times slower.
    numbers = (wide.sum(), wide.abs().sum(), torch.linalg.vector_norm(wide), wide.min(), wide.max())
    total, absolute, norm, low, high = torch.stack(numbers).tolist()
    if not math.isfinite(absolute):
        return _row_with_nonfinite(wide)
    zero = count - int(torch.count_nonzero(wide))
    spread = max(0.0, norm * norm - total * total / count)
    return [count, 0.0, 0.0, 0.0, zero, low, high, total, absolute, spread, norm]


def _row_with_nonfinite(wide: Tensor) -> list[float]:
    finite = wide[torch.isfinite(wide)]
    row = _row_on_cpu(finite) if finite.numel() and math.isfinite(float(finite.abs().sum())) else list(_EMPTY)
    row[0] = wide.numel()
    row[1] = int(torch.isnan(wide).sum())
    row[2] = int((wide == math.inf).sum())
    row[3] = int((wide == -math.inf).sum())
    return row


def _row_on_device(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    # Some devices (MPS) have no float64; their sums are float32.
    wide = flat.to(torch.float32 if flat.device.type == "mps" else torch.float64)
    count = wide.numel()
    if count == 0:
        return torch.tensor(_EMPTY, dtype=wide.dtype, device=wide.device)
    finite = torch.isfinite(wide)
    clean = torch.where(finite, wide, torch.zeros_like(wide))
    number = finite.sum()
    total = clean.sum()
    mean = total / number
    spread = torch.where(finite, wide - mean, torch.zeros_like(wide)).square().sum()
    any_finite = number > 0
    nan = torch.full_like(total, _NAN)
    low = torch.where(any_finite, torch.where(finite, wide, torch.full_like(wide, math.inf)).min(), nan)
    high = torch.where(any_finite, torch.where(finite, wide, torch.full_like(wide, -math.inf)).max(), nan)
    numbers = (
        torch.full_like(total, count), torch.isnan(wide).sum(), (wide == math.inf).sum(), (wide == -math.inf).sum(),
        (wide == 0).sum(), low, high, total, clean.abs().sum(), spread, torch.linalg.vector_norm(clean),
    )  # fmt: skip
    return torch.stack([value.to(wide.dtype) for value in numbers])
