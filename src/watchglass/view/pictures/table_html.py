"""Tables and words as HTML: the one place where text of a run becomes markup of a page, besides drawings."""

from __future__ import annotations

import re

from watchglass.view.pictures.tables import Inline, Span, TextTable
from watchglass.view.text import escaped

#: A number with its unit, such as "under 1 %", "87.1 ms", "2 min 5 s", "3.5 MB/s".
_NUMBER = re.compile(r"(?:(?:under|over) )?-?\d[\d.,]*(?:e[+-]?\d+)?(?: [^\s(]{1,8}(?: \d+ \S{1,3})?)?")
_TAGS = {"code": "code", "strong": "b", "small": "small"}


def inline_html(content: Inline) -> str:
    """Text, with its parts marked by their roles."""
    if isinstance(content, str):
        return escaped(content)
    if not isinstance(content, Span):
        return " ".join(map(inline_html, content))
    tag = _TAGS.get(content.role, "span")
    text = escaped(content.text)
    if content.role:
        text = f"<{tag}>{text}</{tag}>" if tag != "span" else f'<span class="{content.role}">{text}</span>'
    return f'<a href="{escaped(content.address)}">{text}</a>' if content.address else text


def table_html(table: TextTable) -> str:
    """A table, which scrolls where it is too wide."""
    top = f"<thead><tr>{''.join(f'<th>{escaped(name)}</th>' for name in table.head)}</tr></thead>" if table.head else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    role = f" {table.role}" if table.role else ""
    return f'<div class="wide{role}"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(content: Inline) -> str:
    """A cell. A number stays on one line with its unit."""
    inner = inline_html(content)
    return f'<td class="number">{inner}</td>' if _NUMBER.fullmatch(inner) else f"<td>{inner}</td>"
