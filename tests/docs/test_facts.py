"""docs/facts.md names every kind of fact, with the cost that the code states, and all of their data."""

from __future__ import annotations

import re
from pathlib import Path

from watchglass.config import FACTS

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "facts.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")]


def test_the_table_is_that_of_the_code() -> None:
    table = {cells[0].strip("`"): (cells[1], cells[4]) for cells in ROWS if len(cells) == 5}
    assert table == {name: (kind.help, kind.cost) for name, kind in FACTS.items()}


def test_every_kind_is_described() -> None:
    described = set(re.findall(r"\*\*(\w+)\*\*:", TEXT))
    assert described == set(FACTS)


def test_the_run_format_lists_them() -> None:
    assert all(f"`{name}`" in (DOCS / "run-format.md").read_text(encoding="utf-8") for name in FACTS)
