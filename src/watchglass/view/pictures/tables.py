"""Tables and words, as data: what pages and pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


class Block:
    """A part of a page."""


@dataclass(frozen=True)
class Span:
    """Words with a role in a text or a cell.

    Attributes:
        text: The words, plain text.
        role: ``"code"``, ``"strong"``, ``"score"``, ``"small"``, ``"tag error"`` (or another severity), or "".
        address: Where a live page leads from here; "" for nowhere. What stands alone, such as a report, leads nowhere.
    """

    text: str
    role: str = ""
    address: str = ""


#: Text of one or several parts, with spaces between them.
Inline: TypeAlias = "str | Span | Sequence[str | Span]"


def plain(content: Inline) -> str:
    """The text without its roles."""
    if isinstance(content, str):
        return content
    return content.text if isinstance(content, Span) else " ".join(map(plain, content))


@dataclass(frozen=True)
class TextTable(Block):
    """A table.

    Attributes:
        head: Titles of the columns; () for none.
        rows: Its cells.
        role: ``"findings"`` for one that needs much width, else "".
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Inline]]
    role: str = ""
