"""The commands on the pages of the examples of Keras, TensorFlow and JAX give the verdicts shown, up to numbers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from frameworks.one_core import ONE_CORE
from watchglass import open_run
from watchglass.diagnose import verdict

pytestmark = pytest.mark.slow

#: The examples: what they import, and the first cause of the broken run.
EXAMPLES = {
    "keras_digits": ("keras", "learning_rate_too_high"),
    "tensorflow_wine": ("tensorflow", "identical_initialization"),
    "jax_digits": ("flax", "poor_initialization_scale"),
}


def without_numbers(text: str) -> str:
    """The words of a text: numbers, and thus where lines end, depend on the machine."""
    return " ".join(re.sub(r"-?\d[\d,.]*(e[+-]?\d+)?", "#", text).split())


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_script_says_nothing_of_watchglass(repository: Path, name: str) -> None:
    assert "watchglass" not in (repository / "examples" / name / "train.py").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_commands_of_the_page_give_its_verdicts(repository: Path, in_tmp_path: Path, name: str) -> None:
    framework, cause = EXAMPLES[name]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    example = repository / "examples" / name
    page = (example / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n\$ watchglass (run [^\n]*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    for command, output in shown:
        words = [str(example / word) if word == "train.py" else word for word in shlex.split(command)]
        done = subprocess.run(
            [sys.executable, "-m", "watchglass", *words],
            env={**os.environ, **ONE_CORE, "WATCHGLASS_STRICT": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        given = without_numbers(done.stdout)
        for part in re.split(r"^ *\.\.\.$", output, flags=re.MULTILINE):
            assert without_numbers(part) in given
    broken = verdict(open_run(in_tmp_path / "runs" / "broken")).diagnoses
    assert broken[0].causes[0].cause.id == cause
    assert not verdict(open_run(in_tmp_path / "runs" / "healthy")).diagnoses
