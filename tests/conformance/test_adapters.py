"""Every adapter passes the conformance suite, and so does a loop that no adapter knows."""

from __future__ import annotations

from adapter_cases import NumPyCase, PyTorchCase, XGBoostCase
from watchglass.testing import AdapterSuite


class TestPyTorch(AdapterSuite):
    case = PyTorchCase


class TestAnyLoop(AdapterSuite):
    case = NumPyCase


class TestXGBoost(AdapterSuite):
    case = XGBoostCase
