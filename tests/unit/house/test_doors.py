"""A room's ``__init__`` is its only door: no module imports a file inside another room.

import-linter keeps the order of the rooms; this keeps their doors. A framework's adapter is a door of its own, since
nothing else may import the framework.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FURTHER_DOORS = {"watchglass.capture.pytorch", "watchglass.capture.xgboost"}


def foreign_imports(source: str, room: str) -> Iterator[str]:
    """Dotted names of files inside other rooms than ``room`` that a module's source imports."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "watchglass" and len(parts) > 2 and parts[1] != room and name not in FURTHER_DOORS:
                yield name


def test_rooms_are_entered_by_their_doors(repository: Path) -> None:
    package = repository / "src" / "watchglass"
    trespassing = [
        f"{path.relative_to(package)} imports {name}"
        for path in sorted(package.rglob("*.py"))
        for name in foreign_imports(path.read_text(encoding="utf-8"), path.relative_to(package).parts[0])
    ]
    assert trespassing == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from watchglass.store import open_store", []),
        ("from watchglass.store.reader import RunReader", ["watchglass.store.reader"]),
        ("def f():\n    import watchglass.store.reader", ["watchglass.store.reader"]),
        ("from watchglass.run.view import StepView", []),
        ("from watchglass.records import Mode", []),
    ],
)
def test_finds_trespassing(source: str, found: list[str]) -> None:
    assert list(foreign_imports(source, room="run")) == found
