"""Runs as the real writer writes them, and the command line called in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Said, Watchglass, training
from watchglass.cli import main
from watchglass.testing import build_run


@pytest.fixture
def watchglass(capsys: pytest.CaptureFixture[str], in_tmp_path: Path) -> Watchglass:
    def call(*words: str | Path) -> Said:
        status = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Said(status, out, err)

    return call


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return Path(build_run(tmp_path / "healthy", training(), modules={"fc": "Linear"}))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return Path(build_run(tmp_path / "broken", training(broken_at=80), modules={"fc": "Linear"}))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return Path(build_run(tmp_path / "killed", training(), modules={"fc": "Linear"}, status=None))
