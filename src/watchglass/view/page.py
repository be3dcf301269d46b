"""What pages of a run are made of: sections, tables, figures, and the page around them.

A page is one HTML file that opens anywhere, with no network, today and in ten years. Everything that comes from a run
is escaped, and a policy in the page forbids scripts other than its own.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from watchglass.view.text import printable, size

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Where plotly's script holds a style of its maps, which it adds to every page.
_STYLE_IN_SCRIPT = re.compile(r"""createElement\("style"\);\w+\.id="\w+",\w+\.textContent='([^'\\]*)'""")

#: A number with its unit, such as "under 1 %", "87.1 ms", "2 min 5 s", "3.5 MB/s".
_NUMBER = re.compile(r"(?:(?:under|over) )?-?\d[\d.,]*(?:e[+-]?\d+)?(?: [^\s(]{1,8}(?: \d+ \S{1,3})?)?")


def page(title: str, body: str, *, draws: bool) -> str:
    """The whole page.

    Args:
        title: Its title, as plain text.
        body: Its content, as HTML.
        draws: Whether it has figures: then it holds plotly's script, once.
    """
    scripts = [_plotly_script(), _asset("report.js")] if draws else []
    style = _asset("report.css")
    made = _asset("report.html")
    for mark, text in (
        ("SCRIPTS", _allowed(scripts)),
        ("STYLES", _allowed([style, *(_plotly_styles(scripts[0]) if scripts else [])])),
        ("TITLE", escaped(title)),
        ("STYLE", style),
        ("SCRIPT", "".join(f"<script>{script}</script>" for script in scripts)),
        ("BODY", body),
    ):
        head, found, tail = made.partition(f"<!--{mark}-->")
        assert found, mark
        made = head + text + tail
    return made.replace("<!--SIZE-->", size(len(made.encode())), 1)


def section(title: str, parts: Sequence[str]) -> Sequence[str]:
    """A section with a title, as parts of a page; none without parts."""
    return [f"<section><h2>{title}</h2>", *parts, "</section>"] if parts else []


def figure_html(index: int, caption: str, figure: go.Figure) -> str:
    """A figure as HTML, with its data; ``index`` is its number in the page."""
    # "<" cannot end the script element early when it is written as an escape of JSON.
    data = figure.to_json().replace("<", "\\u003c")
    return (
        f'<figure><div class="plot" id="figure-{index}" data-source="data-{index}"></div>'
        f'<script type="application/json" id="data-{index}">{data}</script>'
        + (f"<figcaption>{escaped(caption)}</figcaption></figure>" if caption else "</figure>")
    )


def figures_html(first: int, figures: Sequence[tuple[str, go.Figure]]) -> list[str]:
    """Several figures with captions, numbered from ``first``."""
    return [figure_html(first + index, caption, figure) for index, (caption, figure) in enumerate(figures)]


def escaped(foreign: str) -> str:
    """Text as HTML that shows it in one line, without any effect on the text around it."""
    return escape(printable(foreign))


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML; its cells are HTML."""
    top = f"<thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead>" if head else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(content: str) -> str:
    """A cell. A number stays on one line with its unit."""
    return f'<td class="number">{content}</td>' if _NUMBER.fullmatch(content) else f"<td>{content}</td>"


def _allowed(parts: Sequence[str]) -> str:
    """The policy that allows exactly these scripts or styles, so that text of a run in the page is never executed."""
    hashes = (b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts)
    return " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"


def _plotly_styles(script: str) -> list[str]:
    """The style elements that plotly makes: one that it then fills rule by rule, and those that its script holds."""
    return ["", *_STYLE_IN_SCRIPT.findall(script)]


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    # A browser reads every end of a line as "\n", and the policy has the hash of what it read.
    script = str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return script.replace("</script", "<\\/script")


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name("assets").joinpath(name).read_text(encoding="utf-8")
