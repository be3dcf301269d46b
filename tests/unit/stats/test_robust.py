"""Baselines that outliers do not move."""

import json
import math

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.stats import RollingBaseline


def filled(values, **sizes):
    baseline = RollingBaseline(**sizes)
    for value in values:
        baseline.update(value)
    return baseline


def test_nothing_is_said_during_warm_up():
    baseline = filled([1.0] * 15)
    assert (baseline.z(1.0), baseline.median, baseline.spread) == (None, None, None)
    baseline.update(1.0)
    assert baseline.z(1.0) == 0.0


def test_z_counts_deviations_of_logarithms():
    logs = np.random.default_rng(0).normal(2, 0.5, size=20_001)
    baseline = filled(10**logs, window=20_001)
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


def test_the_state_goes_round_through_json():
    baseline = filled(np.random.default_rng(0).random(100), window=32, warmup=4)
    again = RollingBaseline.from_json(json.loads(json.dumps(baseline.to_json())))
    for one in (baseline, again):
        one.update(0.3)
    assert again.z(0.7) == baseline.z(0.7)


@pytest.mark.parametrize(("window", "warmup"), [(0, 1), (8, 9), (8, 0)])
def test_sizes_out_of_range_are_refused(window, warmup):
    with pytest.raises(InvalidValueError, match="warmup"):
        RollingBaseline(window, warmup)
