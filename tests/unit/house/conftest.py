"""Tests of the project itself, which may start processes: other interpreters, and what must be found to leak."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_process_starts() -> None:
    """No check."""
