"""The ``__init__`` of a package is its only public interface: no module imports a file inside another package.

import-linter checks the order of the packages; these tests check their interfaces. A framework's adapter has a separate
interface, because no other package may import the framework.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import watchglass
from watchglass.lazy_imports import lazily

FURTHER_INTERFACES = {"watchglass.capture.xgboost"}


def foreign_imports(source: str, own: str) -> Iterator[str]:
    """Dotted names of files inside other packages than ``own`` that a module's source imports."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "watchglass" and len(parts) > 2 and parts[1] != own and name not in FURTHER_INTERFACES:
                yield name


def test_packages_are_imported_by_their_interfaces(repository: Path) -> None:
    package = repository / "src" / "watchglass"
    inside = [
        f"{path.relative_to(package)} imports {name}"
        for path in sorted(package.rglob("*.py"))
        for name in foreign_imports(path.read_text(encoding="utf-8"), path.relative_to(package).parts[0])
    ]
    assert inside == []


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
def test_finds_imports_of_inner_files(source: str, found: list[str]) -> None:
    assert list(foreign_imports(source, own="run")) == found


def public_names(path: Path) -> list[str]:
    """The names that a package imports below ``if TYPE_CHECKING``, for type checkers and for ``lazily``."""
    blocks = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    (block,) = [node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING"]
    assert all(isinstance(each, ast.ImportFrom) for each in block.body), "lazily() reads imports of this form alone"
    return [alias.name for each in block.body if isinstance(each, ast.ImportFrom) for alias in each.names]


def test_programs_find_the_names_that_type_checkers_find(repository: Path) -> None:
    package = repository / "src" / "watchglass"
    lazy = [path for path in package.rglob("__init__.py") if "lazily(" in path.read_text(encoding="utf-8")]
    assert lazy
    for path in lazy:
        names = public_names(path)
        modules = {each.stem for each in path.parent.iterdir()}
        assert names, path
        name = ".".join(path.parent.relative_to(package.parent).parts)
        own = re.findall(rf"from {re.escape(name)} import (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert modules.intersection(names) == {*own}, "a module takes the place of the name once it is imported"
        found = import_module(name)
        assert all(getattr(found, each) is not None for each in names)


def test_all_of_watchglass_is_what_it_imports(repository: Path) -> None:
    names = public_names(repository / "src" / "watchglass" / "__init__.py")
    assert sorted([*names, "__version__"]) == watchglass.__all__ == dir(watchglass)


def test_a_lazy_package_refuses_other_names() -> None:
    import_module("watchglass.store")  # nothing else may have imported it
    get = lazily("watchglass.store")
    assert get("StorePolicy").__name__ == "StorePolicy"
    with pytest.raises(AttributeError, match="has no attribute 'interval_for'"):
        get("interval_for")
    with pytest.raises(ImportError, match="has no block"):
        lazily("watchglass.errors")("DamagedDataError")
