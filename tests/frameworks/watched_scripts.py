"""Scripts of the kinds that people write for Keras, TensorFlow and JAX: equal losses and weights, bare and watched.

Each framework has its file of tests, so that several processes share them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from frameworks.one_core import ONE_CORE
from scripts.comparing import compare
from scripts.expectations import expectation

SCRIPTS = Path(__file__).parent / "scripts"


def scripts_of(framework: str) -> list[str]:
    """Names of its scripts."""
    return sorted(path.stem for path in (SCRIPTS / framework).glob("*.py"))


def compare_watched(framework: str, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a watched script prints the digest of the weights that it has alone, and what it states."""
    for name, value in ONE_CORE.items():
        monkeypatch.setenv(name, value)
    # Not forked from a process that has imported the framework: its threads would be missing.
    path = SCRIPTS / framework / f"{script}.py"
    compare(path, expectation(path), Path(sys.executable), folder)
