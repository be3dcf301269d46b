"""Bitmaps over units."""

import numpy as np
import pytest

from watchglass.errors import InvalidValueError
from watchglass.stats import and_units, pack_units, unpack_units


@pytest.mark.parametrize("units", [0, 1, 7, 8, 9, 1000])
def test_bitmaps_go_round(units):
    flags = np.random.default_rng(units).random(units) < 0.5
    bits = pack_units(flags)
    assert len(bits) == (units + 7) // 8
    assert unpack_units(bits, units).tolist() == flags.tolist()


def test_the_first_unit_is_the_lowest_bit():
    assert pack_units([True, False, False]) == b"\x01"


def test_inactive_over_two_calls_is_inactive_in_each():
    assert and_units(pack_units([1, 1, 0]), pack_units([1, 0, 1])) == pack_units([1, 0, 0])


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(InvalidValueError, match="2 bytes"):
        unpack_units(b"\x00", 9)
    with pytest.raises(InvalidValueError, match="same length"):
        and_units(b"\x00", b"\x00\x00")
