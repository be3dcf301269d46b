"""The kernels against float64 NumPy and exact sums: every dtype, any values, any split and order."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from devices.kernel_calls import assert_same, bound_of_sums, stored, summaries
from watchglass.stats import histograms_of, merge, merge_histograms, native, of_array, pure
from watchglass.stats.elements import DTYPE_CODES, numbers, read

SPECIAL = [
    0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -1e-310, 2.0**-149, -1e-40, 2.0**-126, 1e-8, 6e-8, 1.0, -1.5,
    448.0, 65504.0, 3.4e38, -3.4e38, 1e150, -1e150, 1000.0, 1000.01,
]  # fmt: skip
BYTES = {name: read(0, 0, code).dtype.itemsize for name, code in DTYPE_CODES.items()}

dtypes = st.sampled_from(list(DTYPE_CODES))


@st.composite
def arrays(draw: st.DrawFn, dtype: str, *, moderate: bool = False) -> NDArray[Any]:
    """Elements of a dtype: any bits, numbers about a mean, or a few special ones; mixed, and of any size.

    Sums of moderate ones do not overflow.
    """
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.one_of(st.integers(0, 40), st.integers(0, 5000)))
    special = np.array(draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(["bits", "normal", "special", "mixed"]))
    if kind == "bits" and not (moderate and BYTES[dtype] >= 8):
        return generator.integers(0, 256, size * BYTES[dtype], np.uint8).view(read(0, 0, DTYPE_CODES[dtype]).dtype)
    scale = 10.0 ** draw(st.integers(-45, 38))
    values = generator.standard_normal(size) * scale + draw(st.sampled_from([0.0, 0.0, 1000.0 * scale]))
    if kind != "normal":
        chosen = generator.random(size) < (0.1 if kind == "mixed" else 1.0)
        values = np.where(chosen, special[generator.integers(0, len(special), size)], values)
    return stored(values, dtype)


def decoded(array: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # signalling NaN
        return numbers(array, DTYPE_CODES[dtype]).astype(np.float64)


@given(st.data(), dtypes)
def test_any_bits_of_any_dtype_are_counted_exactly(data: st.DataObject, dtype: str) -> None:
    array = data.draw(arrays(dtype))
    values = decoded(array, dtype)
    for kernel in (native, pure):
        rows, histograms = summaries([array], dtype, kernel=kernel)
        np.testing.assert_array_equal(rows[0, :7], of_array(values)[:7])
        expected = histograms_of([values])
        np.testing.assert_array_equal(histograms.keys, expected.keys)
        np.testing.assert_array_equal(histograms.counts, expected.counts)
        assert histograms.seen.tolist() == [array.size]


@given(st.data(), dtypes)
def test_sums_are_within_their_bounds_of_the_exact_ones(data: st.DataObject, dtype: str) -> None:
    array = data.draw(arrays(dtype, moderate=True))
    values = decoded(array, dtype)
    finite = values[np.isfinite(values)]
    finite = finite[np.abs(finite) <= 1e150]
    if len(finite) < np.isfinite(values).sum():
        return  # sums may overflow, as the documentation says
    for kernel in (native, pure):
        row = summaries([array], dtype, kernel=kernel)[0][0]
        total, absolute = math.fsum(finite), math.fsum(np.abs(finite))
        wide = finite.astype(np.longdouble)
        m2 = np.square(wide - wide.mean()).sum() if len(finite) else np.longdouble(0)
        l2 = np.sqrt(np.square(wide).sum())
        exact = np.array([total, absolute, float(m2), float(l2)])
        bound = bound_of_sums(row)
        # Squares of the least numbers have no relative precision left, and beyond 1e140 sums are less careful.
        assert (np.abs(row[7:] - exact) <= 12 * bound + [0, 0, 1e-320, 1e-160]).all(), (row, exact)
        if np.abs(finite[finite != 0]).min(initial=1) > 1e-140 and np.abs(finite).max(initial=0) < 1e130:
            assert (np.abs(row[7:] - exact) <= bound).all(), (row, exact)


@given(st.data(), dtypes, st.integers(0, 2**32))
def test_parts_in_any_order_merge_to_the_whole(data: st.DataObject, dtype: str, seed: int) -> None:
    array = data.draw(arrays(dtype, moderate=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, array.size), max_size=5)))
    whole = summaries([array], dtype)
    parts = [np.ascontiguousarray(part) for part in np.split(array, cuts)]
    order = np.random.default_rng(seed).permutation(len(parts))
    rows, histograms = summaries([parts[i] for i in order], dtype)
    merged_rows = reduce(merge, rows)[None]
    merged = reduce(merge_histograms, [histograms.take([i]) for i in range(len(parts))])
    np.testing.assert_array_equal(merged_rows[:, :7], whole[0][:, :7])
    np.testing.assert_array_equal(merged.keys, whole[1].keys)
    np.testing.assert_array_equal(merged.counts, whole[1].counts)
    np.testing.assert_array_equal(merged.seen, whole[1].seen)
    assert merged_rows[0, 9] >= 0 or not np.isfinite(merged_rows[0, 9])
    if np.isfinite(whole[0][0, 7:]).all() and np.abs(whole[0][0, 5:7]).max() < 1e130:
        bound = bound_of_sums(whole[0][0])
        assert (np.abs(merged_rows - whole[0])[0, 7:] <= 2 * bound + [0, 0, 1e-320, 1e-160]).all()


@given(st.data(), dtypes, st.one_of(st.none(), st.floats(1e-6, 1e6), st.sampled_from([65536.0, 0.0, math.inf])))
def test_differences_and_quotients_are_those_of_numpy(data: st.DataObject, dtype: str, scale: float | None) -> None:
    array = data.draw(arrays(dtype, moderate=True))
    older = np.roll(array, data.draw(st.integers(0, 3))) if data.draw(st.booleans()) else None
    found, expected = (summaries([array], dtype, kernel=k, before=older, scale=scale) for k in (native, pure))
    if np.isfinite(expected[0][0, 7:]).all() and np.abs(expected[0][0, 5:7]).max() < 1e130:
        assert_same(found, expected)
    np.testing.assert_array_equal(found[0][:, :7], expected[0][:, :7])
    np.testing.assert_array_equal(found[1].keys, expected[1].keys)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_difference_is_that_of_the_dtype_wherever_it_holds_it(dtype: str) -> None:
    """Neighbouring weights and their update: what a framework would compute, without its temporary."""
    generator = np.random.default_rng(0)
    older = stored(generator.standard_normal(1000), dtype)
    array = stored(decoded(older, dtype) * (1 + 0.01 * generator.standard_normal(1000)), dtype)
    difference = decoded(array, dtype) - decoded(older, dtype)
    rows, histograms = summaries([array], dtype, before=older)
    np.testing.assert_array_equal(rows[0, :7], of_array(difference.astype(np.float32))[:7])
    np.testing.assert_array_equal(histograms.keys, histograms_of([difference.astype(np.float32)]).keys)
