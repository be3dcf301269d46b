"""The process that follows a run for TensorBoard says once what is wrong, and goes on when it is mended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from watchglass.config import ExporterConfig, TensorBoardConfig
from watchglass.errors import StoreError
from watchglass.testing import Step, build_run
from watchglass.trackers import process, tensorboard_export


@pytest.fixture
def config(tmp_path: Path) -> ExporterConfig:
    path = build_run(tmp_path / "run", [Step({"loss": 1.0})] * 3)
    return ExporterConfig(path, TensorBoardConfig(str(tmp_path / "tb")))


def test_a_full_disk_is_said_once_and_later_written_to_new_files(
    config: ExporterConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follower = process._Follower(config)
    written = tensorboard_export.TensorBoardExport.write_new

    def full(self: object, *, ended: bool = False) -> None:
        raise StoreError("cannot write tb: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(tensorboard_export.TensorBoardExport, "write_new", full)
        for _ in range(3):
            follower.write(ended=False)
    said = capsys.readouterr().err
    assert said.count("No space left on device") == 1
    assert f"to write it later: watchglass export {config.run} --to tensorboard -o" in said
    assert tensorboard_export.TensorBoardExport.write_new is written
    follower.write(ended=True)
    follower.close()
    folder = Path(config.settings.folder) / "run"
    assert json.loads((folder / "watchglass.json").read_text())["done"]["train"] == [0, 2]


def test_an_unexpected_error_is_said_in_one_line(
    config: ExporterConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Line:
        def __init__(self, descriptor: int) -> None:
            assert descriptor == 0

        def first_line(self) -> bytes:
            return config.to_line().encode()

        def goes_on(self, seconds: float) -> bool:
            return True

    def broken(self: object, *, ended: bool) -> None:
        raise ZeroDivisionError("a\nbug")

    monkeypatch.setattr(process, "Lifeline", Line)
    monkeypatch.setattr(process, "begin_beside", lambda: None)
    monkeypatch.setattr(process._Follower, "write", broken)
    assert process.main([]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("watchglass: warning: no more data for TensorBoard: ZeroDivisionError: a")
