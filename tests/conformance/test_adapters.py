"""Every adapter passes the conformance suite, and so does a loop that no adapter knows."""

from __future__ import annotations

import pytest

from adapter_cases import AroundPyTorchCase, NumPyCase, PyTorchCase, XGBoostCase
from framework_around_pytorch import OuterLoop
from watchglass.capture import FRAMEWORKS, Entry
from watchglass.testing import AdapterSuite


class TestPyTorch(AdapterSuite):
    case = PyTorchCase


class TestAnyLoop(AdapterSuite):
    case = NumPyCase


class TestXGBoost(AdapterSuite):
    case = XGBoostCase


class TestAroundPyTorch(AdapterSuite):
    case = AroundPyTorchCase

    @pytest.fixture(autouse=True)
    def _in_the_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(FRAMEWORKS, OuterLoop.name, Entry("framework_around_pytorch:OuterLoop", over=("torch",)))
