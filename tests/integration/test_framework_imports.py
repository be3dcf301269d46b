"""A process is watched once a framework has been imported in it, whatever has looked for the framework before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from looks import IMPORTS, LOOKS, script
from watchglass.capture import FRAMEWORKS
from watchglass.launch.launcher import BOOTSTRAP

pytestmark = pytest.mark.slow

#: Stands for watchglass in the process: says which framework it is notified of, which can be used by then.
SESSION = """
import sys
def on_framework_imported(name, begun_s):
    print("notified of", name, sys.modules[name].finished)
def on_failure(first):
    pass
"""


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of each framework, for which a package is there; and a session to notify."""
    name: str = request.param
    for package, text in (
        (name, f"__version__ = '1'\nimport {name}.part\nfinished = True\nprint('executed')\n"),
        ("watchglass", ""),
        ("watchglass/session", SESSION),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    (tmp_path / name / "part.py").write_text("")
    return name


def said(folder: Path, text: str, frameworks: str) -> list[str]:
    """What a script with the bootstrap says."""
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join((BOOTSTRAP, str(folder))),
        "WATCHGLASS_SESSION": "{}", "WATCHGLASS_FRAMEWORKS": frameworks,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_is_no_import_and_a_later_import_counts(tmp_path: Path, framework: str, look: str) -> None:
    text = 2 * script(LOOKS[look], framework) + (
        f"print('looked')\nimport {framework}, sys\n"
        "print(sum(type(each).__name__ == '_FrameworkFinder' for each in sys.meta_path), 'finders')\n"
    )
    lines = ["looked", "executed", f"notified of {framework} True", "1 finders"]
    assert said(tmp_path, text, " ".join(FRAMEWORKS)) == lines


@pytest.mark.parametrize("way", IMPORTS)
def test_every_executed_import_counts_once(tmp_path: Path, framework: str, way: str) -> None:
    text = script(IMPORTS[way], framework) + (
        f"import importlib, sys, {framework}\nimportlib.reload({framework})\n"
        "print(sum(type(each).__name__ == '_FrameworkFinder' for each in sys.meta_path), 'finders')\n"
    )
    lines = said(tmp_path, text, framework)
    assert lines.count(f"notified of {framework} True") == 1
    assert set(lines) == {"executed", f"notified of {framework} True", "0 finders"}


def test_any_number_of_looks(tmp_path: Path, framework: str) -> None:
    text = "".join(script(look, framework) for look in LOOKS.values()) + script(IMPORTS["lazy module"], framework)
    assert said(tmp_path, text, framework) == ["executed", f"notified of {framework} True"]
