"""The native kernel: statistics of tensors in one pass, called with pointers, shapes and dtypes.

A small C library beside this file, built with the package. Where no compiler was found it is missing, and
:data:`available` is False: callers then use their framework or :func:`watchglass.stats.of_array`, with the same
results up to the rounding of sums. The call releases the interpreter lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STATISTIC_FIELDS

#: Dtypes that the kernel reads, by NumPy-style name, and their codes in it.
DTYPE_CODES = {
    "float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int64": 4, "int32": 5, "int16": 6, "int8": 7,
    "uint8": 8, "bool": 9,
}  # fmt: skip

#: What this module and the library must agree on.
_VERSION = 1
_WIDTH = len(STATISTIC_FIELDS)


def _load() -> Any:
    try:
        library = ctypes.CDLL(str(Path(__file__).with_name("librows.so")))
        library.watchglass_native_version.restype = ctypes.c_int64
        if library.watchglass_native_version() != _VERSION:
            return None
        function = library.watchglass_rows
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return function


_rows = _load()

#: Whether the library was found.
available = _rows is not None


def rows(pointers: Sequence[int], counts: Sequence[int], codes: Sequence[int]) -> NDArray[np.float64]:
    """One row of statistics for each contiguous tensor: float64[n, 11].

    Args:
        pointers: Addresses of the first elements; the caller keeps the memory alive and unchanged during the call.
        counts: Numbers of elements.
        codes: Dtypes, as in :data:`DTYPE_CODES`.

    Raises:
        RuntimeError: The library is not available.
        ValueError: The sequences differ in length, or a code is not one of :data:`DTYPE_CODES`.
    """
    if _rows is None:
        raise RuntimeError("the native kernel is not available")
    number = len(pointers)
    if not number == len(counts) == len(codes):
        raise ValueError(f"{number} pointers, {len(counts)} counts and {len(codes)} codes do not belong together")
    result = (ctypes.c_double * (_WIDTH * number))()
    bad = _rows(
        (ctypes.c_void_p * number)(*pointers),
        (ctypes.c_int64 * number)(*counts),
        (ctypes.c_int32 * number)(*codes),
        number,
        result,
    )
    if bad:
        raise ValueError(f"dtype code {codes[bad - 1]} is not one that the native kernel reads")
    return np.ctypeslib.as_array(result).reshape(number, _WIDTH)
