"""Scripts of the kinds that people write for Keras, TensorFlow and JAX: equal losses and weights, bare and watched."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from frameworks.one_core import ONE_CORE
from scripts.comparing import compare
from scripts.expectations import expectation

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize(
    "script", sorted(SCRIPTS.glob("*/*.py")), ids=lambda path: str(path.relative_to(SCRIPTS).with_suffix(""))
)
def test_a_watched_script_prints_the_digest_of_the_weights_that_it_has_alone(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = script.parent.name
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    for name, value in ONE_CORE.items():
        monkeypatch.setenv(name, value)
    # Not forked from a process that has imported it: its threads would be missing.
    compare(script, expectation(script), Path(sys.executable), tmp_path)
