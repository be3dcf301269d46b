"""Samples of large tensors: which elements a histogram looks at, and that what it says of the others is unbiased."""

from __future__ import annotations

import numpy as np
import pytest

from devices.kernel_calls import summaries
from watchglass.stats import histograms_of, native
from watchglass.stats.elements import RUN, SAMPLED_ABOVE, STRATA, sample


def test_small_tensors_are_not_sampled() -> None:
    assert sample(SAMPLED_ABOVE, 0) is None
    array = np.random.default_rng(0).standard_normal(SAMPLED_ABOVE).astype(np.float32)
    assert summaries([array], "float32")[1].seen.tolist() == [SAMPLED_ABOVE]


@pytest.mark.parametrize("count", [65_537, 66_000, 100_000, 131_073, 1_000_000, 50_000_001])
def test_about_16384_elements_are_examined_in_runs_that_begin_at_multiples(count: int) -> None:
    found = sample(count, 7)
    assert found is not None
    assert STRATA * RUN * 0.99 <= len(found) <= STRATA * RUN * 1.27
    assert (np.diff(found) > 0).all()
    assert found[-1] < count
    runs = np.unique(found // RUN)
    assert len(found) == sum(min(RUN, count - run * RUN) for run in runs.tolist())


@pytest.mark.parametrize("count", [65_537, 70_000, 140_000])
def test_every_element_is_as_likely_as_any_other(count: int) -> None:
    draws = 2000
    seen = np.zeros(count)
    for seed in range(draws):
        seen[sample(count, seed)] += 1
    rate = 1 / (-(-count // RUN) // STRATA)
    deviations = (seen[::RUN] - draws * rate) / np.sqrt(draws * rate * (1 - rate))
    # Elements of one run stand and fall together. Runs of a stratum exclude each other, which only makes it smoother.
    assert (seen.reshape(-1)[: count // RUN * RUN].reshape(-1, RUN) == seen[: count // RUN * RUN : RUN, None]).all()
    assert np.abs(deviations).max() < 5.5  # of thousands of normal ones
    assert abs(deviations.mean()) < 0.1
    assert np.square(deviations).mean() < 1.1
    assert abs(deviations[-1]) < 4, "the last run, which may be short"


def test_estimates_are_unbiased_also_where_values_repeat_with_the_rows_of_a_matrix() -> None:
    generator = np.random.default_rng(0)
    # The scale of a column is its own, and so is that of a row: the worst case for a fixed stride.
    matrix = generator.standard_normal((300, 512)) * 2.0 ** generator.integers(-8, 8, 512)
    matrix *= 2.0 ** generator.integers(-4, 4, (300, 1))
    array = matrix.astype(np.float32).ravel()
    exact = histograms_of([array.astype(np.float64)])
    seeds = 400
    estimates = np.zeros((seeds, len(exact.keys)))
    for seed in range(seeds):
        _, histograms = summaries([array], "float32", seed=seed)
        places = np.searchsorted(exact.keys, histograms.keys)
        np.testing.assert_array_equal(exact.keys[places], histograms.keys)
        estimates[seed, places] = histograms.counts * (array.size / histograms.seen[0])
    error = estimates.mean(0) - exact.counts
    deviation = estimates.std(0, ddof=1) / np.sqrt(seeds)
    common = exact.counts > 2000
    assert common.sum() > 20
    z = error[common] / deviation[common]
    assert np.abs(z).max() < 4.5
    assert abs(z.mean()) < 1
    # And each is good enough to be looked at: a bin of one percent is right within a tenth.
    assert (estimates.std(0)[common] / exact.counts[common]).max() < 0.15


def test_zeros_and_what_is_not_finite_are_exact_although_the_histogram_is_sampled() -> None:
    array = np.ones(1_000_000, np.float32)
    array[123_456], array[5], array[999_999] = 0.0, np.nan, -np.inf
    rows, histograms = native.summaries([array.ctypes.data], [array.size], [0])
    assert rows[0, :5].tolist() == [1_000_000, 1, 0, 1, 1]
    assert histograms is not None
    assert histograms.seen[0] < 20_000
