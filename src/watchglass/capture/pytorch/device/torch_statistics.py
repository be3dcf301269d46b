"""Statistics on any device by PyTorch's operators, for devices without Triton.

Elements are copied into memory of a fixed size, one block to a row, and reduced there in place, in float64. The rows of
blocks are joined on the host. So a call takes at most 42 MB on the device, for tensors of any size. Until they are
sent, results take 176 bytes for every 16,384 elements and 4.4 kB for every histogram (33.6 kB where elements are
computed in float64). The same elements give the same bits. No operation depends on values, so none waits for them.

Of n elements ``sum`` and ``abs_sum`` are off by at most ``(n / 65536 + 17000) * 2**-53 * abs_sum``, ``l2`` by as much
of itself, in any order in which PyTorch adds up a block; ``m2`` by ``1e-10 * m2 + 1e-17 * l2**2``. On devices without
float64 (MPS) sums are of float32, and numbers that are computed in float64 elsewhere are rounded to it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.pytorch.device.readback import (
    NARROW_SIDE,
    WIDE_SIDE,
    DeviceRows,
    DeviceTime,
    histogram_width,
    histograms_from,
)
from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES, DeviceSizes
from watchglass.records import HISTOGRAM_MANTISSA_BITS, STATISTIC_FIELDS
from watchglass.stats import Histograms, Rows, empty, sample_sizes

#: Bytes for each element of a block: the element, two operands and their results.
_BYTES = 40
#: As in :mod:`watchglass.stats.elements`.
_SAMPLED_ABOVE, _RUN, _STRATA = 1 << 16, 16, 1 << 10
#: Number of elements whose bins are computed in one call.
_TOGETHER = 1 << 19
_PARTS = 1 << HISTOGRAM_MANTISSA_BITS
_WIDE = {
    getattr(torch, name)
    for name in ("float64", "int64", "int32", "uint32", "uint64", "complex64", "complex128")
    if hasattr(torch, name)
}
#: Dtypes that few operators of PyTorch support.
_AWKWARD = {getattr(torch, name) for name in ("bool", "uint16", "uint32", "uint64") if hasattr(torch, name)}
_COUNT, _NAN, _POSITIVE, _NEGATIVE, _ZERO = map(STATISTIC_FIELDS.index, ("count", "nan", "posinf", "neginf", "zero"))
_MIN, _MAX, _SUM, _ABS_SUM = map(STATISTIC_FIELDS.index, ("min", "max", "sum", "abs_sum"))
_M2, _L2 = map(STATISTIC_FIELDS.index, ("m2", "l2"))


def summaries(
    tensors: Sequence[Tensor], before: Sequence[Tensor] | None, scale: Tensor | float | None, *, histograms: bool,
    seed: int, time: DeviceTime, sizes: DeviceSizes = DEFAULT_SIZES,
) -> tuple[DeferredNumbers, DeferredNumbers | None]:  # fmt: skip
    """Readbacks of rows of statistics and of histograms of tensors on one device; see :func:`reduce.summaries`.

    Args:
        tensors: Contiguous, of one dimension.
        before: Older values that are subtracted; also contiguous, of one dimension.
        scale: All elements are divided by this number.
        histograms: Whether to compute histograms.
        seed: Chooses the elements for histograms.
        time: Measures device time.
        sizes: Sizes of blocks.
    """
    elements = [tensor.numel() for tensor in tensors]
    pairs = [(tensor, None if before is None else before[index]) for index, tensor in enumerate(tensors)]
    with time.span(tensors[0].device):
        blocks = DeviceRows(torch.cat(list(_blocks(pairs, scale, sizes))))
        rows = DeferredNumbers(functools.partial(_received, blocks, elements, time, sizes.block))
        if not histograms:
            return rows, None
        widths = [_width(tensor) for tensor in tensors]
        counts = DeviceRows(_counts(pairs, scale, widths, seed))
    return rows, DeferredNumbers(functools.partial(_binned, counts, widths, elements, seed))


def _received(values: DeviceRows, elements: Sequence[int], time: DeviceTime, block: int) -> Rows:
    """Rows of statistics, float64[n, 11], of rows of blocks; waits for the device."""
    rows = np.asarray(values.resolve(), np.float64)
    time.read()
    size = np.array(elements, np.int64)
    blocks = np.maximum(1, -(-size // block))
    starts = np.cumsum(blocks) - blocks
    within = np.arange(len(rows)) - np.repeat(starts, blocks)
    rows[:, _COUNT] = np.clip(np.repeat(size, blocks) - within * block, 0, block)
    # Blocks are filled up with NaN, so the device counts finite elements in this column.
    finite = rows[:, _NAN].copy()
    rows[:, _NAN] = rows[:, _COUNT] - finite - rows[:, _POSITIVE] - rows[:, _NEGATIVE]
    return _joined(rows, finite, starts, blocks)


def _binned(counts: DeviceRows, widths: Sequence[int], elements: Sequence[int], seed: int) -> Histograms:
    """Histograms, of counts of all bins; waits for the device."""
    seen = sample_sizes(np.array(elements, np.int64), seed)
    return histograms_from(counts.resolve(), np.array(widths, np.int64), seen)


def peak_bytes(tensors: Sequence[Tensor], *, histograms: bool = True, sizes: DeviceSizes = DEFAULT_SIZES) -> int:
    """Upper bound of the bytes that :func:`summaries` holds on the device."""
    blocks = sum(max(1, -(-tensor.numel() // sizes.block)) for tensor in tensors)
    bins = sum(_width(tensor) for tensor in tensors) if histograms else 0
    return min(blocks, sizes.blocks) * sizes.block * _BYTES + 2 * blocks * len(STATISTIC_FIELDS) * 8 + 4 * bins


def _width(tensor: Tensor) -> int:
    """Bins of a tensor."""
    return histogram_width(_dtype(tensor) is torch.float64)


def _blocks(
    pairs: Sequence[tuple[Tensor, Tensor | None]], scale: Tensor | float | None, sizes: DeviceSizes
) -> Iterator[Tensor]:
    """The results of :func:`_reduced` for all blocks of all tensors, in order; an empty tensor has one."""
    block = sizes.block
    total = sum(max(1, -(-tensor.numel() // block)) for tensor, _ in pairs)
    device = pairs[0][0].device
    extreme = any(tensor.dtype in (torch.float64, torch.complex128) for tensor, _ in pairs)
    work = torch.empty((min(total, sizes.blocks), block), dtype=_accumulator(device), device=device).fill_(math.nan)
    used = 0
    for tensor, older in pairs:
        begin, size = 0, tensor.numel()
        while begin == 0 or begin < size:
            end = min(size, begin + (len(work) - used) * block)
            part = slice(begin, end)
            work.view(-1)[used * block : used * block + end - begin].copy_(
                _numbers(tensor[part], None if older is None else older[part], scale)
            )
            used += max(1, -(-(end - begin) // block))
            if used == len(work):
                yield _reduced(work, extreme)
                work.fill_(math.nan)
                used = 0
            if end == begin:
                break
            begin = end
    if used:
        yield _reduced(work[:used], extreme)


def _reduced(work: Tensor, extreme: bool) -> Tensor:
    """Columns of statistics for each row, [n, 11]: the NaN column counts finite elements, the count column is empty."""
    bad = (work > -math.inf).logical_and_(work < math.inf).logical_not_()
    finite = work.shape[1] - bad.sum(1)
    counted = [finite, (work == math.inf).sum(1), (work == -math.inf).sum(1)]
    low = work.masked_fill_(bad, math.inf).amin(1)
    high = work.masked_fill_(bad, -math.inf).amax(1)
    counted.append((work.masked_fill_(bad, 0) == 0).sum(1) - (work.shape[1] - finite))
    largest = torch.ones_like(low)
    if extreme:
        # Squares of float64 may overflow or vanish.
        largest = torch.where(finite > 0, torch.maximum(low.abs(), high.abs()), largest)
        largest = torch.where(largest > 0, largest, torch.ones_like(largest))
        work.div_(largest[:, None])
    total = work.sum(1)
    absolute, norm = torch.linalg.vector_norm(work, 1, dim=1), torch.linalg.vector_norm(work, dim=1)
    work.sub_((total / finite.clamp(min=1))[:, None]).masked_fill_(bad, 0)
    spread = torch.linalg.vector_norm(work, dim=1) * largest
    columns = [torch.zeros_like(low), *counted, low, high, total * largest, absolute * largest, spread * spread,
               norm * largest]  # fmt: skip
    return torch.stack([column.to(work.dtype) for column in columns], dim=1)


def _joined(rows: Rows, finite: NDArray[np.float64], starts: NDArray[np.int64], blocks: NDArray[np.int64]) -> Rows:
    """Consecutive rows of blocks joined to one row for each tensor, by exact counts and Chan's formula."""
    result = empty(len(starts))
    for column in (_COUNT, _NAN, _POSITIVE, _NEGATIVE, _ZERO, _SUM, _ABS_SUM):
        result[:, column] = np.add.reduceat(rows[:, column], starts)
    number = np.add.reduceat(finite, starts)
    some = finite > 0
    with np.errstate(invalid="ignore", over="ignore"):
        low = np.minimum.reduceat(np.where(some, rows[:, _MIN], np.inf), starts)
        high = np.maximum.reduceat(np.where(some, rows[:, _MAX], -np.inf), starts)
        mean = np.repeat(result[:, _SUM] / np.maximum(number, 1), blocks)
        gap = np.where(some, rows[:, _SUM] / np.maximum(finite, 1) - mean, 0.0)
        gap[np.isnan(gap)] = np.inf  # where sums of float64 overflow, so does the spread
        result[:, _M2] = np.add.reduceat(rows[:, _M2] + np.where(some, gap * gap * finite, 0.0), starts)
        largest = np.maximum.reduceat(rows[:, _L2], starts)
        divisor = np.where((largest > 0) & (largest < np.inf), largest, 1.0)
        squares = np.add.reduceat(np.square(rows[:, _L2] / np.repeat(divisor, blocks)), starts)
        result[:, _L2] = np.where(largest < np.inf, divisor * np.sqrt(squares), largest)
    result[:, _MIN] = np.where(number > 0, low, np.nan)
    result[:, _MAX] = np.where(number > 0, high, np.nan)
    return result


def _numbers(tensor: Tensor, older: Tensor | None, scale: Tensor | float | None) -> Tensor:
    """Elements as :func:`watchglass.stats.numbers` computes them; unchanged if there is nothing to compute."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.to(torch.complex128))
        # Part by part: PyTorch subtracts complex numbers by way of a product, which makes NaN of infinities.
        tensor = _magnitudes(parts if older is None else parts - torch.view_as_real(older.to(torch.complex128)))
    elif older is not None:
        tensor = tensor.to(_dtype(tensor)) - older.to(_dtype(tensor))
    if scale is not None:
        tensor = tensor.to(_dtype(tensor))
        tensor = tensor / _divisor(scale, tensor)
    return tensor


def _divisor(scale: Tensor | float, tensor: Tensor) -> Tensor | float:
    """The scale on the tensor's device: CUDA multiplies by the rounded inverse of a number that the host holds."""
    if isinstance(scale, Tensor) and not scale.is_cpu:
        return scale.detach().reshape(()).to(tensor.device, non_blocking=True)
    return scale if tensor.is_cpu else torch.full((), float(scale), dtype=tensor.dtype, device=tensor.device)


def _magnitudes(parts: Tensor) -> Tensor:
    """Magnitudes of complex numbers, given as two parts in the last axis."""
    parts = parts.abs()
    larger, smaller = parts.amax(-1), parts.amin(-1)
    ratio = torch.where(larger > 0, smaller / larger, larger)
    result = larger * (1 + ratio * ratio).sqrt()
    return result.masked_fill_((parts == math.inf).any(-1), math.inf)


def _counts(
    pairs: Sequence[tuple[Tensor, Tensor | None]], scale: Tensor | float | None, widths: list[int], seed: int
) -> Tensor:
    """How many elements fall into each bin of each tensor, int32[sum(widths)]."""
    device = pairs[0][0].device
    counts = torch.zeros(sum(widths), dtype=torch.int32, device=device)
    drawn = _mixed(seed, device) if any(tensor.numel() > _SAMPLED_ABOVE for tensor, _ in pairs) else counts
    sizes = sample_sizes(np.array([tensor.numel() for tensor, _ in pairs], np.int64), seed)
    waiting: dict[int, list[tuple[Tensor, int]]] = {}
    first = 0
    for (tensor, older), width, size in zip(pairs, widths, sizes, strict=True):
        index = _sampled(tensor.numel(), int(size), drawn)
        values = _numbers(_at(tensor, index), None if older is None else _at(older, index), scale)
        together = waiting.setdefault(width, [])
        together.append((values.to(torch.float64 if width == 2 * WIDE_SIDE else torch.float32), first))
        if sum(sample.numel() for sample, _ in together) > _TOGETHER:
            _count(counts, waiting.pop(width), width // 2)
        first += width
    for width, together in waiting.items():
        _count(counts, together, width // 2)
    return counts


def _count(counts: Tensor, samples: list[tuple[Tensor, int]], side: int) -> None:
    """Count elements of samples into bins, each sample at its offset; zeros and non-finite elements do not count."""
    values = torch.cat([sample for sample, _ in samples])
    fraction, exponent = torch.frexp(values)  # 0.5 <= |fraction| < 1
    part = ((2 * fraction.abs() - 1) * _PARTS).to(torch.int64)
    least = -149 if side == NARROW_SIDE else -1074
    place = ((exponent.to(torch.int64) - 1 - least) * _PARTS + part).clamp_(0, side - 1)
    bins = torch.where(fraction < 0, side - 1 - place, side + place)
    begin = 0
    for sample, first in samples:
        bins[begin : begin + sample.numel()].add_(first)
        begin += sample.numel()
    counts.scatter_add_(0, bins, ((values.abs() < math.inf) & (values != 0)).to(torch.int32))


def _sampled(size: int, number: int, drawn: Tensor) -> Tensor | None:
    """The ``number`` indices that :func:`watchglass.stats.sample` gives, on the device; None for all."""
    if size <= _SAMPLED_ABOVE:
        return None
    runs = -(-size // _RUN)
    stratum = runs // _STRATA
    strata = torch.arange(-(-runs // stratum), device=drawn.device)
    chosen = strata * stratum + ((drawn[: len(strata)] * stratum) >> 32)
    return (chosen[:, None] * _RUN + torch.arange(_RUN, device=drawn.device)).view(-1)[:number]


def _at(tensor: Tensor, index: Tensor | None) -> Tensor:
    """Elements at these places."""
    if index is None:
        return tensor
    if tensor.dtype in _AWKWARD or tensor.dtype.itemsize == 1:
        tensor = tensor.to(_dtype(tensor))
    return tensor[index]


def _mixed(seed: int, device: torch.device) -> Tensor:
    """32 pseudo-random bits for each stratum (splitmix64), int64[2 * _STRATA]."""
    z = _signed(seed) + torch.arange(1, 2 * _STRATA + 1, device=device) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(z ^ _shifted(z, 31), 32)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Logical right shift: the bits count as an unsigned number."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits


def _dtype(tensor: Tensor) -> torch.dtype:
    """The dtype in which a tensor's elements are computed."""
    return _accumulator(tensor.device) if tensor.dtype in _WIDE else torch.float32


def _accumulator(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
