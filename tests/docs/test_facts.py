"""docs/facts.md has a row for every declared kind of fact and for every field, and no other rows."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from watchglass.config import FACTS
from watchglass.records import declared_kinds, field_types
from watchglass.records.declared import Declared

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "facts.md").read_text(encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables of a text by their first cells, without the heads of tables."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| [`*\w]", line)]
    return {first: [each.rstrip(" |") for each in others] for first, *others in cells if not first.startswith("fact")}


def kinds_of(heading: str) -> dict[str, list[str]]:
    """The rows of kinds after a heading or a sentence."""
    after = TEXT.split(heading, 1)[1].split("\n|", 1)[1]
    return {name.strip("`"): cells for name, cells in rows("|" + after.split("\n\n", 1)[0]).items()}


def sections() -> dict[str, dict[str, str]]:
    """The described fields by the paths of their records, and of these by their names."""
    parts = re.split(r"^\*\*([\w., ]+)\*\*:", TEXT.split("\n## Fields")[1].split("\n## ")[0], flags=re.MULTILINE)
    found = {}
    for heading, text in zip(parts[1::2], parts[2::2], strict=True):
        of = {name: cells[0] for names, cells in rows(text).items() for name in re.findall(r"`(\w+)`", names)}
        found |= dict.fromkeys(heading.split(", "), of)
    return found


def parts_of(kind: Any) -> Iterator[type[Declared]]:
    """The declared records in a type."""
    if isinstance(kind, type) and issubclass(kind, Declared):
        yield kind
    for each in get_args(kind):
        yield from parts_of(each)


def described(path: str, kind: type[Declared], row: str) -> Iterator[str]:
    """What the page lacks of a record and of those in it; and sections, as they are used.

    Args:
        path: Where the record is.
        kind: Its declaration.
        row: The description of the field that holds it, which may name all of its fields.
    """
    names = {field.name for field in dataclasses.fields(kind)}
    of = SECTIONS.get(path, {})
    if (row or not of) and path not in SECTIONS:
        yield from (f"{path}.{name}" for name in sorted(names - set(re.findall(r"`(\w+)`", row))))
    elif names != of.keys():
        yield f"{path}: {sorted(names ^ of.keys())}"
    USED.add(path)
    for name, each in field_types(kind).items():
        for part in parts_of(each):
            yield from described(f"{path}.{name}", part, of.get(name, row))


SECTIONS = sections()
USED: set[str] = set()


def test_every_field_has_its_row_and_no_row_is_left_over() -> None:
    assert [each for name, kind in declared_kinds().items() for each in described(name, kind, "")] == []
    assert SECTIONS.keys() - USED == set()


def test_every_kind_has_its_row_with_its_cost() -> None:
    switched, others = kinds_of("## Kinds and costs"), kinds_of("Other facts describe the run and its recording.")
    assert switched.keys() == FACTS.keys()
    assert others.keys() == declared_kinds().keys() - FACTS.keys()
    for name, kind in declared_kinds().items():
        what, *rest = (switched | others)[name]
        said = (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ").removesuffix(".")
        assert re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", what).startswith(said[0].lower() + said[1:]), name
        if name in FACTS:
            from_, when, cost = rest
            assert from_, name
            assert when, name
            assert cost == kind.COST, name


def test_the_page_says_who_needs_them() -> None:
    by = {who: set(re.findall(r"`(\w+)`", cells[0])) for who, cells in kinds_of("if something needs it").items()}
    for who, needed_by in (("the report", "report"), ("the default rules", "rules")):
        assert by[who] == {name for name, kind in FACTS.items() if needed_by == kind.NEEDED_BY}


def test_the_run_format_lists_them() -> None:
    assert all(f"`{name}`" in (ROOT / "docs" / "run-format.md").read_text(encoding="utf-8") for name in FACTS)
