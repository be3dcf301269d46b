"""Files of a package do not import each other in a cycle, also not for types only, or within a function.

A file in a cycle cannot be understood, tested or moved without the others.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

import watchglass
from imports_of import imports

SOURCE = Path(watchglass.__file__).parent
PACKAGES = sorted(folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file())


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other in a cycle."""
    reached = {}
    for module in graph:
        found, waiting = set[str](), [module]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        reached[module] = found
    groups = {tuple(sorted(each for each in found if module in reached[each])) for module, found in reached.items()}
    return sorted(list(group) for group in groups if group)


def graph_of(folder: Path) -> dict[str, set[str]]:
    """What each module of a package imports of the others."""
    sources, modules = {}, {}
    for path in folder.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        sources[name], modules[name] = path.read_text(encoding="utf-8"), dict[str, str]()
        for node in ast.walk(ast.parse(sources[name])) if parts[-1] == "__init__" else ():
            if isinstance(node, ast.ImportFrom) and node.module:
                modules[name] |= {alias.asname or alias.name: node.module for alias in node.names}
    # An interface imports all files, which is no cycle: what others import from it are these files.
    files = {name for name in modules if not modules[name]}
    return {name: set(imports(sources[name], modules)) & files - {name} for name in files}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_of_a_package_import_each_other_in_a_cycle(package: str) -> None:
    assert cycles(graph_of(SOURCE / package)) == []


MODULES: dict[str, dict[str, str]] = {"p": {"B": "p.b"}, "p.a": {}, "p.b": {}, "p.c": {}}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from p import B, a, unknown", ["p.b", "p.a", "p"]),
        ("import p.b, other", ["p.b"]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.c import C", ["p.c"]),
        ("def f():\n    from p.c import C", ["p.c"]),
        ("from other.c import C", []),
    ],
)
def test_imports_of_all_kinds_are_found(source: str, found: list[str]) -> None:
    assert list(imports(source, MODULES)) == found


def test_cycles_are_found_by_their_members() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}, "g": set[str]()}
    assert cycles(graph) == [["a", "b", "c"], ["d", "e"]]
