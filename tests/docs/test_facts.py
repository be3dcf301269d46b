"""docs/facts.md has the tables that the declarations of facts give, and describes every field of every kind."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

from watchglass.config import FACTS
from watchglass.records import declared_kinds

ROOT = Path(__file__).parents[2]
TABLES = runpy.run_path(str(ROOT / "tools" / "fact_tables.py"))
TEXT = (ROOT / "docs" / "facts.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_declarations() -> None:
    assert TABLES["written"](TEXT) == TEXT, "run python tools/fact_tables.py"


def test_a_kind_that_can_be_switched_says_where_it_comes_from_when_and_at_which_cost() -> None:
    bare = [
        name for name, kind in FACTS.items() if not (kind.declared.FROM and kind.declared.WHEN and kind.declared.COST)
    ]
    assert bare == []
    assert {kind.declared.KIND: name for name, kind in FACTS.items()} == {name: name for name in FACTS}


def test_every_field_of_every_kind_is_described() -> None:
    unknown = {}
    for name, kind in declared_kinds().items():
        described = {each for names in TABLES["paragraphs"](kind)[2] for each in names.split(", ")}
        declared = {field.name for field in dataclasses.fields(kind)}
        if described != declared:
            unknown[name] = described ^ declared
    assert unknown == {}


def test_every_kind_is_described() -> None:
    described = set(re.findall(r"^\*\*(\w+)\*\*:", TEXT, re.MULTILINE))
    assert described | {"rows_seen_in_training"} == set(declared_kinds())


def test_the_run_format_lists_them() -> None:
    assert all(f"`{name}`" in (ROOT / "docs" / "run-format.md").read_text(encoding="utf-8") for name in FACTS)
