"""The kernels of :mod:`watchglass.capture.pytorch.device.triton_statistics`, which run on the device.

A launch has one program for each *share* of a tensor, whose row of statistics it writes, and one for each thousand
elements of histograms. A second launch joins the rows of all shares of each tensor. Elements are read as
:func:`watchglass.stats.numbers` defines.

Within a share, tiles of elements stay in registers while they are examined several times: for their extremes, for their
mean, and the spread around the mean. So sums of a tile may be of float32 (float64 for wide dtypes): they are scaled by
a power of two, so that nothing overflows or vanishes, and shifted, so that nothing cancels. Tiles and shares are joined
in float64, in their order: the same elements give the same bits.

Infinities, zeros and keys are recognised by bits, which no mode of arithmetic changes.
"""

# Triton reads annotations too, as names that a kernel may not know.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# Compile-time constants of a kernel are written in capitals, as everywhere in Triton.
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from watchglass.capture.pytorch.device.triton_elements import numbers

#: Columns of a tensor's entry: address, address of older values, elements, first program, shares, elements of a share,
#: its first row among the launch's rows of shares, its row, its first bin.
ENTRY_WIDTH = tl.constexpr(9)
#: Columns of a row of statistics, in the order of :data:`~watchglass.records.STATISTIC_FIELDS`.
ROW_WIDTH = tl.constexpr(11)
#: How histograms sample, as :func:`watchglass.stats.elements.sample` does.
SAMPLED_ABOVE = tl.constexpr(1 << 16)
RUN = tl.constexpr(16)
STRATA = tl.constexpr(1 << 10)
#: Runs that one program looks at.
RUNS = tl.constexpr(64)
_HALF = tl.constexpr(0xFFFF)


# Values that differ from call to call must not be compile-time constants.
@triton.jit(do_not_specialize=["first_share", "first_row", "first_bin", "seed"])
def summarise(
    table, owners, shares, joins, counts, scale, first_share, first_row,
    first_bin, seed,
    STORED: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr, DIFFERENCE: tl.constexpr, SCALED: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Rows of shares and counts of bins for tensors of one dtype.

    Args:
        table: int64[tensors, ENTRY_WIDTH].
        owners: int64[programs], the tensor that each program works for.
        shares: float64[.., ROW_WIDTH], rows of shares.
        joins: int64[.., 2], for each row its first share and how many there are.
        counts: int32[..], bins.
        scale: float64[1], examined where SCALED.
        first_share: Offset of the table's rows of shares.
        first_row: Offset of its rows.
        first_bin: Offset of its bins.
        seed: Draws the elements for histograms.
        STORED: Type of elements in memory.
        KIND: Name of the dtype.
        WIDE: Whether elements are computed in float64.
        DIFFERENCE: Whether older values are subtracted.
        SCALED: Whether elements are divided by the scale.
        ALIGNED: Whether all addresses are multiples of 16.
        TILE: Elements examined together.
    """
    program = tl.program_id(0)
    entry = table + tl.load(owners + program) * ENTRY_WIDTH
    address, older = tl.load(entry), tl.load(entry + 1)
    elements = tl.load(entry + 2)
    place = program - tl.load(entry + 3)
    number = tl.load(entry + 4)
    divisor = tl.zeros((1,), tl.float64) + 1.0
    if SCALED:
        divisor = tl.load(scale + tl.arange(0, 1))
    if not WIDE:
        divisor = divisor.to(tl.float32)
    if place < number:
        share = first_share + tl.load(entry + 6) + place
        if place == 0:
            join = joins + 2 * (first_row + tl.load(entry + 7))
            tl.store(join, share)
            tl.store(join + 1, number)
        size = tl.multiple_of(tl.load(entry + 5), TILE)
        begin = place * size
        end = tl.minimum(begin + size, elements)
        _moments(
            shares + share * ROW_WIDTH, address, older, begin, end, divisor,
            STORED, KIND, WIDE, DIFFERENCE, SCALED, ALIGNED, TILE,
        )  # fmt: skip
    else:
        bins = counts + first_bin + tl.load(entry + 8)
        _histogram(
            bins, address, older, elements, (place - number) * RUNS, divisor, seed,
            STORED, KIND, WIDE, DIFFERENCE, SCALED,
        )  # fmt: skip


@triton.jit
def join(shares, joins, rows, SHARES: tl.constexpr):
    """The row of each tensor from those of its shares, which are SHARES at most."""
    row = tl.program_id(0)
    first, number = tl.load(joins + 2 * row), tl.load(joins + 2 * row + 1)
    lanes = tl.arange(0, SHARES)
    there = lanes < number
    share = shares + (first + lanes) * ROW_WIDTH
    target = rows + row * ROW_WIDTH
    count = tl.load(share, mask=there, other=0.0)
    bad = tl.zeros((SHARES,), tl.float64)
    tl.store(target, tl.sum(count, axis=0))
    for column in tl.static_range(1, 5):
        value = tl.load(share + column, mask=there, other=0.0)
        if column < 4:
            bad += value
        tl.store(target + column, tl.sum(value, axis=0))
    finite = count - bad
    total = tl.sum(finite, axis=0)
    any_finite = total > 0
    some = there & (finite > 0)
    nan = float("nan")
    low = tl.min(tl.load(share + 5, mask=some, other=float("inf")), axis=0)
    high = tl.max(tl.load(share + 6, mask=some, other=float("-inf")), axis=0)
    tl.store(target + 5, tl.where(any_finite, low, nan))
    tl.store(target + 6, tl.where(any_finite, high, nan))
    sums = tl.load(share + 7, mask=some, other=0.0)
    whole = tl.sum(sums, axis=0)
    tl.store(target + 7, whole)
    tl.store(target + 8, tl.sum(tl.load(share + 8, mask=some, other=0.0), axis=0))
    gap = sums / tl.where(some, finite, 1.0) - whole / tl.where(any_finite, total, 1.0)
    # Where sums of float64 overflow, so does the spread.
    gap = tl.where(gap == gap, gap, float("inf"))
    between = tl.where(some, gap * gap * finite, 0.0)
    tl.store(target + 9, tl.sum(tl.load(share + 9, mask=some, other=0.0) + between, axis=0))
    norms = tl.load(share + 10, mask=some, other=0.0)
    largest = tl.max(norms, axis=0)
    # An infinite norm is kept as it is.
    usable = (largest > 0) & (largest < float("inf"))
    ratios = norms / tl.where(usable, largest, 1.0)
    tl.store(target + 10, tl.where(usable, largest * tl.sqrt(tl.sum(ratios * ratios, axis=0)), largest))


@triton.jit
def _moments(
    row, address, older, begin, end, divisor,
    STORED: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr, DIFFERENCE: tl.constexpr, SCALED: tl.constexpr,
    ALIGNED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The row of statistics of elements ``[begin, end)`` of a tensor."""
    zero = tl.sum(tl.zeros((1,), tl.float64), axis=0)
    finite, nans, positive, zeros = zero, zero, zero, zero
    total, absolute, spread, norm = zero, zero, zero, zero
    low, high = zero + float("inf"), zero - float("inf")
    for start in range(begin, end, TILE):
        offsets = start + tl.arange(0, TILE)
        # Only loads without a mask have the full width of the memory; the last tile may be incomplete.
        if start + TILE <= end:
            x = numbers(
                address, older, offsets, offsets < end, divisor,
                STORED, KIND, WIDE, DIFFERENCE, SCALED, ALIGNED, False,
            )  # fmt: skip
        else:
            inside = offsets < end
            x = numbers(
                address, older, offsets, inside, divisor,
                STORED, KIND, WIDE, DIFFERENCE, SCALED, ALIGNED, True,
            )  # fmt: skip
            x = tl.where(inside, x, float("nan"))
        magnitude = _magnitude(x, WIDE)
        infinity = _infinity(WIDE)
        usable = magnitude < infinity
        # Two counts in one number: a tile has fewer than 2**16 elements.
        bad = tl.sum((magnitude > infinity).to(tl.int32) + ((x == float("inf")).to(tl.int32) << 16), axis=0)
        good = tl.sum((magnitude == 0).to(tl.int32) + (usable.to(tl.int32) << 16), axis=0)
        tile_low = tl.min(tl.where(usable, x, float("inf")), axis=0)
        tile_high = tl.max(tl.where(usable, x, float("-inf")), axis=0)
        nans += (bad & _HALF).to(tl.float64)
        positive += (bad >> 16).to(tl.float64)
        zeros += (good & _HALF).to(tl.float64)
        if (good >> 16) > 0:
            number = (good >> 16).to(tl.float64)
            up, down = _scales(tl.maximum(tl.abs(tile_low), tl.abs(tile_high)), WIDE)
            y = tl.where(usable, x, 0.0) * up
            centre = tl.sum(y, axis=0) / (good >> 16).to(y.dtype)
            off = tl.where(usable, y - centre, 0.0)
            deviations = tl.sum(off, axis=0).to(tl.float64)
            mean = centre.to(tl.float64) + deviations / number
            squares = tl.maximum(tl.sum(off * off, axis=0).to(tl.float64) - deviations * deviations / number, 0.0)
            length = squares + number * mean * mean
            tile_total = number * mean * down
            gap = mean * down - total / tl.maximum(finite, 1.0)
            between = tl.where(finite > 0, gap * gap * (finite * number / (finite + number)), 0.0)
            spread += squares * down * down + between
            total += tile_total
            absolute += tl.sum(tl.abs(y), axis=0).to(tl.float64) * down
            norm = _joined_norm(norm, length, down, WIDE)
            finite += number
            low = tl.minimum(low, tile_low.to(tl.float64))
            high = tl.maximum(high, tile_high.to(tl.float64))
    elements = (end - begin).to(tl.float64)
    # Lanes of the last tile beyond the end were made NaN.
    nans -= ((end - begin + TILE - 1) // TILE * TILE).to(tl.float64) - elements
    nan = float("nan")
    tl.store(row, elements)
    tl.store(row + 1, nans)
    tl.store(row + 2, positive)
    tl.store(row + 3, elements - finite - nans - positive)
    tl.store(row + 4, zeros)
    tl.store(row + 5, tl.where(finite > 0, low, nan))
    tl.store(row + 6, tl.where(finite > 0, high, nan))
    tl.store(row + 7, total)
    tl.store(row + 8, absolute)
    tl.store(row + 9, spread)
    tl.store(row + 10, norm if WIDE else tl.sqrt(norm))


@triton.jit
def _histogram(
    bins, address, older, elements, first_run, divisor, seed,
    STORED: tl.constexpr, KIND: tl.constexpr, WIDE: tl.constexpr, DIFFERENCE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Count the elements of some runs into bins: all runs of a small tensor, one of each stratum of a large one."""
    turn = (first_run + tl.arange(0, RUNS)).to(tl.int64)
    runs = (elements + RUN - 1) // RUN
    stratum = tl.maximum(runs // STRATA, 1)
    sampled = elements > SAMPLED_ABOVE
    strata = tl.where(sampled, (runs + stratum - 1) // stratum, runs)
    drawn = turn * stratum + ((_mixed(turn, seed) * stratum.to(tl.uint64)) >> 32).to(tl.int64)
    run = tl.where(sampled, drawn, turn)
    offsets = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    inside = (turn < strata)[:, None] & (offsets < elements)
    x = numbers(
        address, older, offsets, inside, divisor[:, None],
        STORED, KIND, WIDE, DIFFERENCE, SCALED, False, True,
    )  # fmt: skip
    magnitude = _magnitude(x, WIDE)
    place, side = _place(magnitude, WIDE)
    place = tl.where(x < 0, side - 1 - place, side + place)
    tl.atomic_add(bins + place, 1, mask=inside & (magnitude > 0) & (magnitude < _infinity(WIDE)), sem="relaxed")


@triton.jit
def _magnitude(x, WIDE: tl.constexpr):
    """Bits without the sign: they have the order of magnitudes, with infinity and NaN above all numbers."""
    if WIDE:
        return x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _infinity(WIDE: tl.constexpr):
    return 0x7FF0000000000000 if WIDE else 0x7F800000


@triton.jit
def _scales(largest, WIDE: tl.constexpr):
    """The power of two that brings a magnitude near one, in its dtype, and the way back, in float64."""
    if WIDE:
        exponent = tl.minimum(tl.maximum(largest.to(tl.int64, bitcast=True) >> 52, 1), 2045)
        up = ((2046 - exponent) << 52).to(tl.float64, bitcast=True)
        down = (exponent << 52).to(tl.float64, bitcast=True)
    else:
        exponent = tl.minimum(tl.maximum(largest.to(tl.int32, bitcast=True) >> 23, 1), 253)
        up = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        down = ((exponent.to(tl.int64) - 127 + 1023) << 52).to(tl.float64, bitcast=True)
    return up, down


@triton.jit
def _joined_norm(norm, length, down, WIDE: tl.constexpr):
    """Norm of all so far and of a tile with this squared, scaled length; squares of float32 need no care in float64."""
    if WIDE:
        other = tl.sqrt(length) * down
        larger, smaller = tl.maximum(norm, other), tl.minimum(norm, other)
        ratio = smaller / tl.where((larger > 0) & (larger < float("inf")), larger, 1.0)
        return tl.where(larger < float("inf"), larger * tl.sqrt(1 + ratio * ratio), larger)
    else:
        return norm + length * down * down


@triton.jit
def _place(magnitude, WIDE: tl.constexpr):
    """Which bin of magnitudes, least first, these bits belong to, and how many bins there are."""
    if WIDE:
        # A subnormal's bits are a multiple of the smallest one: as a number they have its exponent and mantissa.
        subnormal = (magnitude.to(tl.float64).to(tl.int64, bitcast=True) >> 51) - 2 * 1023
        place = tl.where(magnitude < (1 << 52), subnormal, (magnitude >> 51) + 2 * 51)
        return place, 2 * (1023 + 1074 + 1)
    else:
        subnormal = (magnitude.to(tl.float32).to(tl.int32, bitcast=True) >> 22) - 2 * 127
        place = tl.where(magnitude < (1 << 23), subnormal, (magnitude >> 22) + 2 * 22)
        return place, 2 * (127 + 149 + 1)


@triton.jit
def _mixed(numbers, seed):
    """32 pseudo-random bits for each number (splitmix64), uint64[..]."""
    z = seed.to(tl.uint64) + (numbers.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return (z ^ (z >> 31)) >> 32
