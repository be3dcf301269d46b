"""docs/frameworks/rules.md says which rules each framework feeds today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from watchglass.capture import FRAMEWORKS
from watchglass.config import FACTS
from watchglass.rules import rule_names

CURE = "run make framework-rules"


def _tool() -> ModuleType:
    """The program that writes the page."""
    path = Path(__file__).parents[2] / "tools" / "framework_rules.py"
    spec = importlib.util.spec_from_file_location("framework_rules", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = _tool()


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "frameworks" / "rules.md").read_text(encoding="utf-8")


def test_each_framework_that_drives_has_a_column(page: str) -> None:
    assert list(tool.COLUMNS) == list(tool.read(page)), CURE
    drives = {name for name, entry in FRAMEWORKS.items() if entry.loop and entry.drives}
    assert {column.framework for column in tool.COLUMNS.values()} == drives


def test_rules_and_facts_exist(page: str) -> None:
    columns = tool.read(page)
    assert {rule for column in columns.values() for rule in column} <= set(rule_names())
    assert all(cell for column in columns.values() for cell in column.values())
    assert tool.write(columns) == page, CURE
    declared = {kind for entry in FRAMEWORKS.values() for kind in entry.meaningless}
    assert declared <= FACTS.keys()


def test_the_page_says_of_what_cannot_be_seen_what_a_run_says(page: str) -> None:
    parts = [part for entry in FRAMEWORKS.values() for part in entry.hidden]
    assert {"tensorflow", "jax", "keras"} == {name for name, entry in FRAMEWORKS.items() if entry.hidden}
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("|")]
    said = {row[2].removesuffix(" |"): row[1] for row in rows if len(row) == 3}
    assert [said[part.of("step")] for part in parts] == [part.where for part in parts], CURE


@pytest.mark.slow
@pytest.mark.parametrize("name", tool.COLUMNS)
def test_a_column_is_what_the_framework_feeds_now(page: str, name: str) -> None:
    column = tool.COLUMNS[name]
    if not column.installed:  # its own process imports it
        pytest.skip(f"the rules that {name} feeds are seen only with {' and '.join(column.needs)}")
    assert tool.column_now(name) == tool.read(page)[name], CURE
