"""TensorBoard reads and writes with its own file functions, also where TensorFlow is installed: that takes seconds."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))
