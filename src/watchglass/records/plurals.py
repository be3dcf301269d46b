"""Words for numbers, the same in every message."""

from __future__ import annotations


def count(amount: int, noun: str, plural: str = "") -> str:
    """``"1 step"``, ``"1,200 steps"``; ``plural`` if that is not the noun with an s."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"
