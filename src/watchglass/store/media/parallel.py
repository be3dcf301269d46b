"""Several requests under way at once, also from a process that is about to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")


def at_once(count: int, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """``call`` of each item, up to ``count`` at once; after the first failure nothing more is begun.

    An interpreter that ends begins no threads, and does not even import what would: then it is one after another.

    Returns:
        The answers, in the order of the items.
    """
    if len(items) < 2:
        return [call(item) for item in items]
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(count, len(items)), thread_name_prefix="watchglass-objects") as pool:
        try:
            answers = pool.map(call, items)  # all is handed over here; what a call raises comes below
        except RuntimeError:
            return [call(item) for item in items]
        return list(answers)
