"""Write the tables of docs/facts.md from the declarations of facts: `python tools/fact_tables.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from watchglass.config import FACTS
from watchglass.records import DeclaredFact, declared_kinds

PAGE = Path(__file__).resolve().parents[1] / "docs" / "facts.md"


def paragraphs(kind: type[DeclaredFact]) -> tuple[str, str, dict[str, str]]:
    """The summary of a declaration, the text after it, and its attributes."""
    text, _, attributes = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")
    summary, _, more = text.partition("\n\n")
    found: dict[str, str] = {}
    for line in attributes.splitlines():
        new = re.match(r"    (\w[\w, ]*): (.*)", line)
        if new and not line.startswith("     "):
            found[new[1]] = new[2]
        elif line.strip():
            found[next(reversed(found))] += " " + line.strip()
    return " ".join(summary.split()), " ".join(more.split()), found


def what(kind: type[DeclaredFact]) -> str:
    """The summary as a cell of a table."""
    summary = paragraphs(kind)[0].removesuffix(".")
    return summary[0].lower() + summary[1:]


def _switched() -> Iterator[str]:
    yield "| fact | what | from | when | cost |\n|---|---|---|---|---|"
    for name, kind in FACTS.items():
        declared = kind.declared
        yield f"| `{name}` | {what(declared)} | {declared.FROM} | {declared.WHEN} | {declared.COST} |"


def _others() -> Iterator[str]:
    yield "| fact | content | when |\n|---|---|---|"
    for name, kind in declared_kinds().items():
        if name not in FACTS:
            yield f"| `{name}` | {what(kind)} | {kind.WHEN} |"


def _needed() -> Iterator[str]:
    yield "| needed by | facts |\n|---|---|"
    for by, who in (("report", "the report"), ("rules", "the default rules")):
        yield f"| {who} | {', '.join(f'`{name}`' for name, kind in FACTS.items() if kind.needed_by == by)} |"
    yield "| another rule | those in its [needs](rules-engine.md#needs) |"


def _fields() -> Iterator[str]:
    for name, kind in declared_kinds().items():
        _, more, attributes = paragraphs(kind)
        if attributes:
            yield f"**{name}**:{' ' if more else ''}{more}\n\n| field | content |\n|---|---|"
            yield from (
                f"| {', '.join(f'`{each}`' for each in names.split(', '))} | {text} |"
                for names, text in attributes.items()
            )
            yield ""


def written(page: str) -> str:
    """The page with the tables as they are declared."""
    for name, lines in (("kinds", _switched()), ("others", _others()), ("needed", _needed()), ("fields", _fields())):
        begin, end = f"<!-- {name}, by tools/fact_tables.py -->\n", f"<!-- end of {name} -->"
        before, after = page.split(begin)[0], page.split(end)[1]
        page = f"{before}{begin}" + "\n".join(lines).rstrip() + f"\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
