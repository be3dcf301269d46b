"""Products and correlations are those of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from watchglass.stats import column_correlations, inner_products


def test_inner_products_are_those_of_all_rows() -> None:
    random = np.random.default_rng(0)
    one, other = random.standard_normal((7, 33)), random.standard_normal((5, 33))
    np.testing.assert_allclose(inner_products(one, other), one @ other.T, rtol=1e-12)
    assert inner_products(np.zeros((3, 0)), np.zeros((2, 0))).tolist() == [[0, 0]] * 3
    assert np.isnan(inner_products(np.array([[np.nan, 1.0]]), np.ones((1, 2)))).all()


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_correlations_are_those_of_numpy(offset: float) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((512, 20)) * np.logspace(-8, 8, 20) + offset * np.logspace(-8, 8, 20)
    rows[:, 3] = -2 * rows[:, 4]
    found = column_correlations(rows)
    np.testing.assert_allclose(found, np.corrcoef(rows.T), atol=1e-9)
    assert found[3, 4] == pytest.approx(-1, abs=1e-9)
    assert np.abs(found).max() <= 1
