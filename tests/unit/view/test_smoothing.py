"""Smoothing in steps: no bias at the beginning, and nothing carried over a gap or a seam."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.run import open_run
from watchglass.testing import build_run
from watchglass.view.figures import loss_figure
from watchglass.view.smoothing import smoothed


def test_weights_fall_with_the_distance_in_steps() -> None:
    steps, values = np.array([0, 1, 5]), np.array([4.0, 2.0, 1.0])
    found = smoothed((steps, values), 2.0)[1]
    assert found[0] == 4.0  # no bias towards zero
    assert found[1] == pytest.approx((2 + 4 * math.exp(-0.5)) / (1 + math.exp(-0.5)))
    weights = np.exp((steps - 5) / 2.0)
    assert found[2] == pytest.approx(float((weights * values).sum() / weights.sum()))


def test_a_constant_stays() -> None:
    np.testing.assert_allclose(smoothed((np.arange(50), np.full(50, 0.3)), 7.0)[1], 0.3)


@pytest.mark.parametrize("gap", [math.nan, math.inf])
def test_nothing_is_carried_over_a_value_that_is_not_finite(gap: float) -> None:
    found = smoothed((np.arange(4), np.array([100.0, gap, 1.0, 2.0])), 10.0)[1]
    assert not np.isfinite(found[1])
    assert found[2] == 1.0


def test_nothing_is_carried_over_a_seam() -> None:
    found = smoothed((np.arange(4), np.array([100.0, 100.0, 1.0, 1.0])), 10.0, seams=[2, 9])[1]
    np.testing.assert_allclose(found, [100, 100, 1, 1])


@pytest.mark.parametrize("span", [-1.0, 0.0, math.nan, math.inf])
def test_a_span_that_is_no_number_of_steps_is_refused(span: float) -> None:
    with pytest.raises(InvalidValueError, match="smooth must be a number of steps above 0"):
        smoothed((np.arange(2), np.ones(2)), span)


def test_the_raw_line_is_behind_and_evaluations_stay(tmp_path: Path) -> None:
    losses = [1.0, 0.0, 1.0, 0.0]
    steps = [{"scalars": {"loss": loss}} for loss in losses] + [{"scalars": {"loss": 5.0}, "mode": "eval"}]
    figure = loss_figure(open_run(build_run(tmp_path / "run", steps)), smooth=2.0)
    assert figure is not None
    raw, smooth, evaluation = figure.lines
    assert (raw.faint, raw.y.tolist()) == (True, losses)
    assert (smooth.faint, smooth.name) == (False, "training")
    np.testing.assert_allclose(smooth.y, smoothed((np.arange(4), np.array(losses)), 2.0)[1])
    assert evaluation.y.tolist() == [5.0]
