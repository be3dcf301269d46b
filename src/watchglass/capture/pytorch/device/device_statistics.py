"""Statistics of tensors on a device, copied back without a wait.

The training thread never waits for a device. Asynchronous copies bring results to the host, and the recorder's thread
waits for them. On a GPU with Triton, the results of a step are gathered and copied together (``triton_statistics``);
elsewhere PyTorch's operators compute them (``torch_statistics``). Counts, minima, maxima and histograms equal those of
the native kernel, bit for bit; sums differ in their rounding.

Memory on a device is bounded for tensors of any size, and counted: copies of tensors that cannot be read in place take
at most 16 MiB. With Triton, tables take 8 MB and the gathering of a stream 41 MB. Without it a call takes 42 MB, plus
little for its results.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from watchglass.capture.arrays import DeferredNumbers, Read
from watchglass.capture.planning.cost import Memory
from watchglass.capture.pytorch.device import torch_statistics
from watchglass.capture.pytorch.device.readback import DeviceTime
from watchglass.capture.pytorch.device.sizes import DEFAULT_SIZES, DeviceSizes, Size
from watchglass.capture.pytorch.device.tensor_batches import batches, joined_histograms, joined_rows
from watchglass.capture.saving.saving import is_out_of_memory

if TYPE_CHECKING:
    from watchglass.capture.pytorch.device.triton_statistics import Gathering, ReadPlan, ReadPlans

_log = logging.getLogger("watchglass")


class Account(Protocol):
    """Adds up costs: :class:`watchglass.capture.planning.cost.Cost`."""

    memory: Memory
    device_ns: int


def _triton_on(device: torch.device) -> Any:
    if device.type != "cuda":
        return None
    # Imported late: it is large, and most machines without a GPU have no Triton.
    from watchglass.capture.pytorch.device import triton_statistics

    return triton_statistics


class DeviceStatistics:
    """Statistics of tensors on all devices. For the training thread; its results are for the recorder's thread.

    Args:
        account: Adds up device memory and device time.
        sizes: Sizes of pieces and of memory.
        triton: Returns the module that computes with Triton on a device, None for a device without Triton.
        timer: Makes the object that measures device time.
    """

    def __init__(
        self, account: Account, sizes: DeviceSizes = DEFAULT_SIZES, triton: Callable[[torch.device], Any] = _triton_on,
        timer: Callable[[Callable[[int], None]], DeviceTime] = DeviceTime,
    ) -> None:  # fmt: skip
        self._account = account
        self._sizes = sizes
        self._time = timer(self._spent)
        self._triton_on = triton
        self._open: dict[Any, Gathering] = {}
        self._gathering_sizes: dict[Any, Size] = {}
        self._plans: dict[torch.device, ReadPlans] = {}
        self._failed = False

    def summaries(
        self, tensors: Sequence[Tensor], before: Sequence[Tensor] | None = None, scale: Tensor | float | None = None,
        *, histograms: bool = True, seed: int = 0,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Readbacks of rows of statistics and of histograms (or None) of tensors on one device.

        Arguments are those of :func:`watchglass.capture.pytorch.saving.reduce.summaries`.
        """
        parts: list[tuple[Any, Any]] = []
        owners: list[int] = []
        name = str(tensors[0].device)
        for batch in batches(tensors, before, self._sizes):
            self._account.memory.hold(name, batch.nbytes)
            try:
                parts.append(self._together(Read(*batch.flat(), scale, histograms, seed)))
            finally:
                self._account.memory.hold(name, -batch.nbytes)
            owners += batch.owners
        if len(parts) == 1 and len(owners) == len(tensors):
            return parts[0]
        rows, binned = zip(*parts, strict=True)
        joined = DeferredNumbers(functools.partial(joined_histograms, binned, owners)) if histograms else None
        return DeferredNumbers(functools.partial(joined_rows, rows, owners)), joined

    def send(self) -> None:
        """Send the gathered numbers to the host, as a step ends; never raises."""
        for key in list(self._open):
            self._close(key)
        self._time.turn()

    def _together(self, read: Read) -> tuple[Any, Any]:
        """As :meth:`summaries`, for contiguous tensors of one dimension."""
        device = read.arrays[0].device
        if not self._failed:
            try:
                triton = self._triton_on(device)
                if triton is not None:
                    return self._gathered(read, device, triton)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._give_up(device, error)
        held = torch_statistics.peak_bytes(read.arrays, histograms=read.histograms, sizes=self._sizes)
        self._account.memory.hold(str(device), held)
        try:
            return torch_statistics.summaries(
                *read[:3], histograms=read.histograms, seed=read.seed, time=self._time, sizes=self._sizes
            )
        finally:
            self._account.memory.hold(str(device), -held)

    def _gathered(self, read: Read, device: torch.device, triton: Any) -> tuple[Any, Any]:
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        plans = self._plans.get(device)
        with torch.cuda.device(device if stream else -1):
            if plans is None:
                triton.prepare(device, self._sizes)
                plans = self._plans[device] = triton.ReadPlans(self._holder(device), self._sizes)
            plan = plans.of(read.arrays, read.before, read.histograms, stream)
            while (found := self._gathering((device, stream), plan, triton).add(plan, read.scale, read.seed)) is None:
                pass
        return found[0], found[1] if read.histograms else None

    def _gathering(self, key: Any, plan: ReadPlan, triton: Any) -> Gathering:
        """The gathering of a stream, with space for the plan."""
        gathering = self._open.get(key)
        if gathering is not None and gathering.fits(plan.needed):
            return gathering
        size = self._gathering_sizes.get(key, self._sizes.new_gathering)
        if gathering is not None:
            if not gathering.sent:
                most = self._sizes.full_gathering
                size = Size(*(min(2 * part, limit) for part, limit in zip(size, most, strict=True)))
            self._close(key)
        self._gathering_sizes[key] = size
        size = Size(*map(max, size, plan.needed))
        # Rows begin and end where bins may: at a multiple of 16 bytes.
        size = size._replace(rows=-(-size.rows // 2) * 2)
        made: Gathering = triton.Gathering(*key, size, self._time, self._sizes)
        self._open[key] = made
        self._account.memory.hold(str(key[0]), made.nbytes)
        return made

    def _close(self, key: Any) -> None:
        gathering = self._open.pop(key)
        self._account.memory.hold(str(key[0]), -gathering.nbytes)
        try:
            gathering.send()
        except Exception as error:
            self._give_up(key[0], error)

    def _give_up(self, device: torch.device, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            reason = (str(error).splitlines() or [""])[0]
            _log.warning(
                "watchglass: statistics on %s are computed without Triton, which is slower: %s: %s",
                device,
                type(error).__name__,
                reason,
            )

    def _holder(self, device: torch.device) -> Callable[[int], None]:
        name, memory = str(device), self._account.memory
        return lambda size: memory.hold(name, size)

    def _spent(self, nanoseconds: int) -> None:
        with suppress(ReferenceError):  # the run is over
            self._account.device_ns += nanoseconds
