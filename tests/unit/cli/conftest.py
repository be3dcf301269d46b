"""Runs as the real writer writes them, and the command line called in this process."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from command_line import Said, Watchglass, training
from watchglass.cli import main
from watchglass.config import TIMING, Timing
from watchglass.launch import Job, LaunchOutcome
from watchglass.testing import build_run


class Terminal(io.StringIO):
    """What a user types on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def watchglass(capsys: pytest.CaptureFixture[str], in_tmp_path: Path) -> Watchglass:
    def call(
        *words: str | Path, env: Mapping[str, str] | None = None, typed: str | None = None, timing: Timing = TIMING
    ) -> Said:
        with patch.dict(os.environ, env or {}), nullcontext() if typed is None else patch("sys.stdin", Terminal(typed)):
            status = main([str(word) for word in words], timing)
        out, err = capsys.readouterr()
        return Said(status, out, err)

    return call


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """Jobs that would have been launched."""
    launched: list[Job] = []

    def launch(job: Job, *, started: Any, **_: Any) -> LaunchOutcome:
        job.check()
        launched.append(job)
        started("runs/x", 0)
        return LaunchOutcome(0, "runs/x", 0, leads=False, evaluated=True, seconds=0.0)

    monkeypatch.setattr("watchglass.launch.launch", launch)
    (tmp_path / "train.py").write_text("")
    return launched


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return Path(build_run(tmp_path / "healthy", training(), modules={"fc": "Linear"}))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return Path(build_run(tmp_path / "broken", training(broken_at=80), modules={"fc": "Linear"}))


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return Path(build_run(tmp_path / "killed", training(), modules={"fc": "Linear"}, status=None))
