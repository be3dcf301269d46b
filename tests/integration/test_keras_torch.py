"""Keras on PyTorch."""

from __future__ import annotations

import pytest

from keras_suite import KerasSuite

pytestmark = [
    pytest.mark.slow, pytest.mark.own_process,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]  # fmt: skip


class TestKeras(KerasSuite):
    backend = "torch"
