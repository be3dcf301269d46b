"""The settings of what is written for TensorBoard: a folder alone, or all of them; refused before a run begins."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path
from typing import Any

import pytest

from watchglass.cli.capture_options import capture_config, given_settings
from watchglass.config import ExporterConfig, SessionConfig, TensorBoardConfig, tensorboard
from watchglass.errors import InvalidValueError


def options(folder: str | None) -> dict[str, Any]:
    return given_settings(collections=None, save_raw=None, overhead_budget=None, tensorboard=folder)


def test_a_folder_alone_is_enough(in_tmp_path: Path) -> None:
    expected = TensorBoardConfig(str(in_tmp_path / "tb"))
    for given in ("tb", Path("tb"), {"folder": "tb"}, TensorBoardConfig("tb")):
        assert SessionConfig("run", tensorboard=given).tensorboard == expected  # type: ignore[arg-type]
    assert SessionConfig("run").tensorboard is None


def test_a_training_process_gets_all_of_it(in_tmp_path: Path) -> None:
    config = SessionConfig("run", tensorboard=TensorBoardConfig("tb", histograms=False, interval_s=20))
    assert SessionConfig.from_env(config.to_env()).tensorboard == config.tensorboard  # type: ignore[union-attr]
    assert config.tensorboard is not None
    process = ExporterConfig(str(in_tmp_path / "run"), config.tensorboard, "died")
    assert ExporterConfig.from_line(process.to_line()) == process


def test_the_command_line_overrides_the_file_and_the_script(in_tmp_path: Path) -> None:
    Path("watchglass.toml").write_text('[tensorboard]\nfolder = "a"\nhistograms = false\n')
    _, config = capture_config(None, options(None))
    assert config.tensorboard == TensorBoardConfig("a", histograms=False)
    _, config = capture_config(None, options("b"))
    assert config.tensorboard == TensorBoardConfig("b", histograms=False)
    assert config.with_settings({"tensorboard": "c"}).tensorboard == config.tensorboard
    Path("watchglass.toml").write_text('tensorboard = "d"\n')
    _, config = capture_config(None, options(None))
    assert config.with_settings({"tensorboard": None}).tensorboard is None
    assert config.tensorboard == TensorBoardConfig("d")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "--tensorboard must be a folder but got ''"), ("s3://b/tb", "--tensorboard must be a folder but got 's3:")],
)
def test_what_is_no_folder_is_refused(in_tmp_path: Path, folder: str, expected: str) -> None:
    with pytest.raises(InvalidValueError, match=expected):
        capture_config(None, options(folder))


@pytest.mark.parametrize("found", [None, importlib.machinery.ModuleSpec("tensorboard", None)])
def test_a_missing_package_is_named_also_beside_a_folder_of_its_name(
    in_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Any
) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: found)
    with pytest.raises(
        InvalidValueError, match=r"--tensorboard must be omitted, because tensorboard is not installed: "
    ):
        capture_config(None, options("tb"))
