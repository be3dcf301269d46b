"""What tests of many runs have in common."""

from __future__ import annotations

import pytest

from fleets import Heard, hasten


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """See :func:`fleets.hasten`."""
    hasten(monkeypatch)


@pytest.fixture
def heard() -> Heard:
    """An audience that remembers."""
    return Heard()
