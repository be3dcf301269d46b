"""Transfers of numbers from a device: copied without a wait, received on the recorder's thread."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from watchglass.records import HISTOGRAM_MANTISSA_BITS
from watchglass.stats import Histograms


class Stopwatch(NamedTuple):
    """Notes points of time, and gives the time between them later."""

    note: Callable[[], Any]  #: Returns the present point of time, without a wait; for any thread that trains.
    #: The seconds from each note to the next one, one less than notes. May wait: for the recorder's thread.
    seconds: Callable[[Sequence[Any]], list[float]]
    on_device: bool  #: Whether it measures the time of a device.


_PARTS = 1 << HISTOGRAM_MANTISSA_BITS
_BIAS = 1075
#: Exponent of the smallest and of the greatest number of float32 and of float64.
_NARROW, _WIDE = (-149, 127), (-1074, 1023)
#: Bins for the magnitudes of elements computed in float32, and in float64; there are as many for negative elements.
NARROW_SIDE, WIDE_SIDE = ((last - first + 1) * _PARTS for first, last in (_NARROW, _WIDE))
_NARROW_LEAST, _WIDE_LEAST = ((first + _BIAS) * _PARTS for first, _ in (_NARROW, _WIDE))
#: Device time is measured between two transfers, once in this number of transfers.
_TIMED = 8
#: Modules with the events of a type of device.
_MODULES = {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.mps}


class DeviceRows:
    """A transfer of numbers from a device; the recorder's thread calls :meth:`resolve`, which waits for them.

    Args:
        values: A tensor.
        modules: Modules with the events of a type of device.
    """

    def __init__(self, values: Tensor, modules: Mapping[str, Any] = _MODULES) -> None:
        # Named explicitly, because a script may have changed the default.
        self._host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda)
        self._host.copy_(values, non_blocking=True)
        self._event = _recorded(values.device, modules)

    @property
    def nbytes(self) -> int:
        """Bytes on the host."""
        return self._host.nbytes

    @property
    def here(self) -> bool:
        """Whether the copy was complete when the call returned, as on devices without asynchronous copies."""
        return self._event is None

    @property
    def ready(self) -> bool:
        """Whether the numbers have arrived, so that :meth:`resolve` would not wait."""
        # A query during the capture of a CUDA graph would break the graph.
        known = self._event is not None and not torch.cuda.is_current_stream_capturing()
        return known and bool(self._event.query())

    def resolve(self) -> Any:
        """The numbers as a NumPy array."""
        if self._event is not None:
            _let_graphs_be_captured()
            self._event.synchronize()
        return self._host.numpy()


def on_host(values: Tensor) -> NDArray[Any] | DeviceRows:
    """The numbers of a tensor as a NumPy array of its memory, or a transfer of them from a device."""
    return values.numpy() if values.is_cpu else DeviceRows(values)


class DeviceTime:
    """Measures the device time of watchglass: pairs of events around launches, read when the launches are complete.

    Args:
        report: Gets nanoseconds, on the recorder's thread.
        cuda: Module that creates events and knows the current streams.
    """

    def __init__(self, report: Callable[[int], None], cuda: Any = torch.cuda) -> None:
        self._report = report
        self._cuda = cuda
        self._spans: deque[tuple[Any, Any]] = deque()
        self._turn = 0
        self._worked = False
        self._launched: set[Any] = set()

    @contextmanager
    def span(self, device: torch.device, kernel: Any = None) -> Iterator[None]:
        """Measure launches on the device's current stream, including time in which the device waits for the host.

        Args:
            device: Device of the launches.
            kernel: The launched kernel if its first launch compiles it, because that is no device time.
        """
        self._worked = True
        if device.type != "cuda" or self._turn or (kernel is not None and kernel not in self._launched):
            self._launched.add(kernel)
            yield
            return
        begin, end = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        stream = self._cuda.current_stream(device)
        begin.record(stream)
        yield
        end.record(stream)
        self._spans.append((begin, end))

    def turn(self) -> None:
        """A step has ended, and its launches, if any, were sent."""
        if self._worked:
            self._worked = False
            self._turn = (self._turn + 1) % _TIMED

    def read(self) -> None:
        """Report finished measurements. For the recorder's thread."""
        while self._spans and self._spans[0][1].query():
            begin, end = self._spans.popleft()
            self._report(_TIMED * int(1e6 * begin.elapsed_time(end)))


def stopwatch_of(
    device: torch.device | None, now_ns: Callable[[], int], modules: Mapping[str, Any] = _MODULES
) -> Stopwatch:
    """The clock of what runs on a device: events of its current stream if it has them, else ``now_ns`` of the host."""
    module = modules.get(device.type) if device is not None else None
    if device is None or module is None or device.type == "mps" or not module.is_available():
        return Stopwatch(now_ns, lambda notes: [(later - earlier) / 1e9 for earlier, later in pairwise(notes)], False)

    def record() -> Any:
        event = module.Event(enable_timing=True)
        event.record(module.current_stream(device))
        return event

    def seconds(notes: Sequence[Any]) -> list[float]:
        if notes:
            _let_graphs_be_captured()
            notes[-1].synchronize()
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairwise(notes)]

    return Stopwatch(record, seconds, True)


def histogram_width(wide: bool) -> int:
    """Bins of a tensor whose elements are computed in float64, or in float32."""
    return 2 * (WIDE_SIDE if wide else NARROW_SIDE)


def histograms_from(counts: NDArray[np.int32], widths: NDArray[np.int64], seen: NDArray[Any]) -> Histograms:
    """Histograms from the counts of all bins of one tensor after another.

    Args:
        counts: All bins, int32[sum(widths)]: those of negative numbers and then of positive ones, ascending.
        widths: How many bins each tensor has, int64[n]: :func:`histogram_width`, or none.
        seen: How many elements each examined, [n].
    """
    ends = np.cumsum(widths)
    found = np.flatnonzero(counts)
    owners = np.searchsorted(ends, found, side="right")
    side = (widths // 2)[owners]
    place = found - (ends - widths)[owners] - side
    least = np.where(side == NARROW_SIDE, _NARROW_LEAST, _WIDE_LEAST)
    keys = np.where(place < 0, place + 1 - least, place + least)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(widths)))])
    return Histograms(
        seen.astype(np.uint64), offsets.astype(np.int64), keys.astype(np.int16), counts[found].astype(np.uint64)
    )


def _recorded(device: torch.device, modules: Mapping[str, Any]) -> Any:
    """An event after the pending copies from a device; None for a device with synchronous copies."""
    module = modules.get(device.type)
    if module is None or not (device.type == "mps" or module.is_available()):
        return None
    event = module.Event()
    # The device's own stream: another device may be the current one. MPS has only one stream.
    event.record(*(() if device.type == "mps" else (module.current_stream(device),)))
    return event


_relaxed = threading.local()


def _let_graphs_be_captured() -> None:
    """Let this thread query events while the training thread captures a CUDA graph.

    In CUDA's default mode, a query of an event breaks a capture in another thread. This function sets the relaxed mode
    for its thread, in which a query breaks nothing.
    """
    if torch.version.cuda is None or getattr(_relaxed, "said", False):
        return
    _relaxed.said = True
    with suppress(OSError, AttributeError):
        mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
