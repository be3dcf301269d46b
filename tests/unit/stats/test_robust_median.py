"""The median that rules take is NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from watchglass.errors import InvalidValueError
from watchglass.stats import median


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=70))
def test_it_is_numpys_bit_by_bit(values: list[float]) -> None:
    expected = float(np.median(values))
    assert median(values) == expected
    assert median(np.array(values)) == expected


def test_there_is_none_of_nothing() -> None:
    with pytest.raises(InvalidValueError, match="at least 1 value"):
        median([])
