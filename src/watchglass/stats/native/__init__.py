"""The native kernel: statistics and histograms of tensors in one pass, called with pointers, counts and dtypes.

A small C library in the folder of this file, built with the package, loaded with ctypes; the call releases the
interpreter lock. If no compiler was found, the library is missing and :data:`available` is False. The same functions
then use NumPy, which is slower: counts, minima, maxima and histograms have the same bits, sums differ in their
rounding.

What is computed of each element is defined by :func:`watchglass.stats.elements.numbers`: float32 and narrower dtypes
are read as float32, others as float64; sums are of float64. Of n elements

* ``sum`` and ``abs_sum`` are off by at most ``(n / 65536 + 200) * 2**-53 * abs_sum``, ``l2`` by as much of itself;
* ``m2`` is off by at most ``1e-10 * m2 + 1e-17 * l2**2``.

(Twelve times as much where float64 values are beyond 1e140 or all below 1e-140.) Results are the same bits on every
processor, with any number of threads, in every run.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import pure
from watchglass.stats.elements import DTYPE_CODES, float8_table
from watchglass.stats.histograms import Histograms

__all__ = ["DTYPE_CODES", "available", "set_threads", "summaries"]

#: Constants that this module and the library share.
_VERSION = 2
_WIDTH = len(STATISTIC_FIELDS)
_DONE, _NO_MEMORY, _UNKNOWN_DTYPE, _TOO_SMALL = range(4)


def _load() -> Any:
    library: Any
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("libsummaries.so")))
        library.watchglass_native_version.restype = ctypes.c_int64
        if library.watchglass_native_version() != _VERSION:
            return None
        for name in ("summaries", "setup", "limit", "threads_started"):
            getattr(library, f"watchglass_{name}").restype = ctypes.c_int64
    except (OSError, AttributeError):
        return None
    library.watchglass_summaries.argtypes = [ctypes.c_void_p]
    library.watchglass_limit.argtypes = [ctypes.c_int64]
    library.watchglass_setup.argtypes = [ctypes.c_void_p]
    table = float8_table()
    library.table_bytes = library.watchglass_setup(table.ctypes.data)
    return library


_library = _load()
_threads = 1

#: Whether the library was found.
available = _library is not None


class _Request(ctypes.Structure):
    """A request to the library and the places of its results: ``request_t`` in summaries.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("data", "before", "counts", "codes")),
        *((name, ctypes.c_int64) for name in ("n", "scaled", "binned", "threads")),
        ("scale", ctypes.c_double),
        ("seed", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("rows", "seen", "offsets")),
        ("capacity", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("keys", "counted", "table")),
    )


class _Workspace(threading.local):
    """Memory that a thread's calls pass to the library and take results from; grows, and is kept for the next call."""

    def __init__(self) -> None:
        self.request = _Request()
        # Zero between calls: the library clears what it has used.
        self.table = np.zeros(_library.table_bytes, np.uint8)
        self.request.table = self.table.ctypes.data
        self.address = ctypes.addressof(self.request)
        self.tensors = -1
        self.grow(64)
        self.grow_bins(0)

    def grow(self, tensors: int) -> None:
        """Make room for at least this number of tensors."""
        self.tensors = tensors
        # Pointers, older pointers, counts and codes of all tensors, one after another.
        asked = np.zeros((4, tensors), np.int64)
        self.asked = [memoryview(row) for row in asked]  # type: ignore[arg-type]
        self.rows = np.zeros((tensors, _WIDTH))
        self.seen = np.zeros(tensors, np.uint64)
        self.offsets = np.zeros(tensors + 1, np.int64)
        self.addresses = [int(row.ctypes.data) for row in asked]
        self.request.data, _, self.request.counts, self.request.codes = self.addresses
        for name in ("rows", "seen", "offsets"):
            setattr(self.request, name, getattr(self, name).ctypes.data)

    def grow_bins(self, capacity: int) -> None:
        """Make room for at least this number of bins."""
        self.keys = np.empty(capacity, np.int16)
        self.counted = np.empty(capacity, np.uint32)
        self.request.keys, self.request.counted = self.keys.ctypes.data, self.counted.ctypes.data
        self.request.capacity = capacity

    def histograms(self, number: int) -> Histograms:
        """A copy of the results of the last call."""
        offsets = self.offsets[: number + 1].copy()
        total = offsets[-1]
        return Histograms(
            self.seen[:number].copy(), offsets, self.keys[:total].copy(), self.counted[:total].astype(np.uint64)
        )


_workspace = _Workspace() if available else None


def set_threads(number: int) -> int:
    """Limit the threads, including the caller's, from the next call on; returns the limit before, 1 at first.

    They are started by the first call that has enough to do, sleep between calls, and are not used in forked children.
    """
    global _threads
    before, _threads = _threads, max(1, number)
    return before


def summaries(
    pointers: Sequence[int], counts: Sequence[int], codes: Sequence[int], *, before: Sequence[int] | None = None,
    scale: float | None = None, histograms: bool = True, seed: int = 0,
) -> tuple[NDArray[np.float64], Histograms | None]:  # fmt: skip
    """One row of statistics and one histogram for each contiguous tensor: float64[n, 11], :class:`Histograms` or None.

    Args:
        pointers: Addresses of the first elements; the caller keeps the memory alive and unchanged during the call.
        counts: Numbers of elements.
        codes: Dtypes, as in :data:`DTYPE_CODES`.
        before: Addresses of older values of the same dtypes; then everything is of the differences, elements less
            before.
        scale: Everything is of the elements (or differences) divided by this number.
        histograms: Whether to make them.
        seed: Draws which elements the histogram of a tensor of more than 65,536 elements looks at.

    Raises:
        ValueError: The sequences differ in length, or a code is not one of :data:`DTYPE_CODES`.
        MemoryError: There is none.
    """
    number = len(pointers)
    if not number == len(counts) == len(codes) or (before is not None and len(before) != number):
        older = "" if before is None else f", {len(before)} older pointers"
        raise ValueError(
            f"{number} pointers{older}, {len(counts)} counts and {len(codes)} codes do not belong together"
        )
    space = _workspace
    if space is None:
        return pure.summaries(pointers, counts, codes, before=before, scale=scale, histograms=histograms, seed=seed)
    if number > space.tensors:
        space.grow(2 * number)
    # Packed: an array takes numbers out of a list several times slower.
    whole = f"{number}q"
    struct.pack_into(whole, space.asked[0], 0, *pointers)
    struct.pack_into(whole, space.asked[2], 0, *counts)
    struct.pack_into(whole, space.asked[3], 0, *codes)
    if before is not None:
        struct.pack_into(whole, space.asked[1], 0, *before)
    request = space.request
    request.before = None if before is None else space.addresses[1]
    request.n, request.threads, request.binned = number, _threads, histograms
    request.scaled, request.scale = scale is not None, 1.0 if scale is None else scale
    request.seed = seed
    state = _library.watchglass_summaries(space.address)
    if state == _TOO_SMALL:
        space.grow_bins(2 * int(space.offsets[0]))
        state = _library.watchglass_summaries(space.address)
    if state == _UNKNOWN_DTYPE:
        raise ValueError(f"statistics do not support dtype code {codes[space.offsets[0]]}")
    if state == _NO_MEMORY:
        raise MemoryError("no memory for statistics")
    return space.rows[:number].copy(), space.histograms(number) if histograms else None
