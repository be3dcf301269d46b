"""Rules count what holds for several captures in a row by one type, and their findings begin with such a streak."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import watchglass

RULES = Path(watchglass.__file__).parent / "rules"


def counted_by_hand(code: str) -> Iterator[str]:
    """Expressions such as ``self.captures + 1 if holds else 0``, also of what a dict of the rule holds."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.IfExp(
                body=ast.BinOp(left=ast.Attribute() | ast.Call(func=ast.Attribute(attr="get")), op=ast.Add()),
                orelse=ast.Constant(value=0),
            ):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def without_start(code: str) -> Iterator[str]:
    """Streaks of classes that never ask for their start."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef):
            asked = ast.unparse(node)
            for each in node.body:
                match each:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="Streaks")):
                        if f"self.{name}.since(" not in asked:
                            yield f"{node.name}.{name}"


def files() -> dict[str, str]:
    return {path.relative_to(RULES).as_posix(): path.read_text("utf-8") for path in RULES.rglob("*.py")}


def test_no_rule_counts_by_hand() -> None:
    found = {name: list(counted_by_hand(code)) for name, code in files().items()}
    assert {name: each for name, each in found.items() if each} == {}, "use watchglass.rules.streaks.Streaks"


def test_each_streak_is_asked_for_its_start() -> None:
    assert sum(code.count("state(Streaks)") for code in files().values()) > 20
    found = {name: list(without_start(code)) for name, code in files().items()}
    assert {name: each for name, each in found.items() if each} == {}, "give it to Rule.finding, as since"


def test_what_is_looked_for_is_found() -> None:
    code = "a = self.n + 1 if x else 0\nb = c.get(k, 0) + 1 if x else 0\nd = e + 1 if x else 2"
    assert len(list(counted_by_hand(code))) == 2
    code = "class A(Rule):\n a: Streaks = state(Streaks)\n b: Streaks = state(Streaks)\n c = self.a.since('x')"
    assert list(without_start(code)) == ["A.b"]
