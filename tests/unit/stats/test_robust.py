"""Baselines that outliers do not move."""

import math

import numpy as np
import pytest

from watchglass.stats import RollingBaseline


def filled(values, kind=RollingBaseline):
    baseline = kind()
    for value in values:
        baseline.update(value)
    return baseline


class Wide(RollingBaseline):
    window = 20_001


def test_nothing_is_said_during_warm_up():
    baseline = filled([1.0] * 15)
    assert (baseline.z(1.0), baseline.median, baseline.spread) == (None, None, None)
    baseline.update(1.0)
    assert baseline.z(1.0) == 0.0


def test_z_counts_deviations_of_logarithms():
    logs = np.random.default_rng(0).normal(2, 0.5, size=20_001)
    baseline = filled(10**logs, Wide)
    assert baseline.median == pytest.approx(100, rel=0.05)
    assert baseline.spread == pytest.approx(0.5, rel=0.05)
    assert baseline.z(10**3.5) == pytest.approx(3, rel=0.05)


def test_outliers_do_not_hide_themselves():
    baseline = filled([1.0, 1.1, 0.9, 1.05] * 4 + [1e9] * 5)
    assert baseline.z(1e9) > 50


def test_a_steady_series_makes_no_alarm_of_rounding():
    assert abs(filled([1.0] * 64).z(1.02)) < 1


def test_only_the_window_counts():
    baseline = filled([1.0] * 64 + [100.0] * 64)
    assert baseline.median == pytest.approx(100)
    assert len(baseline) == 64


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_has_no_logarithm_stays_outside(value):
    baseline = filled([1.0] * 16)
    baseline.update(value)
    assert len(baseline) == 16
    assert baseline.z(value) is None
