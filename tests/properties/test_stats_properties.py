"""Merging the parts of an array gives the row of the whole, wherever it is cut."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from watchglass.stats import and_units, empty, finite_count, merge, of_array, pack_units, unpack_units

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


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_bitmaps_and_like_flags(pairs):
    a, b = ([pair[i] for pair in pairs] for i in (0, 1))
    both = and_units(pack_units(a), pack_units(b))
    assert unpack_units(both, len(pairs)).tolist() == [x and y for x, y in pairs]
