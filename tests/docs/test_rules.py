"""docs/rules.md tells the truth: it lists the rules."""

from __future__ import annotations

import re
from pathlib import Path

from watchglass.rules import rule_names

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_table_lists_the_built_in_rules() -> None:
    assert re.findall(r"^\| ([A-Z]\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == rule_names()
