"""The commands of examples/llm/README.md give the verdicts that it shows, up to numbers."""

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

#: By run, the rule that finds its fault; the findings of the healthy one are none.
FAULTS = {
    "exploding": "ExplodingTensor",
    "vanishing": "VanishingGradient",
    "overfitting": "Overfit",
    "underfitting": "StaysVague",
    "healthy": None,
}


@pytest.fixture
def example(repository: Path) -> Path:
    return repository / "examples" / "llm"


def shown(example: Path) -> dict[str, tuple[str, str]]:
    """Command and output by name of the run, as the page shows them."""
    page = (example / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```text\n\$ (watchglass run [^\n]*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return {re.findall(r"--run runs/(\w+)", command)[0]: (command, output) for command, output in commands}


def without_numbers(text: str) -> str:
    """The words of a text: numbers, and thus where lines end, depend on the machine."""
    return " ".join(re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", text).split())


def run(example: Path, command: str) -> str:
    """Output and errors of a command of the page, in the working directory."""
    words = [re.sub(r"(train|stays_vague)\.py", rf"{example}/\g<0>", word) for word in shlex.split(command)[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "watchglass", *words],
        env={**os.environ, "WATCHGLASS_STRICT": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_script_says_nothing_of_watchglass(example: Path) -> None:
    assert "watchglass" not in (example / "train.py").read_text(encoding="utf-8").lower()


def test_the_page_has_a_command_for_each_run(example: Path) -> None:
    assert set(shown(example)) == set(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_the_command_of_the_page_gives_its_verdict(example: Path, in_tmp_path: Path, name: str) -> None:
    command, output = shown(example)[name]
    given = without_numbers(run(example, command))
    assert "Warning:" not in given
    for part in re.split(r"^ *\.\.\.$", output, flags=re.MULTILINE):
        assert without_numbers(part) in given
    found = {finding.rule for finding in verdict(open_run(in_tmp_path / "runs" / name)).findings}
    assert (found == set()) if FAULTS[name] is None else (FAULTS[name] in found)
