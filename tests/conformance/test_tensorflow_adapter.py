"""The adapter for TensorFlow passes the conformance suite, in a process of its own: TensorFlow stays in it."""

from __future__ import annotations

import importlib.util
import os

import pytest

from watchglass.testing import AdapterSuite

pytestmark = [
    pytest.mark.own_process,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]


class TestTensorFlow(AdapterSuite):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _with_the_framework(cls) -> None:
        os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
        from tensorflow_training import TensorFlowCase

        cls.case = TensorFlowCase
