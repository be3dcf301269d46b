"""Words for numbers, the same in every message."""

from __future__ import annotations

import math


def count(amount: int, noun: str, plural: str = "") -> str:
    """``"1 step"``, ``"1,200 steps"``; ``plural`` if that is not the noun with an s."""
    return f"{amount:,} {noun if amount == 1 else plural or noun + 's'}"


def rounded(value: float, digits: int = 0) -> str:
    """``"12.3"`` with one digit after the point; what is not zero is never ``"0"``, but has one significant digit."""
    text = f"{value:.{digits}f}"
    return text if value == 0 or not math.isfinite(value) or float(text) else f"{value:.1g}"


def in_percent(ratio: float) -> str:
    """``"83 %"`` for 0.83; only all is 100 %, and only nothing is 0 %."""
    if 0.995 <= ratio < 1 or 0 < ratio < 0.005:
        return "over 99 %" if ratio > 0.5 else "under 1 %"
    return f"{100 * ratio:.0f} %"
