"""No sentence of a rule or a diagnosis says "0" of a number that is above zero."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import watchglass

SOURCE = Path(watchglass.__file__).parent
#: Digits after the point: a small number has none that are not zero. Significant digits (``g``) always have one.
FIXED = re.compile(r".*\.\d+[f%]$")


def fixed_formats(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = ast.unparse(node.format_spec)[2:-1]
            if FIXED.match(spec):
                yield f"line {node.lineno}: {ast.unparse(node.value)}:{spec}"


@pytest.mark.parametrize("package", ["rules", "diagnose"])
def test_numbers_are_written_with_significant_digits(package: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}, {each}"
        for path in sorted((SOURCE / package).rglob("*.py"))
        for each in fixed_formats(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "use watchglass.records.rounded or in_percent"


def test_a_fixed_number_of_digits_is_found() -> None:
    code = 'f"{a:.0f} {b:,.2f} {c:.1%} {d:.3g} {e:d} {rounded(g, 1)}"'
    assert [each.rpartition(" ")[2] for each in fixed_formats(code)] == ["a:.0f", "b:,.2f", "c:.1%"]
