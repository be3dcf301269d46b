"""Autograd's graph is read in one file, and what is known of operations and losses is declared."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from watchglass.records import LOSSES, OPERATIONS

#: Words beside those of operations: what operands are, and what rules and facts say of pairs of layers.
_BESIDE = {"constant", "parameter", "unknown", "picked up", "picked down", "sub", "product", "residual", "scale"}


def test_one_file_follows_the_operands_of_nodes_and_knows_their_names(repository: Path) -> None:
    source = repository / "src" / "watchglass"
    reading = [
        str(file.relative_to(source))
        for file in sorted(source.rglob("*.py"))
        if re.search(r"\.next_functions\b|\"\w+Backward\d?\"", file.read_text(encoding="utf-8"))
    ]
    assert reading == ["capture/pytorch/graph/nodes.py"]


def test_rules_about_graphs_compare_with_declared_words_alone(repository: Path) -> None:
    folder = repository / "src" / "watchglass" / "rules" / "graph"
    compared = {
        (file.name, constant.value)
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and _is_name(node.left)
        for side in node.comparators
        for constant in ast.walk(side)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str) and constant.value
    }
    declared = OPERATIONS.keys() | LOSSES.keys() | _BESIDE
    assert len(compared) > 50
    assert {each for each in compared if each[1] not in declared} == set()


def _is_name(node: ast.expr) -> bool:
    return (node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "") == "name"
