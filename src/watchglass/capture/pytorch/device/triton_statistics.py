"""Statistics on a GPU: one launch for the tensors of each call, and one more per step.

Launches write into memory that is held for a step: rows of shares, bins of histograms. When the step ends, one launch
joins shares to rows and one asynchronous copy takes rows and bins to the host. A launch reads the addresses and sizes
of its tensors from a table on the device. Tensors with the same addresses as in an earlier call use the same table.

Until a :class:`Gathering` is sent, the device holds for each tensor at most 45 kB for rows of shares, and 4.4 kB for
its histogram (33.6 kB where elements are computed in float64); tables of earlier calls take no more than 8 MB. ``sum``
and ``abs_sum`` are off by at most ``2e-6 * abs_sum``, ``l2`` by as much of itself, ``m2`` by ``1e-5`` of itself; where
elements are computed in float64, by as much as the native kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.capture.arrays import DeferredNumbers
from watchglass.capture.pytorch.device import triton_kernels as kernels
from watchglass.capture.pytorch.device.readback import DeviceRows, DeviceTime, histogram_width, histograms_from
from watchglass.capture.pytorch.device.sizes import DeviceSizes, Size
from watchglass.stats import DTYPE_CODES, Histograms, Rows, sample_sizes

_ROW, _RUN, _RUNS, _STRATA, _SAMPLED_ABOVE = (
    int(getattr(kernels, name).value) for name in ("ROW_WIDTH", "RUN", "RUNS", "STRATA", "SAMPLED_ABOVE")
)
_WARPS = 4

#: Types of elements in memory, where the dtype's name differs.
_STORED = {"bfloat16": "uint16", "bool": "uint8", "complex64": "float32", "complex128": "float64"}
_WIDE = {"float64", "int64", "int32", "uint32", "uint64", "complex64", "complex128"}
_NAMES = {getattr(torch, name): name for name in DTYPE_CODES if hasattr(torch, name)}


class _Launch(NamedTuple):
    """One launch: a variant of the kernel, its tensors, and the tensor that each program works for."""

    dtype: str
    difference: bool
    aligned: bool
    table: Tensor
    owners: Tensor


class ReadPlan(NamedTuple):
    """The launches that read the tensors of a call."""

    needed: Size  #: Its need of memory.
    launches: list[_Launch]  #: One for each variant of the kernel.
    elements: NDArray[np.int64]  #: Their number, int64[n].
    widths: NDArray[np.int64]  #: Bins of each, int64[n].
    nbytes: int  #: Bytes that are held on the device.


class ReadPlans:
    """Plans for tensors that were examined before; the oldest plans are dropped first. For the training thread.

    Args:
        hold: Gets the number of additional bytes that are held on the device.
        sizes: Sizes of pieces and of memory.
    """

    def __init__(self, hold: Callable[[int], None], sizes: DeviceSizes) -> None:
        self._hold = hold
        self._sizes = sizes
        self._kept: dict[Any, ReadPlan] = {}
        self._bytes = 0

    def of(self, tensors: Sequence[Tensor], before: Sequence[Tensor] | None, histograms: bool, stream: Any) -> ReadPlan:
        """The plan for contiguous tensors on the device of this stream."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        older = [] if before is None else [tensor.data_ptr() for tensor in before]
        elements = [tensor.numel() for tensor in tensors]
        dtypes = [tensor.dtype for tensor in tensors]
        key = (stream, histograms, *addresses, *older, *elements, *dtypes)
        found = self._kept.get(key)
        if found is None:
            names = [_NAMES[dtype] for dtype in dtypes]
            found = _planned(addresses, older, elements, names, histograms, tensors[0].device, self._sizes)
            self._kept[key] = found
            self._count(found.nbytes)
            while self._bytes > self._sizes.plan_bytes and len(self._kept) > 1:
                # Later work of the same stream may reuse the memory: no launch reads it any longer by then.
                self._count(-self._kept.pop(next(iter(self._kept))).nbytes)
        return found

    def _count(self, size: int) -> None:
        self._bytes += size
        self._hold(size)


class Gathering:
    """Statistics of tensors on one stream of a device, until they are sent to the host together.

    The training thread adds and sends. The recorder's thread receives the numbers, and sends them if the training
    thread has not.

    Args:
        device: Device of the tensors; the CPU where Triton's interpreter replaces a GPU.
        stream: The stream on which the tensors are computed, None on the CPU.
        size: Its capacity.
        time: Measures the launches.
        sizes: Sizes of pieces.
    """

    def __init__(self, device: torch.device, stream: Any, size: Size, time: DeviceTime, sizes: DeviceSizes) -> None:
        self.size, self.used = size, Size(0, 0, 0)
        self._sizes = sizes
        self.sent = False
        self._stream, self._time = stream, time
        self._lock = threading.Lock()
        self._shares = torch.empty(size.shares * _ROW, dtype=torch.float64, device=device)
        self._joins = torch.zeros(size.rows * 2, dtype=torch.int64, device=device)
        # Rows, then bins.
        self._results = torch.zeros(size.rows * _ROW + (size.bins + 1) // 2, dtype=torch.float64, device=device)
        self.nbytes = self._shares.nbytes + self._joins.nbytes + self._results.nbytes
        self._added: list[tuple[ReadPlan, int]] = []
        self._values: DeviceRows | None = None
        self._received: tuple[Rows, Histograms] | None = None

    def fits(self, needed: Size) -> bool:
        """Whether this size can still be added."""
        return not self.sent and all(
            used + more <= size for used, more, size in zip(self.used, needed, self.size, strict=True)
        )

    def add(
        self, plan: ReadPlan, scale: Tensor | float | None, seed: int
    ) -> tuple[DeferredNumbers, DeferredNumbers] | None:
        """Launch the reads of a plan that fits; None if this gathering has been sent in the meantime.

        Args:
            plan: The tensors; they may be freed, and changed, by later work on the same stream.
            scale: Everything is divided by this number.
            seed: Draws the elements for histograms.
        """
        with self._lock:
            if self.sent:
                return None
            divisor = self._results if scale is None else self._divisor(scale)
            rows, shares, bins = self.used
            for launch in plan.launches:
                with self._time.span(self._results.device, (*launch[:3], scale is not None)):
                    self._launch(launch, divisor, scale is not None, seed)
            self._added.append((plan, seed))
            needed = plan.needed
            self.used = Size(rows + needed.rows, shares + needed.shares, bins + needed.bins)
        begin, end = rows, rows + needed.rows
        return DeferredNumbers(lambda: self.received()[0][begin:end]), DeferredNumbers(
            lambda: self._histograms(begin, end)
        )

    def send(self) -> None:
        """Join the shares and send everything to the host."""
        with self._lock:
            self._send()

    def received(self) -> tuple[Rows, Histograms]:
        """Everything that was added; waits for it."""
        if self._received is None:
            with self._lock:
                self._send()
            if self._values is None:
                raise RuntimeError("statistics were computed on a device that failed before they were sent")
            values = self._values.resolve()
            self._time.read()
            first = self.size.rows * _ROW
            widths = np.concatenate([plan.widths for plan, _ in self._added])
            seen = np.concatenate([sample_sizes(plan.elements, seed) for plan, seed in self._added])
            histograms = histograms_from(values[first:].view(np.int32)[: self.used.bins], widths, seen)
            self._received = values[: self.used.rows * _ROW].reshape(-1, _ROW), histograms
        return self._received

    def _histograms(self, begin: int, end: int) -> Histograms:
        found = self.received()[1]
        offsets = found.offsets[begin : end + 1]
        entries = slice(offsets[0], offsets[-1])
        return Histograms(found.seen[begin:end], offsets - offsets[0], found.keys[entries], found.counts[entries])

    def _launch(self, launch: _Launch, divisor: Tensor, scaled: bool, seed: int) -> None:
        wide = launch.dtype in _WIDE
        counts = self._results[self.size.rows * _ROW :].view(torch.int32)
        kernels.summarise[(len(launch.owners),)](
            launch.table, launch.owners, self._shares, self._joins, counts, divisor,
            self.used.shares, self.used.rows, self.used.bins, seed & 0x7FFFFFFF,
            STORED=_stored(launch.dtype), KIND=_kind(launch.dtype), WIDE=wide, DIFFERENCE=launch.difference,
            SCALED=scaled, ALIGNED=launch.aligned, TILE=self._sizes.wide_tile if wide else self._sizes.tile,
            num_warps=_WARPS, enable_fp_fusion=False,
        )  # fmt: skip

    def _divisor(self, scale: Tensor | float) -> Tensor:
        device = self._results.device
        if not isinstance(scale, Tensor):
            return torch.full((1,), scale, dtype=torch.float64, device=device)
        return scale.detach().reshape(1).to(device, torch.float64, non_blocking=True)

    def _send(self) -> None:
        if self.sent:
            return
        self.sent = True
        used = self.size.rows * _ROW + (self.used.bins + 1) // 2
        with torch.cuda.stream(self._stream):
            with self._time.span(self._results.device):
                _join(self._shares, self._joins, self._results, self.used.rows, self._sizes)
            self._values = DeviceRows(self._results[:used])
        # The next use of this memory on this stream comes after the copy.
        del self._shares, self._joins, self._results


def prepare(device: torch.device, sizes: DeviceSizes) -> None:
    """Compile the kernels for sending, so that a failure is raised here and not when sending."""
    nothing = torch.zeros(2 * _ROW, dtype=torch.float64, device=device)
    _join(nothing, nothing.view(torch.int64), nothing, 1, sizes)


def _join(shares: Tensor, joins: Tensor, rows: Tensor, number: int, sizes: DeviceSizes) -> None:
    if number:
        kernels.join[(number,)](shares, joins, rows, SHARES=sizes.shares, num_warps=_WARPS, enable_fp_fusion=False)


def _planned(
    addresses: list[int], older: list[int], elements: list[int], names: list[str], histograms: bool,
    device: torch.device, sizes: DeviceSizes,
) -> ReadPlan:  # fmt: skip
    count = np.array(elements, np.int64)
    wide = np.array([name in _WIDE for name in names])
    widths = np.where(wide, histogram_width(True), histogram_width(False)) * histograms
    first_bin = np.cumsum(widths) - widths
    variants: dict[tuple[str, bool], list[int]] = {}
    for index, name in enumerate(names):
        aligned = addresses[index] % 16 == 0 and (not older or older[index] % 16 == 0)
        variants.setdefault((name, aligned), []).append(index)
    launches = []
    shares_before = nbytes = 0
    for (name, aligned), members in variants.items():
        size = count[members]
        tile = sizes.wide_tile if name in _WIDE else sizes.tile
        share = np.maximum(1, -(-size // (tile * sizes.shares))) * tile
        shares = np.maximum(1, -(-size // share))
        programs = shares + (_looking(size) if histograms else 0)
        table = np.stack([
            np.array(addresses, np.int64)[members], np.array(older or addresses, np.int64)[members], size,
            np.cumsum(programs) - programs, shares, share, shares_before + np.cumsum(shares) - shares,
            np.array(members, np.int64), first_bin[members],
        ], axis=1)  # fmt: skip
        owners = np.repeat(np.arange(len(members), dtype=np.int32), programs)
        launches.append(_Launch(name, bool(older), aligned, _there(table, device), _there(owners, device)))
        shares_before += int(shares.sum())
        nbytes += table.nbytes + owners.nbytes
    return ReadPlan(Size(len(count), shares_before, int(widths.sum())), launches, count, widths, nbytes)


def _looking(size: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of programs that count these elements into a histogram."""
    runs = -(-size // _RUN)
    strata = np.where(size > _SAMPLED_ABOVE, -(-runs // np.maximum(runs // _STRATA, 1)), runs)
    return np.asarray(-(-strata // _RUNS))


def _there(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device."""
    host = torch.from_numpy(array)
    # The allocator of pinned memory reuses it only after the copy.
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def _stored(name: str) -> str:
    return "uint8" if name.startswith("float8") else _STORED.get(name, name)


def _kind(name: str) -> str:
    if name.startswith("complex"):
        return "complex"
    return name if name.startswith("float8") or name == "bfloat16" else "plain"
