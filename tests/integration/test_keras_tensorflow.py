"""Keras on tensorflow."""

from __future__ import annotations

import pytest

from keras_suite import KerasSuite

pytestmark = [pytest.mark.slow, pytest.mark.own_process]


class TestKeras(KerasSuite):
    backend = "tensorflow"
