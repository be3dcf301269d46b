"""Blocks: what a page of a run is made of, as data. ``html_format.py`` draws them for reports and live pages.

A section function returns blocks and no markup, so each sentence is written once and each format escapes in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchglass.view.pictures.records import Picture
from watchglass.view.pictures.tables import Block, Inline, Span, TextTable, plain


@dataclass(frozen=True)
class Text(Block):
    """A paragraph.

    Attributes:
        content: The text.
        role: What it is: ``""``, ``"path"``, ``"empty"`` (why nothing is there), ``"small"`` or ``"if-so"``.
    """

    content: Inline
    role: str = ""


@dataclass(frozen=True)
class Items(Block):
    """A list.

    Attributes:
        items: The items, each of one or several blocks. A text alone is short for a :class:`Text`.
        ordered: Whether the items have numbers.
    """

    items: Sequence[Block | str | Sequence[Block]]
    ordered: bool = False


@dataclass(frozen=True)
class Pairs(Block):
    """Labels with what belongs to each; those without content are not shown."""

    pairs: Sequence[tuple[str, Sequence[Block]]]


@dataclass(frozen=True)
class Figure(Block):
    """A picture with a caption, plain text: how to read it."""

    picture: Picture
    caption: str = ""


@dataclass(frozen=True)
class Gallery(Block):
    """Small figures side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Disclosure(Block):
    """Blocks below a title that opens and closes them."""

    title: str
    blocks: Sequence[Block]
    opened: bool = False


@dataclass(frozen=True)
class Section(Block):
    """Blocks below a heading; without any blocks it is not shown.

    Attributes:
        title: The heading, plain text.
        blocks: What is below it.
        level: 1 for the head of a page, 2 for its sections, 3 for parts of these.
        tone: ``"error"``, ``"warning"``, ``"info"``, ``"healthy"``, or "" for none.
        label: Small words above the heading.
    """

    title: str
    blocks: Sequence[Block]
    level: int = 2
    tone: str = ""
    label: str = ""


__all__ = [
    "Block",
    "Disclosure",
    "Figure",
    "Gallery",
    "Inline",
    "Items",
    "Pairs",
    "Section",
    "Span",
    "Text",
    "TextTable",
    "captioned",
    "plain",
]  # fmt: skip


def captioned(pictures: Iterable[tuple[str, Picture]]) -> list[Figure]:
    """Figures from captions and pictures."""
    return [Figure(picture, caption) for caption, picture in pictures]
