"""docs/notebook.md, from top to bottom, on the run that its own command writes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from watchglass.view import Plots

pytestmark = pytest.mark.usefixtures("preloaded_python")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "notebook.md").read_text()


@pytest.mark.slow
def test_every_example_of_the_page_runs(
    page: str, repository: Path, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = (line.removeprefix("$ ") for line in re.findall(r"^\$ watchglass run .*$", page, re.MULTILINE))
    script = str(repository / "examples" / "notebook" / "train.py")
    words = [script if word == "train.py" else word for word in shlex.split(command)[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "watchglass", *words], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        exec(compile(block, f"docs/notebook.md, block {number}", "exec"), names)  # noqa: S102 - the page's own
    printed = capsys.readouterr().out.splitlines()
    for shown in re.findall(r"print\(.*?\)  # (.*)$", page, re.MULTILINE):
        assert shown in printed


def test_every_figure_is_in_the_table(page: str) -> None:
    shown = set(re.findall(r"^\| `run\.plot\.(\w+)\(", page, re.MULTILINE))
    assert shown == {name for name in vars(Plots) if not name.startswith("_")}
