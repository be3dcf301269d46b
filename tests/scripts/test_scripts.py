"""Scripts of the kinds that people write, bare and watched: same output, exit status and files, and a true verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from preloaded import Preloaded
from scripts.comparing import compare
from scripts.expectations import expectation

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def cases() -> list[object]:
    """Every script, those that take long marked so."""
    slow = (pytest.mark.slow,)
    return [pytest.param(p, id=p.stem, marks=slow if expectation(p).slow else ()) for p in PROGRAMS]


@pytest.mark.parametrize("script", cases())
def test_a_watched_script_does_what_it_does_alone(script: Path, preloaded: Preloaded, tmp_path: Path) -> None:
    expected = expectation(script)
    compare(script, expected, preloaded.importing(*expected.imports), tmp_path)
