"""Histograms: keys, edges, the merge, quantiles."""

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.stats import Histograms, edges, histograms_of, merge_histograms, of_array, quantiles
from watchglass.stats.histograms import keys_of

TINY = 5e-324
LARGEST = np.finfo(np.float64).max


def assert_same(a, b):
    for name in ("seen", "offsets", "keys", "counts"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype, name


def test_keys_order_like_values_and_start_again_at_one_and_a_half():
    values = np.array([-LARGEST, -2.0, -1.5, -1.0, -TINY, TINY, 1e-310, 1.0, 1.4999, 1.5, 1.9999, 2.0, LARGEST])
    keys = keys_of(values)
    assert keys.tolist() == [-4197, -2152, -2151, -2150, -2, 2, keys[6], 2150, 2150, 2151, 2151, 2152, 4197]
    assert (np.diff(keys.astype(int)) >= 0).all()


def test_every_value_lies_between_the_edges_of_its_key():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(1000) * 10.0 ** rng.integers(-300, 300, 1000), [TINY, LARGEST, -1.0]])
    low, high = edges(keys_of(values))
    assert ((low <= values) & (values <= high)).all()
    # TINY is half of the only bin that its exponent has room for.
    assert (np.abs(high - low)[:1000] <= 0.5 * np.abs(values[:1000]) * (1 + 1e-15)).all()


def test_a_histogram_says_what_occurs():
    histograms = histograms_of([np.array([1.0, 1.2, -1.5, 0.0, np.nan, np.inf]), np.array([]), np.array([2.0])])
    assert histograms.seen.tolist() == [6, 0, 1]
    assert histograms.offsets.tolist() == [0, 2, 2, 3]
    assert histograms.keys.tolist() == [-2151, 2150, 2152]
    assert histograms.counts.tolist() == [1, 2, 1]
    assert [array.tolist() for array in histograms.row(0)] == [[-2151, 2150], [1, 2]]
    assert len(histograms) == 3


def test_rows_are_taken_by_index_and_by_mask_and_put_together_again():
    arrays = [np.random.default_rng(i).standard_normal(i * 5) for i in range(5)]
    whole = histograms_of(arrays)
    assert_same(whole.take([3, 0, 3]), histograms_of([arrays[3], arrays[0], arrays[3]]))
    assert_same(whole.take([False, True, False, False, True]), histograms_of([arrays[1], arrays[4]]))
    assert_same(whole.take([]), Histograms.none(0))
    assert_same(Histograms.concatenate([whole.take([0, 1]), whole.take([]), whole.take([2, 3, 4])]), whole)
    assert_same(Histograms.concatenate([]), Histograms.none(0))


def test_merging_gives_the_histogram_of_both():
    rng = np.random.default_rng(0)
    a, b = [[rng.standard_normal(n) for n in sizes] for sizes in ((5, 0, 70, 3), (9, 4, 80, 0))]
    merged = merge_histograms(histograms_of(a), histograms_of(b))
    assert_same(merged, histograms_of([np.concatenate(pair) for pair in zip(a, b, strict=True)]))
    assert_same(merge_histograms(merged, Histograms.none(4)), merged)
    assert_same(merge_histograms(Histograms.none(4), merged), merged)
    assert_same(merge_histograms(Histograms.none(2), Histograms.none(2)), Histograms.none(2))


def test_merging_different_numbers_of_rows_is_refused():
    with pytest.raises(InvalidValueError, match="there are 2 and 3"):
        merge_histograms(Histograms.none(2), Histograms.none(3))


def quantiles_of(arrays, q):
    return quantiles(histograms_of(arrays), np.array([of_array(array) for array in arrays]), q)


@pytest.mark.parametrize("shift", [0.0, -3.0, 5.0])
def test_quantiles_are_right_within_their_bin(shift):
    values = np.random.default_rng(0).standard_normal(5000) + shift
    q = np.linspace(0, 1, 101)
    found = quantiles_of([values], q)[0]
    exact = np.quantile(values, q)
    assert (np.diff(found) >= 0).all()
    assert (np.abs(found - exact) <= 0.5 * np.abs(exact) + 1e-3).all()
    # Most of the bound is for what lies at the edge of its bin.
    assert np.abs(found - exact).mean() < 0.03 * np.abs(values).max()


def test_zeros_are_in_their_place_and_what_is_not_finite_is_left_out():
    values = np.concatenate([np.zeros(60), -np.ones(20), np.ones(20), [np.nan] * 500, [np.inf] * 500])
    assert quantiles_of([values], [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]).tolist() == [[-1, -1, 0, 0, 0, 1, 1]]


def test_the_least_and_the_greatest_are_exact_and_nothing_lies_beyond_them():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n) for n in (1, 2, 3, 1000)]
    found = quantiles_of(arrays, [0.0, 1e-5, 1 - 1e-5, 1.0])
    assert found[:, [0, 3]].tolist() == [[array.min(), array.max()] for array in arrays]
    assert (np.diff(found) >= 0).all()
    assert quantiles_of([np.array([-LARGEST, LARGEST])], [0.0, 0.5, 1.0]).tolist() == [[-LARGEST, 0.0, LARGEST]]


def test_where_a_sample_saw_only_zeros_quantiles_are_zero_between_the_exact_ends():
    values = np.zeros(1000)
    values[[1, 3]] = -2.0, 3.0
    rows = of_array(values)[None]
    found = quantiles(histograms_of([values[::10]]), rows, [0.0, 0.01, 0.5, 0.99, 1.0])
    assert found.tolist() == [[-2.0, 0.0, 0.0, 0.0, 3.0]]
    # One that saw only NaN says nothing of what is finite.
    values[10:] = np.nan
    values[:10] = 7.0
    assert np.isnan(quantiles(histograms_of([values[10:]]), of_array(values)[None], [0.5])).all()


def test_quantiles_of_many_rows_are_those_of_each():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(n) * 10.0**n for n in (1, 2, 3, 100)]
    arrays += [np.zeros(3), np.array([]), np.array([np.nan]), np.full(9, 1000.0), -np.ones(4)]
    together = quantiles_of(arrays, [0.0, 0.3, 1.0])
    for row, array in zip(together, arrays, strict=True):
        np.testing.assert_allclose(row, quantiles_of([array], [0.0, 0.3, 1.0])[0], rtol=1e-12)
    assert together[0].tolist() == pytest.approx([arrays[0][0]] * 3)
    assert together[4].tolist() == [0, 0, 0]
    assert np.isnan(together[5:7]).all()
    assert together[7].tolist() == [1000.0] * 3
    assert together[8].tolist() == [-1.0] * 3


def test_a_sampled_histogram_is_weighed_by_the_exact_number_of_nonzero_elements():
    rng = np.random.default_rng(0)
    values = np.concatenate([np.zeros(30_000), rng.standard_normal(10_000)])
    sampled = histograms_of([values[::10]])
    found = quantiles(sampled, of_array(values)[None], [0.05, 0.5, 0.95])[0]
    exact = np.quantile(values, [0.05, 0.5, 0.95])
    assert found[1] == 0.0
    assert np.abs(found - exact).max() < 0.1


def test_without_a_histogram_there_are_no_quantiles():
    rows = np.array([of_array([1.0, 2.0]), of_array([0.0, 0.0])])
    found = quantiles(Histograms.none(2), rows, 0.5)
    assert np.isnan(found[0, 0])
    assert found[1, 0] == 0.0
    assert quantiles(Histograms.none(0), rows[:0], [0.5, 0.6]).shape == (0, 2)


def test_quantiles_outside_zero_to_one_are_refused():
    with pytest.raises(InvalidValueError, match="from 0 to 1"):
        quantiles(Histograms.none(1), of_array([1.0])[None], [0.5, 50])
    with pytest.raises(InvalidValueError, match="do not match"):
        quantiles(Histograms.none(2), of_array([1.0])[None], 0.5)
