"""docs/adapters.md: the adapter on the page passes the suite on the page, and the table names what exists."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchglass import Hook, open_run
from watchglass.record import StepClock
from watchglass.testing import AdapterSuite

CHECKS = [name for name in vars(AdapterSuite) if name.startswith("test_")]


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "docs" / "adapters.md").read_text()


@pytest.fixture
def page(text: str, in_tmp_path: Path) -> dict[str, Any]:
    """What the page has defined, once it was run from top to bottom."""
    (in_tmp_path / "page.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    return runpy.run_path("page.py")


def test_the_training_of_the_page_is_recorded(page: dict[str, Any]) -> None:
    run = open_run("runs/trainer")
    assert run.steps() == list(range(30))
    assert run.tensor("gradient/weights").steps() == [0, 10, 20]


@pytest.mark.parametrize("check", CHECKS)
def test_the_adapter_of_the_page_passes_every_check(page: dict[str, Any], tmp_path: Path, check: str) -> None:
    run: Callable[[Path], None] = getattr(page["TestTrainerAdapter"](), check)
    run(tmp_path / "suite")


def test_the_contract_names_methods_that_exist(text: str) -> None:
    names = set(re.findall(r"`hook\.(\w+)", text)) - {"clock", "plan"}
    assert len(names) > 6
    assert [name for name in names if not hasattr(Hook, name)] == []
    for name in ("begin", "end", "forward", "begin_update", "end_update"):
        assert hasattr(StepClock, name)
