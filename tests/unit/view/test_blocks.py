"""Blocks: each kind is drawn, empty ones leave nothing, text of a run is never markup, further kinds can be added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from markdown_it import MarkdownIt

from watchglass.view import (
    Block,
    Disclosure,
    Figure,
    Gallery,
    Items,
    Pairs,
    Section,
    Span,
    Text,
    TextTable,
    block_html,
    block_markdown,
    blocks_html,
    plain,
)
from watchglass.view.pictures import Axis, Line, Lines

NASTY = '<b onclick="x">&\u202e'
PICTURE = Lines(NASTY, Axis(), Axis(), (Line(NASTY, np.arange(3.0), np.arange(3.0), "#000000"),))
KINDS: Sequence[Block] = (
    Text(NASTY),
    Text((Span(NASTY, "code"), NASTY, Span(NASTY, "tag error", NASTY)), "empty"),
    TextTable((NASTY,), [(NASTY,), ((NASTY, Span(NASTY, "strong")),)], "findings"),
    Items((NASTY, Text(NASTY), (Text(NASTY), Text(NASTY))), ordered=True),
    Pairs(((NASTY, (Text(NASTY),)),)),
    Figure(PICTURE, NASTY),
    Gallery((Figure(PICTURE),)),
    Disclosure(NASTY, (Text(NASTY),)),
    *(Section(NASTY, (Text(NASTY),), level=level, tone="error", label=NASTY) for level in (1, 2, 3)),
)


@pytest.mark.parametrize("block", KINDS, ids=lambda block: type(block).__name__)
def test_text_of_a_run_is_text_wherever_it_stands(block: Block) -> None:
    html = block_html(block)
    root = ET.fromstring(f"<body>{html}</body>".replace(" open>", ' open="">'))
    assert "\u202e" not in html
    assert "<b onclick" not in html
    assert '<b onclick="x">&\\u202e' in "".join(root.itertext())
    assert not [element for element in root.iter() if "onclick" in element.attrib]


@pytest.mark.parametrize("block", KINDS, ids=lambda block: type(block).__name__)
def test_markdown_shows_the_text_of_each_kind_and_no_markup_of_it(block: Block) -> None:
    page = MarkdownIt("commonmark", {"html": True}).enable("table").render(block_markdown(block))
    assert "\u202e" not in page
    assert "<b " not in page
    assert "&lt;b onclick=" in page
    assert page.count("<details>") == page.count("</details>")


def test_a_section_a_list_and_a_pair_without_content_leave_nothing() -> None:
    assert blocks_html([Section("Findings", []), Items(())]) == ""
    assert (
        block_html(Pairs((("Since", ()), ("First in", (Text("fc"),)))))
        == "<dl><dt>First in</dt><dd><p>fc</p></dd></dl>"
    )


def test_a_number_stays_on_a_line_with_its_unit_and_words_wrap() -> None:
    html = block_html(TextTable(("time", "why"), [("2 min 5 s", "2 rules failed")]))
    assert '<td class="number">2 min 5 s</td><td>2 rules failed</td>' in html


def test_a_page_adds_a_kind_of_its_own() -> None:
    @dataclass(frozen=True)
    class Clock(Block):
        time: str

    with pytest.raises(TypeError, match="no way to draw Clock"):
        block_html(Clock("12:00"))
    block_html.register(Clock, lambda block: f"<time>{block.time}</time>")
    assert block_html(Section("Now", (Clock("12:00"),))) == "<section><h2>Now</h2><time>12:00</time></section>"


def test_the_text_of_words_with_roles() -> None:
    assert plain(("a", Span("b", "code"), Span("c"))) == "a b c"
