"""Derived columns and exact reductions."""

import math

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.records import DERIVED_FIELDS, Reduction
from watchglass.stats import column, empty, exact_reduction, finite_count, of_array


def test_derived_columns():
    array = np.array([0.0, 2.0, -4.0, np.nan])
    row = of_array(array)
    finite = array[:3]
    absolute = np.abs(finite)
    expected = {
        "mean": finite.mean(), "abs_mean": absolute.mean(), "variance": finite.var(), "std": finite.std(),
        "rms": np.sqrt(np.mean(finite**2)), "zero_ratio": 1 / 3, "nonfinite": 1, "l2": np.linalg.norm(finite),
        "l1": absolute.sum(), "abs_l1": absolute.sum(), "abs_l2": np.linalg.norm(finite), "abs_max": 4.0,
        "abs_variance": absolute.var(), "abs_std": absolute.std(), "abs_sum": absolute.sum(),
        "finite": 3, "nonzero_abs_mean": 3.0,
    }  # fmt: skip
    assert {name: float(column(row, name)) for name in expected} == pytest.approx(expected)
    assert set(DERIVED_FIELDS) <= set(expected)
    assert finite_count(row) == 3


def test_an_unknown_column_is_refused_with_the_known_ones():
    with pytest.raises(InvalidValueError, match="abs_mean"):
        column(empty(), "average")


def test_nothing_finite_has_no_derived_numbers():
    for row in (empty(), of_array(np.array([np.nan, np.inf]))):
        for name in {"abs_max", "abs_variance", "abs_std", "std", "mean"}:
            assert math.isnan(column(row, name))


@pytest.mark.parametrize("sign", [1, -1])
def test_spread_of_absolutes_survives_a_large_mean_of_one_sign(sign):
    values = sign * (1e6 + 1e-3 * np.random.default_rng(0).standard_normal(1000))
    assert column(of_array(values), "abs_std") == pytest.approx(np.abs(values).std(), rel=1e-6)


def test_spread_of_absolutes_loses_digits_where_signs_differ_and_never_goes_below_zero():
    values = np.array([1000.0, -1000.0] * 50)
    assert 0.0 <= column(of_array(values), "abs_variance") <= 1e-15 * 1000.0**2


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [(Reduction.MEDIAN, -0.5), (Reduction.PROD, 24.0), (Reduction.ABS_MEDIAN, 2.5), (Reduction.ABS_MIN, 1.0)],
)
def test_exact_reductions_leave_out_what_is_not_finite(reduction, expected):
    array = np.array([[1.0, -2.0, np.nan], [3.0, -4.0, np.inf]], "f4")
    assert exact_reduction(array, reduction) == expected
    assert exact_reduction(array.astype("f2"), reduction) == expected


@pytest.mark.parametrize("reduction", list(Reduction))
def test_exact_reductions_of_nothing_are_nan_and_every_dtype_is_read(reduction):
    assert math.isnan(exact_reduction(np.array([]), reduction))
    assert math.isnan(exact_reduction(np.array([np.nan]), reduction))
    assert exact_reduction(np.array([3 + 4j]), reduction) == 5.0
    assert exact_reduction(np.array([True]), reduction) == 1.0
    assert exact_reduction(np.int64(7), reduction) == 7.0


def test_a_product_may_overflow_silently():
    assert exact_reduction(np.full(10, 1e200), Reduction.PROD) == math.inf
