"""No rule, and nothing that rules use, names a class of a framework: rules select by role, kind and structure."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from torch import nn

CLASSES = {name for name, value in vars(nn).items() if inspect.isclass(value) and name not in ("Module", "Parameter")}


def test_no_rule_names_a_class_of_a_framework(repository: Path) -> None:
    package = repository / "src" / "watchglass"
    named = [
        f"{path.relative_to(package)}:{node.lineno} {node.value}"
        for folder in ("rules", "run", "evaluate", "diagnose", "records")
        for path in sorted((package / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in CLASSES
    ]
    assert named == []
