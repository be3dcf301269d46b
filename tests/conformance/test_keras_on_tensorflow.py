"""The adapter of Keras on TensorFlow passes the conformance suite, in a process of its own."""

from __future__ import annotations

import os

import pytest

from watchglass.testing import AdapterSuite

pytestmark = [pytest.mark.own_process, pytest.mark.slow]


class TestKeras(AdapterSuite):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _with_the_framework(cls) -> None:
        os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
        pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
        pytest.importorskip("keras", reason="Keras is not installed")
        from keras_training import KerasCase

        cls.case = KerasCase
