"""The commands of examples/lstm/README.md give the verdicts that it shows, up to numbers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from watchglass import open_run
from watchglass.diagnose import verdict

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("preloaded_python")]


@pytest.fixture
def example(repository: Path) -> Path:
    return repository / "examples" / "lstm"


def without_numbers(text: str) -> str:
    """The words of a text: numbers, and thus where lines end, depend on the machine."""
    return " ".join(re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", text).split())


def run(example: Path, command: str) -> str:
    """Output and errors of a command of the page, in the working directory."""
    words = [str(example / word) if word == "train.py" else word for word in shlex.split(command)[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "watchglass", *words],
        env={**os.environ, "WATCHGLASS_STRICT": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_script_says_nothing_of_watchglass(example: Path) -> None:
    assert "watchglass" not in (example / "train.py").read_text(encoding="utf-8").lower()


def test_the_commands_of_the_page_give_its_verdicts(example: Path, in_tmp_path: Path) -> None:
    page = (example / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n\$ (watchglass run [^\n]*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    for command, output in shown:
        given = without_numbers(run(example, command))
        for part in re.split(r"^ *\.\.\.$", output, flags=re.MULTILINE):
            assert without_numbers(part) in given
    broken = verdict(open_run(in_tmp_path / "runs" / "broken")).diagnoses[0]
    assert "variance (Variance) turned finite inputs" in broken.headline
    assert any("clip_grad_norm_" in sentence or "Clip the gradient norm" in sentence for sentence in broken.what_to_try)
    assert not verdict(open_run(in_tmp_path / "runs" / "clipped")).diagnoses
