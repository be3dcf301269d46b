"""Elements of tensors decoded to floating point in Triton kernels: :func:`watchglass.stats.numbers` on a device."""

# Triton reads annotations too, as names that a kernel may not know.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Compile-time constants of a kernel are written in capitals, as everywhere in Triton.
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def numbers(
    address, older, offsets, inside, divisor,
    STORED: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr, DIFFERENCE: tl.constexpr, SCALED: tl.constexpr,
    ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Decoded elements (a difference, a magnitude, scaled, as requested) in float32 or float64."""
    if KIND == "complex":
        real = _decoded(address, 2 * offsets, inside, STORED, KIND, WIDE, ALIGNED, MASKED)
        imaginary = _decoded(address, 2 * offsets + 1, inside, STORED, KIND, WIDE, ALIGNED, MASKED)
        if DIFFERENCE:
            real -= _decoded(older, 2 * offsets, inside, STORED, KIND, WIDE, ALIGNED, MASKED)
            imaginary -= _decoded(older, 2 * offsets + 1, inside, STORED, KIND, WIDE, ALIGNED, MASKED)
        x = _length(tl.abs(real), tl.abs(imaginary))
    else:
        x = _decoded(address, offsets, inside, STORED, KIND, WIDE, ALIGNED, MASKED)
        if DIFFERENCE:
            x -= _decoded(older, offsets, inside, STORED, KIND, WIDE, ALIGNED, MASKED)
    if SCALED:
        if WIDE:
            x = x / divisor
        else:
            x = tl.div_rn(x, tl.broadcast_to(divisor, x.shape))
    return x


@triton.jit
def _decoded(
    address, offsets, inside,
    STORED: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr, ALIGNED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    pointer = _pointer(address, STORED)
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    if MASKED:
        raw = tl.load(pointer + offsets, mask=inside, other=0)
    else:
        raw = tl.load(pointer + offsets)
    if KIND == "bfloat16":
        return (raw.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif KIND == "float8_e4m3fn" or KIND == "float8_e4m3fnuz":
        return _float8(raw.to(tl.int32), 3, 7 if KIND == "float8_e4m3fn" else 8, KIND)
    elif KIND == "float8_e5m2" or KIND == "float8_e5m2fnuz":
        return _float8(raw.to(tl.int32), 2, 15 if KIND == "float8_e5m2" else 16, KIND)
    elif WIDE:
        return raw.to(tl.float64)
    else:
        return raw.to(tl.float32)


@triton.jit
def _pointer(address, STORED: tl.constexpr):
    # Written out, since not every Triton takes a type as an argument, or the type of a pointer.
    if STORED == "float32":
        return address.to(tl.pointer_type(tl.float32))
    elif STORED == "float64":
        return address.to(tl.pointer_type(tl.float64))
    elif STORED == "float16":
        return address.to(tl.pointer_type(tl.float16))
    elif STORED == "int64":
        return address.to(tl.pointer_type(tl.int64))
    elif STORED == "int32":
        return address.to(tl.pointer_type(tl.int32))
    elif STORED == "int16":
        return address.to(tl.pointer_type(tl.int16))
    elif STORED == "int8":
        return address.to(tl.pointer_type(tl.int8))
    elif STORED == "uint64":
        return address.to(tl.pointer_type(tl.uint64))
    elif STORED == "uint32":
        return address.to(tl.pointer_type(tl.uint32))
    elif STORED == "uint16":
        return address.to(tl.pointer_type(tl.uint16))
    else:
        return address.to(tl.pointer_type(tl.uint8))


@triton.jit
def _float8(byte, MANTISSA: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr):
    # Only normal numbers are multiplied: some devices flush others to zero.
    exponent, mantissa = (byte & 0x7F) >> MANTISSA, byte & ((1 << MANTISSA) - 1)
    fraction = (mantissa + ((exponent > 0).to(tl.int32) << MANTISSA)).to(tl.float32)
    power = ((tl.maximum(exponent, 1) - BIAS - MANTISSA + 127) << 23).to(tl.float32, bitcast=True)
    value = fraction * power
    if KIND == "float8_e5m2":
        value = tl.where(exponent == 31, tl.where(mantissa == 0, float("inf"), float("nan")), value)
    elif KIND == "float8_e4m3fn":
        value = tl.where((byte & 0x7F) == 0x7F, float("nan"), value)
    else:
        value = tl.where(byte == 0x80, float("nan"), value)
    return tl.where(byte >= 0x80, -value, value)


@triton.jit
def _length(real, imaginary):
    """Magnitude of complex numbers from magnitudes of their parts, as the reference computes it."""
    larger, smaller = tl.maximum(real, imaginary), tl.minimum(real, imaginary)
    ratio = tl.where(larger > 0, smaller / larger, larger)
    result = larger * tl.sqrt(1 + ratio * ratio)
    # A maximum may hide a NaN; an infinite part makes the magnitude infinite, even if the other part is NaN.
    result = tl.where((real != real) | (imaginary != imaginary), float("nan"), result)
    infinity = float("inf")
    return tl.where((real == infinity) | (imaginary == infinity), infinity, result)
