"""TensorBoard reads and writes with its own file functions."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _alone(tensorboard_alone: None) -> None:
    pass
