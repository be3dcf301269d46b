"""Bitmaps over units (neurons, channels): unit i is bit ``i % 8`` of byte ``i // 8``."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from watchglass.errors import InvalidValueError


def pack_units(flags: ArrayLike) -> bytes:
    """bool[n] as ``ceil(n / 8)`` bytes; bits beyond the last unit are 0."""
    return np.packbits(np.asarray(flags, dtype=bool).ravel(), bitorder="little").tobytes()


def unpack_units(bits: bytes, units: int) -> NDArray[np.bool_]:
    """The bool[units] that :func:`pack_units` packed.

    Raises:
        InvalidValueError: The number of bytes does not fit.
    """
    if units < 0 or len(bits) != (units + 7) // 8:
        raise InvalidValueError(f"a bitmap of {units} units takes {(units + 7) // 8} bytes but got {len(bits)}")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=units, bitorder="little").astype(bool)


def and_units(a: bytes, b: bytes) -> bytes:
    """Units set in both bitmaps: "inactive" over two calls or steps is inactive in each.

    Raises:
        InvalidValueError: They differ in length.
    """
    if len(a) != len(b):
        raise InvalidValueError(f"bitmaps of the same units have the same length but got {len(a)} and {len(b)} bytes")
    return (np.frombuffer(a, np.uint8) & np.frombuffer(b, np.uint8)).tobytes()
