"""Merging the parts of an array gives the row of the whole, wherever it is cut."""

import numpy as np
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from watchglass.stats import (
    edges,
    empty,
    finite_count,
    histograms_of,
    merge,
    merge_histograms,
    of_array,
    quantiles,
)
from watchglass.stats.histograms import keys_of

# Beyond the square root of the largest float sums of squares overflow, as documented.
NUMBERS = st.one_of(
    st.floats(-1e100, 1e100, allow_subnormal=False), st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf])
)
ARRAYS = hnp.arrays(np.float64, st.integers(0, 40), elements=NUMBERS)


@given(ARRAYS, ARRAYS)
def test_parts_merge_to_the_whole(a, b):
    merged, whole = merge(of_array(a), of_array(b)), of_array(np.concatenate([a, b]))
    assert np.array_equal(merged[:7], whole[:7], equal_nan=True)
    scale = float(np.abs(np.nan_to_num(np.concatenate([a, b]), posinf=0, neginf=0)).max(initial=0))
    n = float(finite_count(whole))
    np.testing.assert_allclose(merged[7:9], whole[7:9], rtol=1e-12, atol=1e-13 * scale * n)
    # Squares below the smallest normal number have no relative precision left.
    np.testing.assert_allclose(merged[9], whole[9], rtol=1e-9, atol=1e-13 * scale**2 * n + 1e-300)
    np.testing.assert_allclose(merged[10], whole[10], rtol=1e-12)
    assert merged[9] >= 0


@given(ARRAYS, ARRAYS)
def test_the_order_of_two_parts_does_not_matter(a, b):
    # Equal numbers; which zero of -0.0 and 0.0 is the minimum depends on the order.
    assert np.array_equal(merge(of_array(a), of_array(b)), merge(of_array(b), of_array(a)), equal_nan=True)


@given(ARRAYS)
def test_nothing_is_the_neutral_element(a):
    assert np.array_equal(merge(of_array(a), empty()), of_array(a), equal_nan=True)


WIDE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1.0, 1.1, 1.5, np.nan, np.inf, -np.inf]),
)
PARTS = st.lists(hnp.arrays(np.float64, st.integers(0, 12), elements=WIDE), min_size=2, max_size=2)


@given(PARTS, PARTS, PARTS)
def test_histograms_merge_in_any_order_and_grouping(a, b, c):
    x, y, z = (histograms_of(arrays) for arrays in (a, b, c))
    merged = merge_histograms(merge_histograms(x, y), z)
    whole = histograms_of([np.concatenate(row) for row in zip(a, b, c, strict=True)])
    for other in (merge_histograms(z, merge_histograms(y, x)), whole):
        for name in ("seen", "offsets", "keys", "counts"):
            np.testing.assert_array_equal(getattr(merged, name), getattr(other, name))


@given(st.lists(hnp.arrays(np.float64, st.just(9), elements=WIDE), min_size=1, max_size=4), st.integers(0, 8))
def test_a_quantile_lies_in_the_bin_of_the_element_that_it_stands_for(arrays, eighth):
    arrays = [np.nan_to_num(array, nan=1.0, posinf=2.0, neginf=-2.0) for array in arrays]  # nine finite ones each
    rows = np.array([of_array(np.append(array, [np.nan, np.inf])) for array in arrays])
    found = quantiles(histograms_of(arrays), rows, [eighth / 8])[:, 0]
    for value, array in zip(found, arrays, strict=True):
        element = np.sort(array)[eighth]
        if element == 0:
            assert value == 0
        else:
            low, high = edges(keys_of(element))
            assert low <= value <= high
            assert array.min() <= value <= array.max()
