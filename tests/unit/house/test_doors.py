"""A room's ``__init__`` is its only door: no module imports a file inside another room.

import-linter keeps the order of the rooms; this keeps their doors. A framework's adapter is a door of its own, since
nothing else may import the framework.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from watchglass.lazy_imports import lazily

FURTHER_DOORS = {"watchglass.capture.xgboost"}


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
        ("from watchglass.run.worker import Worker", []),
        ("from watchglass.records import Mode", []),
    ],
)
def test_finds_trespassing(source: str, found: list[str]) -> None:
    assert list(foreign_imports(source, room="run")) == found


def lazily_opened(source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Names with their modules, as type checkers see them and as a package opens them when asked."""
    checked: dict[str, str] = {}
    opened: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                assert isinstance(each, ast.ImportFrom), ast.unparse(each)
                checked.update((alias.name, str(each.module)) for alias in each.names)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            homes = ast.literal_eval(node.value)
            opened.update((name, home) for home, names in homes.items() for name in names)
    return checked, opened


def test_type_checkers_and_programs_find_the_same_behind_a_lazy_door(repository: Path) -> None:
    package = repository / "src" / "watchglass"
    doors = [path for path in package.rglob("__init__.py") if "lazily(" in path.read_text(encoding="utf-8")]
    assert doors
    for path in doors:
        checked, opened = lazily_opened(path.read_text(encoding="utf-8"))
        name = ".".join(path.parent.relative_to(package.parent).parts)
        assert checked == {each: f"{name}.{home}" for each, home in opened.items()}
        modules = {each.stem for each in path.parent.iterdir()}
        assert not modules & set(opened), "a module takes the place of the name once it is imported"
        found = import_module(name)
        assert all(getattr(found, each) is not None for each in opened)


def test_a_lazy_door_refuses_what_is_not_behind_it() -> None:
    get = lazily("watchglass.store", {"policy": ("StorePolicy",)})
    assert get("StorePolicy").__name__ == "StorePolicy"
    with pytest.raises(AttributeError, match="has no attribute 'interval_for'"):
        get("interval_for")
