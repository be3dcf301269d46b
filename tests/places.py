"""Fixtures of the process that tests run in: its working directory, and the environment that a launcher gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from watchglass.config import SessionConfig


@pytest.fixture
def empty_home(in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory that the search for configuration files does not leave."""
    monkeypatch.setenv("HOME", str(in_tmp_path))
    return in_tmp_path


@pytest.fixture
def launched_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[SessionConfig], None]:
    """Makes this process one that a launcher has started, with a configuration."""

    def launch(config: SessionConfig) -> None:
        for name, value in config.to_env().items():
            monkeypatch.setenv(name, value)

    return launch
