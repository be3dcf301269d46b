"""Blocks as HTML, and the page around them.

A page is one HTML file that opens anywhere, with no network, today and in ten years. It has no script: a policy in the
page forbids all, so text of a run in it is never executed. Everything that comes from a run is escaped, too.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache, singledispatch
from pathlib import Path

from watchglass.records import Verdict
from watchglass.view.blocks import Block, Disclosure, Figure, Gallery, Items, Pairs, Section, Text, TextTable
from watchglass.view.pictures import picture_html
from watchglass.view.pictures.table_html import inline_html, table_html
from watchglass.view.sections import verdict_blocks
from watchglass.view.text import escaped, size

#: A sign of each severity beside its colour; "" means no finding.
SYMBOLS = {"error": "✖", "warning": "▲", "info": "●", "": "✔"}
#: Elements of sections, by their levels.
_ELEMENTS = {1: "header", 2: "section", 3: "article"}


def page_html(title: str, blocks: Iterable[Block]) -> str:
    """The whole page.

    Args:
        title: Its title, as plain text.
        blocks: Its content.
    """
    style, made = page_style(), _asset("report.html")
    allowed = f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
    body = blocks_html(blocks)
    for mark, text in (("STYLES", allowed), ("TITLE", escaped(title)), ("STYLE", style), ("BODY", body)):
        head, found, tail = made.partition(f"<!--{mark}-->")
        assert found, mark
        made = head + text + tail
    return made.replace("<!--SIZE-->", size(len(made.encode())), 1)


def verdict_html(verdict: Verdict) -> str:
    """A verdict as an element of a notebook, whose own texts keep their style."""
    style = page_style().replace(":root", ":scope").replace("body {", ":scope {")
    return (
        f"<style>@scope (.watchglass-verdict) {{ {style} }}</style>"
        f'<div class="watchglass-verdict">{blocks_html(verdict_blocks(verdict))}</div>'
    )


def page_style() -> str:
    """The common style sheet, for pages that a server sends."""
    return _asset("report.css")


def blocks_html(blocks: Iterable[Block]) -> str:
    """Blocks as elements, one after the other."""
    return "".join(map(block_html, blocks))


@singledispatch
def block_html(block: Block) -> str:
    """One block as an element. A page that adds a kind of block registers how it is drawn."""
    raise TypeError(f"no way to draw {type(block).__name__}")


@block_html.register
def _text(block: Text) -> str:
    role = f' class="{block.role}"' if block.role else ""
    return f"<p{role}>{inline_html(block.content)}</p>"


block_html.register(TextTable, table_html)


@block_html.register
def _items(block: Items) -> str:
    tag = "ol" if block.ordered else "ul"
    return f"<{tag}>{''.join(f'<li>{_item(item)}</li>' for item in block.items)}</{tag}>" if block.items else ""


def _item(item: Block | str | Sequence[Block]) -> str:
    if isinstance(item, Sequence) and not isinstance(item, str):
        return blocks_html(item)
    return escaped(item) if isinstance(item, str) else block_html(item)


@block_html.register
def _pairs(block: Pairs) -> str:
    pairs = "".join(f"<dt>{escaped(label)}</dt><dd>{blocks_html(found)}</dd>" for label, found in block.pairs if found)
    return f"<dl>{pairs}</dl>"


@block_html.register
def _figure(block: Figure) -> str:
    return picture_html(block.picture, block.caption)


@block_html.register
def _gallery(block: Gallery) -> str:
    return f'<div class="gallery">{blocks_html(block.figures)}</div>'


@block_html.register
def _disclosure(block: Disclosure) -> str:
    opened = " open" if block.opened else ""
    return f"<details{opened}><summary>{escaped(block.title)}</summary>{blocks_html(block.blocks)}</details>"


@block_html.register
def _section(block: Section) -> str:
    if not block.blocks:
        return ""
    tag, level = _ELEMENTS[block.level], block.level
    tone = f' class="{block.tone}"' if block.tone else ""
    sign = SYMBOLS.get(block.tone.replace("healthy", "")) if block.tone and level == 1 else None
    label = f'<p class="brand">{escaped(block.label)}</p>' if block.label else ""
    mark = f'<span aria-hidden="true">{sign}</span> ' if sign else ""
    heading = f"<h{level}>{mark}{escaped(block.title)}</h{level}>"
    return f"<{tag}{tone}>{label}{heading}{blocks_html(block.blocks)}</{tag}>"


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name("assets").joinpath(name).read_text(encoding="utf-8")
