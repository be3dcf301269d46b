"""Documentation of rules and actions on the terminal: a list, or one of them in full."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from watchglass.config import ParameterInfo


def print_list(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print a line for each name, with its summary."""
    table = Table.grid(padding=(0, 2))
    for name, summary in rows:
        table.add_row(Text(name, style="bold"), Text(summary.replace("``", "")))
    console.print(table)


def print_heading(console: Console, name: str, summary: str) -> None:
    """Print the name and the summary."""
    console.print(Text(name, style="bold"))
    console.print(Text(summary.replace("``", "")))


def print_section(console: Console, title: str, text: str) -> None:
    """Print an empty line, a heading, and a text."""
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(Text(text), (0, 0, 0, 2)))


def print_parameters(console: Console, parameters: Iterable[ParameterInfo]) -> None:
    """Print each parameter with type, default, limits, unit and help."""
    parameters = list(parameters)
    console.print()
    console.print(Text("Parameters" if parameters else "No parameters", style="bold"))
    for each in parameters:
        limits = f", {each.limits}" if each.limits else ""
        unit = f", in {each.unit}" if each.unit else ""
        described = f"  {each.type}, default {_plain(each.default)}{limits}{unit}"
        console.print(Padding(Text.assemble((each.name, "cyan"), described), (0, 0, 0, 2)))
        if each.help:
            console.print(Padding(Text(each.help), (0, 0, 0, 6)))


def print_hint(console: Console, line: str) -> None:
    """Print an empty line and a hint at the next command."""
    console.print()
    console.print(Text(line, style="dim"), soft_wrap=True)


def _plain(default: Any) -> str:
    value = getattr(default, "value", default)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(map(_plain, value)) or "none"
    return str(value) or "none"


def as_sentences(text: str) -> str:
    """A section with a capital at its start, unless that is code, and with each item of a list on a separate line."""
    starts_with_word = re.match(r"[a-z]+(-[a-z]+)*[,;:.]?(\s|$)", text) is not None
    sentences = text[:1].upper() + text[1:] if starts_with_word else text
    return re.sub(r"(?<=[.:]) \* ", "\n* ", sentences)
