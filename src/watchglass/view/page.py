"""What pages of a run are made of: sections, tables, figures, and the page around them.

A page is one HTML file that opens anywhere, with no network, today and in ten years. It has no script: a policy in the
page forbids all, so text of a run in it is never executed. Everything that comes from a run is escaped, too.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from watchglass.view.pictures import Picture, picture_html
from watchglass.view.text import escaped, size

#: A number with its unit, such as "under 1 %", "87.1 ms", "2 min 5 s", "3.5 MB/s".
_NUMBER = re.compile(r"(?:(?:under|over) )?-?\d[\d.,]*(?:e[+-]?\d+)?(?: [^\s(]{1,8}(?: \d+ \S{1,3})?)?")


def page(title: str, body: str) -> str:
    """The whole page.

    Args:
        title: Its title, as plain text.
        body: Its content, as HTML.
    """
    style, made = page_style(), _asset("report.html")
    allowed = f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
    for mark, text in (("STYLES", allowed), ("TITLE", escaped(title)), ("STYLE", style), ("BODY", body)):
        head, found, tail = made.partition(f"<!--{mark}-->")
        assert found, mark
        made = head + text + tail
    return made.replace("<!--SIZE-->", size(len(made.encode())), 1)


def page_style() -> str:
    """The common style sheet, for pages that a server sends."""
    return _asset("report.css")


def section(title: str, parts: Sequence[str]) -> Sequence[str]:
    """A section with a title, as parts of a page; none without parts."""
    return [f"<section><h2>{title}</h2>", *parts, "</section>"] if parts else []


def figures_html(figures: Sequence[tuple[str, Picture]]) -> list[str]:
    """Several figures with captions."""
    return [picture_html(figure, caption) for caption, figure in figures]


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; its cells are HTML."""
    top = f"<thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(content: str) -> str:
    """A cell. A number stays on one line with its unit."""
    return f'<td class="number">{content}</td>' if _NUMBER.fullmatch(content) else f"<td>{content}</td>"


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name("assets").joinpath(name).read_text(encoding="utf-8")
