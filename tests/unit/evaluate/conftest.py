"""What tests of many runs have in common."""

from __future__ import annotations

import pytest

from evaluators.fleets import Heard


@pytest.fixture
def heard() -> Heard:
    """An audience that remembers."""
    return Heard()
