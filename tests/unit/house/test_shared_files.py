"""A file of capture outside the adapters has two users at least; with one user it lies in the adapter that uses it.

Users are the adapters, and docs/adapters.md, whose examples are run. What the hook needs, every run uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import watchglass
from imports_of import imports
from watchglass.capture import FRAMEWORKS

SOURCE = Path(watchglass.__file__).parent
CAPTURE = "watchglass.capture"
#: The adapters by name, and what they consist of.
MEMBERS = [member for entry in FRAMEWORKS.values() for member in (entry.loop, entry.arrays, entry.modules) if member]
ADAPTERS = {re.split(r"[.:]", each)[2] for each in MEMBERS}

Graph = Mapping[str, set[str]]


def graph_of_capture() -> tuple[Graph, dict[str, dict[str, str]]]:
    """What each file imports of the others; and all files, with the names that the interface has from others."""
    paths = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (SOURCE / "capture").rglob("*.py")
    }
    modules = {name: dict[str, str]() for name in paths}
    for node in ast.walk(ast.parse(paths[CAPTURE].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules[CAPTURE] |= {alias.name: node.module for alias in node.names}
    graph = {name: set(imports(path.read_text(encoding="utf-8"), modules)) for name, path in paths.items()}
    return {**graph, CAPTURE: set()}, modules


def reached(graph: Graph, start: Iterable[str]) -> set[str]:
    """These files, those that they import, and those that these import in turn."""
    found = waiting = set(start)
    while waiting:
        waiting = set().union(*(graph[each] for each in waiting)) - found
        found = found | waiting
    return found


def documented(page: str, modules: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Files that a page names, or from which its examples import."""
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    imported = {each for block in blocks for each in imports(block, modules)}
    named = {name for name in modules if f"`{'/'.join(name.split('.')[1:])}.py`" in page}
    return imported | named


def single_users(graph: Graph, offered: set[str], adapters: Iterable[str]) -> dict[str, list[str]]:
    """By file that no hook needs, outside the adapters, with fewer than two users: who these are."""
    files = {each: [name for name in graph if name.split(".")[2:3] == [each]] for each in adapters}
    used = {each: reached(graph, own) for each, own in files.items()}
    used["docs/adapters.md"] = reached(graph, offered)
    folders = {name.rpartition(".")[0] for name in graph}
    shared = set(graph).difference(folders, reached(graph, [f"{CAPTURE}.hook"]), *files.values())
    by_file = {name: sorted(user for user, reach in used.items() if name in reach) for name in sorted(shared)}
    return {name: found for name, found in by_file.items() if len(found) < 2}


def test_each_file_outside_the_adapters_has_two_users(repository: Path) -> None:
    graph, modules = graph_of_capture()
    page = (repository / "docs/adapters.md").read_text(encoding="utf-8")
    assert single_users(graph, documented(page, modules), ADAPTERS) == {}


def test_files_with_one_user_are_found() -> None:
    graph = {
        "watchglass.capture.hook": {"watchglass.capture.plan"},
        "watchglass.capture.plan": set[str](),
        "watchglass.capture.a": {"watchglass.capture.hook", "watchglass.capture.own"},
        "watchglass.capture.b": {"watchglass.capture.plan", "watchglass.capture.offered"},
        "watchglass.capture.own": set[str](),
        "watchglass.capture.unused": set[str](),
        "watchglass.capture.offered": set[str](),
    }
    found = single_users(graph, {"watchglass.capture.offered"}, ("a", "b"))
    assert found == {"watchglass.capture.own": ["a"], "watchglass.capture.unused": []}


def test_a_page_offers_what_it_names_or_imports() -> None:
    modules = {"watchglass.capture": {"Arrays": "watchglass.capture.arrays"}} | {
        f"watchglass.capture.{each}": dict[str, str]() for each in ("arrays", "facts.graph", "other")
    }
    page = "```python\nfrom watchglass.capture import Arrays\n```\nSee `capture/facts/graph.py`, not other.py."
    assert documented(page, modules) == {"watchglass.capture.arrays", "watchglass.capture.facts.graph"}
