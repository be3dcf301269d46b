"""Elements of tensors as numbers for statistics: dtypes, differences, scales, samples.

Written once here in NumPy and once in the native kernel; both give the same bits. A tensor's elements become float32
where its dtype fits into it, float64 elsewhere (:func:`numbers`).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Dtypes whose statistics can be computed from a pointer, by NumPy-style name, and their codes in the native kernel.
DTYPE_CODES = {
    "float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int64": 4, "int32": 5, "int16": 6, "int8": 7,
    "uint8": 8, "bool": 9, "uint16": 10, "uint32": 11, "uint64": 12, "complex64": 13, "complex128": 14,
    "float8_e4m3fn": 15, "float8_e5m2": 16, "float8_e4m3fnuz": 17, "float8_e5m2fnuz": 18,
}  # fmt: skip

_NAMES = {code: name for name, code in DTYPE_CODES.items()}
#: The memory layout of dtypes that NumPy lacks.
_STORED = {"bfloat16": "uint16", "bool": "uint8"}
_WIDE = {"float64", "int64", "int32", "uint32", "uint64", "complex64", "complex128"}

#: A histogram of more elements than this is sampled ...
SAMPLED_ABOVE = 1 << 16
#: ... in runs of this number of neighbours (a cache line of float32) ...
RUN = 16
#: ... one from each of at least this number of strata of equal size.
STRATA = 1 << 10


def read(pointer: int, count: int, code: int) -> NDArray[Any]:
    """The elements at an address, in NumPy's dtype of the same size; the memory is not copied.

    Raises:
        ValueError: The code is not one of :data:`DTYPE_CODES`.
    """
    name = _NAMES.get(code)
    if name is None:
        raise ValueError(f"dtype code {code} is not supported by the kernel")
    dtype = np.dtype("uint8" if name.startswith("float8") else _STORED.get(name, name))
    if count == 0:
        return np.empty(0, dtype)
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(pointer)
    return np.ctypeslib.as_array(memory).view(dtype)


def numbers(
    elements: NDArray[Any], code: int, before: NDArray[Any] | None = None, scale: float | None = None
) -> NDArray[Any]:
    """The numbers whose statistics are computed: ``(elements - before) / scale``, float32[n] or float64[n].

    float64, complex numbers and integers of 32 and 64 bits are computed in float64, all others in float32, where they
    are exact. The difference and the quotient are rounded to that and not back to the tensor's own dtype. Of complex
    numbers it is the magnitude of the difference, divided by the scale.
    """
    name = _NAMES[code]
    dtype = np.float64 if name in _WIDE else np.float32
    with np.errstate(all="ignore"):
        values = _decoded(elements, name)
        if before is not None:
            values = values - _decoded(before, name)
        if values.dtype.kind == "c":
            values = magnitudes(values)
        if scale is not None:
            values = values / dtype(scale)
    return values


def magnitudes(values: NDArray[Any]) -> NDArray[np.float64]:
    """Absolute values of complex numbers in float64: neither overflow nor underflow where the result does not."""
    real, imaginary = np.abs(values.real).astype(np.float64), np.abs(values.imag).astype(np.float64)
    larger, smaller = np.maximum(real, imaginary), np.minimum(real, imaginary)
    with np.errstate(all="ignore"):
        ratio = np.where(larger > 0, smaller / larger, larger)
        result = larger * np.sqrt(1 + ratio * ratio)
    # As everywhere: an infinite part makes the magnitude infinite, even if the other is NaN.
    return np.asarray(np.where(np.isinf(real) | np.isinf(imaginary), np.inf, result), np.float64)


def sample(count: int, seed: int) -> NDArray[np.int64] | None:
    """Indices of the elements that enter the histogram of a tensor, ascending; None for all.

    One run from each stratum, at a place drawn from the seed: every element is as likely to be examined as any other.
    """
    if count <= SAMPLED_ABOVE:
        return None
    runs = -(-count // RUN)
    stratum = runs // STRATA
    strata = np.arange(-(-runs // stratum), dtype=np.uint64)
    chosen = strata * np.uint64(stratum) + ((draws(strata, seed) * np.uint64(stratum)) >> np.uint64(32))
    indices = (chosen.astype(np.int64)[:, None] * RUN + np.arange(RUN)).ravel()
    return np.asarray(indices[indices < count])


def sample_sizes(counts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The number of elements that :func:`sample` takes from tensors of these sizes: int64[n]."""
    runs = -(-counts // RUN)
    stratum = np.maximum(runs // STRATA, 1)
    strata = -(-runs // stratum)
    last = np.maximum(strata - 1, 0)
    drawn = (draws(last.astype(np.uint64), seed) * stratum.astype(np.uint64)) >> np.uint64(32)
    # Of all runs only the last may be shorter, or lie beyond the end.
    missing = np.clip((last * stratum + drawn.astype(np.int64) + 1) * RUN - counts, 0, RUN)
    return np.asarray(np.where(counts > SAMPLED_ABOVE, strata * RUN - missing, counts))


def float8_table() -> NDArray[np.float32]:
    """The value of every byte in each of the four kinds of float8, in the order of their codes: float32[4, 256]."""
    return np.stack([_float8(3, 7, "fn"), _float8(2, 15, ""), _float8(3, 8, "fnuz"), _float8(2, 16, "fnuz")])


def _float8(mantissa_bits: int, bias: int, kind: str) -> NDArray[np.float32]:
    byte = np.arange(256)
    exponent, mantissa = (byte & 0x7F) >> mantissa_bits, byte & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    value = np.ldexp(fraction, np.maximum(exponent, 1) - bias)
    value = np.where(byte >= 0x80, -value, value)
    if kind == "fnuz":  # no negative zero, no infinity: its place is the one NaN
        value[0x80] = np.nan
    elif kind == "fn":  # no infinity: all ones are NaN
        value[[0x7F, 0xFF]] = np.nan
    else:  # as IEEE 754 has it
        value[exponent == 31] = np.nan
        value[[0x7C, 0xFC]] = np.inf, -np.inf
    return np.asarray(value, np.float32)


_FLOAT8 = float8_table()


def _decoded(elements: NDArray[Any], name: str) -> NDArray[Any]:
    if name.startswith("float8"):
        return np.asarray(_FLOAT8[DTYPE_CODES[name] - DTYPE_CODES["float8_e4m3fn"]][elements])
    if name == "bfloat16":
        return np.asarray(elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name.startswith("complex"):
        return elements.astype(np.complex128)
    return elements.astype(np.float64 if name in _WIDE else np.float32)


def draws(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """32 bits for each number, one of a stratum, that look drawn at random (splitmix64, Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed & (1 << 64) - 1) + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(32))
