"""docs/analysis.md, from top to bottom, on the runs that its own commands write."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("preloaded_python")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "analysis.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_example_of_the_page_runs(
    page: str, repository: Path, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [line.removeprefix("$ ") for line in re.findall(r"^\$ watchglass run .*$", page, re.MULTILINE)]
    assert len(commands) == 2
    script = str(repository / "examples" / "digits" / "train.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in commands:
        words = [script if word == "train.py" else word for word in shlex.split(command)[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "watchglass", *words], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        exec(compile(block, f"docs/analysis.md, block {number}", "exec"), names)  # noqa: S102 - the page's own
    printed = capsys.readouterr().out.splitlines()
    for shown in re.findall(r"print\(.*?\)  # (.*)$", page, re.MULTILINE):
        assert shown in printed


def test_every_call_of_the_api_is_shown(page: str) -> None:
    from watchglass.run import RecordedStep, Run, Runs, Table, Tensor

    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    shown = set(re.findall(r"\.(\w+)", code))
    for kind in (Run, Tensor, Table, RecordedStep, Runs):
        public = {name for name, member in vars(kind).items() if not name.startswith("_") and callable(member)}
        public |= {name for name, member in vars(kind).items() if isinstance(member, property) and name[0] != "_"}
        assert sorted(public - shown - {"of"}) == [], f"of {kind.__name__}"
