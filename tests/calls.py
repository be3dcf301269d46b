"""Counts the calls of functions, for tests of what is not done again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType


@contextmanager
def counted_calls() -> Iterator[Counter[CodeType]]:
    """A context with the number of calls of each Python function in this thread, by ``function.__code__``."""
    found: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
