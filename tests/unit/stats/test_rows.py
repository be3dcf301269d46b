"""Statistics rows: the reference and the merge."""

import math

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.records import STATISTIC_FIELDS
from watchglass.stats import column, empty, merge, of_array


def named(row):
    return dict(zip(STATISTIC_FIELDS, row.tolist(), strict=True))


def test_a_row_says_what_the_array_holds():
    row = named(of_array(np.array([[1, -2, 0], [np.nan, np.inf, -np.inf]], "f4")))
    assert row == {
        "count": 6, "nan": 1, "posinf": 1, "neginf": 1, "zero": 1, "min": -2, "max": 1, "sum": -1, "abs_sum": 3,
        "m2": pytest.approx(1 + 4 - 1 / 3), "l2": pytest.approx(math.sqrt(5)),
    }  # fmt: skip


@pytest.mark.parametrize("array", [[], [np.nan], [np.inf, -np.inf]])
def test_without_finite_values_extremes_are_nan_and_sums_zero(array):
    row = named(of_array(np.array(array)))
    assert math.isnan(row["min"])
    assert math.isnan(row["max"])
    assert row["sum"] == row["abs_sum"] == row["m2"] == row["l2"] == 0
    for name in ("mean", "abs_mean", "variance", "std", "rms", "zero_ratio"):
        assert math.isnan(column(of_array(np.array(array)), name))


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8", ">f4", "c8"])
def test_any_numeric_dtype_is_reduced(dtype):
    row = named(of_array(np.array([1, 0, 1, 1]).astype(dtype)))
    assert (row["count"], row["zero"], row["sum"], row["max"]) == (4, 1, 3, 1)


def test_complex_numbers_count_by_magnitude():
    assert named(of_array(np.array([3 + 4j])))["l2"] == 5


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([0], "M8[s]")])
def test_what_is_no_number_is_refused(array):
    with pytest.raises(InvalidValueError, match="dtype"):
        of_array(array)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_norm_neither_overflows_nor_vanishes(scale):
    assert column(of_array(np.full(4, scale)), "l2") == pytest.approx(2 * scale)


def test_spread_survives_a_large_mean():
    values = 1e9 + np.array([0.0, 1.0, 2.0, 3.0])
    half = merge(of_array(values[:2]), of_array(values[2:]))
    assert column(half, "m2") == 5.0
    assert column(of_array(values), "m2") == 5.0


def test_merging_is_vectorised_and_broadcasts():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 7)), rng.normal(size=(3, 5))
    rows = merge(np.array([of_array(x) for x in a]), np.array([of_array(x) for x in b]))
    whole = np.array([of_array(np.concatenate(pair)) for pair in zip(a, b, strict=True)])
    np.testing.assert_allclose(rows, whole, rtol=1e-12)
    assert merge(rows, empty()).tobytes() == rows.tobytes()
    assert merge(empty(3), rows).tobytes() == rows.tobytes()


def test_rows_of_another_width_are_refused():
    with pytest.raises(InvalidValueError, match="11 columns"):
        merge(np.zeros(10), np.zeros(10))
