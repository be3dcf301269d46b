"""The pages of docs/frameworks: their scripts run under the launcher, and print what the pages show."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from preloaded import Preloaded

#: All but the table of rules.
PAGES = sorted(
    page for page in (Path(__file__).parents[2] / "docs" / "frameworks").glob("*.md") if page.stem != "rules"
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_shows_what_happens(preloaded: Preloaded, tmp_path: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(code)
    python = preloaded.importing(page.stem)
    (command, *shown) = re.search(r"```console\n\$ (.*?)```", text, re.DOTALL)[1].splitlines()  # type: ignore[index]
    arguments = command.removeprefix("watchglass ").split()
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = _run([str(python), "-m", "watchglass", *arguments], tmp_path, environ)
    printed = done.stdout + done.stderr
    for line in shown:
        assert re.search(rf"^{re.escape(line)}\b", printed, re.MULTILINE), printed
    expected = re.search(r"```text\n(.*?)```", text, re.DOTALL)[1]  # type: ignore[index]
    assert _run([str(python), "read.py"], tmp_path, environ).stdout == expected
    if (tmp_path / "callback.py").exists():
        _run([str(python), "callback.py"], tmp_path, environ)


def _run(command: list[str], folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done
