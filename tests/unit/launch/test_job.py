"""A job is refused before anything is made for it."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from watchglass.config import SessionConfig
from watchglass.errors import LaunchError, MissingFileError
from watchglass.launch import Job


@pytest.fixture(autouse=True)
def folder(in_tmp_path: Path) -> Path:
    return in_tmp_path


def test_the_command_is_pythons_own(folder: Path) -> None:
    assert Job("train.py", ("-x", "1")).words == ["train.py", "-x", "1"]
    assert Job("pkg.train", ("-x",), is_module=True).words == ["-m", "pkg.train", "-x"]
    assert Job("train.py").command[0] == sys.executable


@pytest.mark.parametrize(
    ("job", "stem"),
    [
        (Job("a/train.py"), "train"),
        (Job("pkg.sub.train", is_module=True), "train"),
        (Job("app"), "app"),
        (Job("x.pyc"), "x"),
    ],
)
def test_its_short_name(job: Job, stem: str) -> None:
    assert job.stem == stem


def test_a_missing_script_is_named_with_its_neighbour(folder: Path) -> None:
    (folder / "train.py").write_text("")
    with pytest.raises(
        MissingFileError, match=r'^script trian\.py does not exist in .*\(did you mean "train\.py"\?\)$'
    ):
        Job("trian.py").check()
    with pytest.raises(MissingFileError, match=r"script nowhere/train\.py does not exist"):
        Job("nowhere/train.py").check()


def test_a_folder_needs_a_main(folder: Path) -> None:
    (folder / "app").mkdir()
    with pytest.raises(LaunchError, match=r"app is a folder without a __main__\.py"):
        Job("app").check()
    (folder / "app" / "__main__.py").write_text("")
    Job("app").check()


def test_an_unreadable_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text("")
    # Said by the system in our stead: to root, who may run these tests, every file is readable.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    with pytest.raises(LaunchError, match="cannot be read"):
        Job("train.py").check()


def test_a_module_is_looked_for_and_not_imported(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("raise AssertionError('imported')")
    Job("pkg.train", is_module=True).check()
    Job("timeit", is_module=True).check()
    with pytest.raises(LaunchError, match="no module named 'nope' was found from"):
        Job("nope.train", is_module=True).check()
    with pytest.raises(LaunchError, match=r"-m needs the dotted name of a module but got '\./train\.py'"):
        Job("./train.py", is_module=True).check()


class Finder:
    """Has one package, as the finder of a package that is installed editable."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == "installed_editable" else None


def test_a_module_is_found_by_every_finder_of_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(folder / "packed.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", "")
    (folder / "namespace").mkdir()
    monkeypatch.syspath_prepend(folder / "packed.zip")
    monkeypatch.setattr(sys, "meta_path", [object(), *sys.meta_path, Finder])
    for module in ("installed_editable.train", "zipped.train", "namespace.train", "sys", "this"):
        Job(module, is_module=True).check()
    with pytest.raises(LaunchError, match="no module named 'nope'"):
        Job("nope", is_module=True).check()


def test_the_session_has_the_place_of_the_launch(folder: Path) -> None:
    session = Job("train.py", capture=SessionConfig("", save_interval=3)).session("runs/x", 2)
    assert (session.run, session.attempt, session.save_interval) == ("runs/x", 2, 3)
