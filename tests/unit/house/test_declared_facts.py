"""No rule reads the dictionary of a stored fact: it asks for a declared kind, and reads attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchglass.records import declared_kinds
from watchglass.rules import BUILT_IN, find_rule


def undeclared(source: str) -> Iterator[str]:
    """What a rule's source reads of facts without their declarations."""
    for node in ast.walk(ast.parse(source)):
        asked = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        given = node.args if isinstance(node, ast.Call) else []
        if asked in ("facts", "latest_fact") and (not given or isinstance(given[0], ast.Constant)):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if asked in ("to_data", "from_data") or (isinstance(node, ast.Name) and node.id == "asdict"):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        mapped = isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "get")
        read = node.value if isinstance(node, (ast.Subscript, ast.Attribute)) and mapped else None
        if isinstance(read, ast.Attribute) and read.attr == "data":
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_no_rule_reads_a_dictionary_of_a_fact(repository: Path) -> None:
    rules = repository / "src" / "watchglass" / "rules"
    found = [
        f"{path.relative_to(rules)}, {each}"
        for path in sorted(rules.rglob("*.py"))
        for each in undeclared(path.read_text(encoding="utf-8"))
        if not each.endswith("self.data[-1]")  # the operations of a term of a loss
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "view.facts('clip')",
        "view.latest_fact('clip')",
        "fact.data['calls']",
        "view.facts()[0].data.get('calls')",
        "self.calls[0] = call.to_data()",
        "asdict(call)",
    ],
)
def test_such_a_line_is_found(line: str) -> None:
    assert list(undeclared(line))
    assert not list(undeclared("[clip.calls for clip in view.facts(facts.Clip)]"))


def test_rules_need_declared_kinds() -> None:
    needed = {kind for name in BUILT_IN for need in find_rule(name).needs for kind in need.facts}
    assert needed - declared_kinds().keys() == set()
