"""No object of a run is read without a limit: a run may come from anywhere, and a sparse file takes no space."""

from __future__ import annotations

import ast
from pathlib import Path

import watchglass

SOURCE = Path(watchglass.__file__).parent
#: The default of the contract itself, for objects that a caller maps whole, as far as it has charged or checked them.
OTHERS = {"store/contract.py"}


def unbounded(source: str) -> list[str]:
    """Calls of ``store.read`` that name no end."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr="read")):
                given = len(node.args) >= 3 or any(each.arg in ("end", None) for each in node.keywords)
                starred = any(isinstance(each, ast.Starred) for each in node.args)
                if name.lstrip("_").endswith("store") and not given and not starred:
                    found.append(ast.unparse(node))
    return found


def test_reads_of_a_store_have_an_end() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    found = {name: unbounded(path.read_text()) for name, path in files.items() if name not in OTHERS}
    assert len(found) > 100
    assert {name: calls for name, calls in found.items() if calls and not name.startswith("testing/")} == {}


def test_what_is_looked_for_is_found() -> None:
    assert len(unbounded("store.read(a)\nself._store.read(a, 0)\nrun.store.read(path=a)")) == 3
    assert unbounded("store.read(a, 0, 9)\nstore.read(a, end=9)\nfile.read()\nself._store.read(*wanted)") == []
