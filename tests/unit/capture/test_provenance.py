"""Where the code of a run comes from: read from files of git, without git, and from what is loaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from watchglass.capture.process.provenance import checked_out, script_folder, versions


@pytest.mark.parametrize(
    "files",
    [{}, {"HEAD": "ref: refs/heads/main"}, {"HEAD": "nonsense"}, {"HEAD": "\xff"}, {"HEAD": "0" * 5000}, {"HEAD": ""}],
)
def test_what_git_would_not_understand_is_unknown(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / ".git").mkdir()
    for name, text in files.items():
        (tmp_path / ".git" / name).write_bytes(text.encode("latin-1"))
    assert checked_out(tmp_path) == {}


def test_no_repository_is_no_commit(tmp_path: Path) -> None:
    assert checked_out(tmp_path) == {}
    assert checked_out(tmp_path / "missing") == {}


def test_releases_are_read_from_what_is_loaded_and_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Computing(ModuleType):
        def __getattribute__(self, name: str) -> str:  # as those of importlib.util.LazyLoader
            raise AssertionError(f"{name} was computed")

    stated = ModuleType("a_package")
    stated.__version__ = "1.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_package", stated)
    monkeypatch.setitem(sys.modules, "computing", Computing("computing"))
    found = versions(everything=True)
    assert next(iter(found)) == "python"
    assert found["a_package"] == "1.2"
    assert "computing" not in found
    assert "a_package" not in versions(everything=False)
    assert "json" not in found


def test_a_notebook_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python3/ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert script_folder() == str(tmp_path)


def test_a_script_is_in_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__file__ = "train.py"
    monkeypatch.setattr(sys, "argv", ["project/train.py"])
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert script_folder() == "project"
