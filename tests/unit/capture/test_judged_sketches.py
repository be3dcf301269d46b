"""Sketches of what a loss judges, of outputs that a recorder's thread gets from a run that diverges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from watchglass.capture.arrays import Elements
from watchglass.capture.facts.input_sketches import Sample
from watchglass.capture.facts.judged_sketches import LossRows


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300, math.nan])
@pytest.mark.parametrize("function", ["mse_loss", "binary_cross_entropy_with_logits"])
@pytest.mark.parametrize("sign", [0, 1, -1])
def test_no_number_of_a_run_makes_a_warning(value: float, function: str, sign: int) -> None:
    """Warnings are errors in tests; in a run they would stand between the lines of the script."""
    given = Sample("0", (8, 4), "float64", 32, Elements(np.full((8, 4), value)), rows=8)
    judged = LossRows(function, 1, False, (8, 4), (8, 4), 4, given, given, sign=sign)
    output, target = judged.output_sketch(), judged.target_sketch()
    assert output is not None
    assert output.nonfinite == float(not math.isfinite(value))
    assert target is not None
    assert target.rows == 8
