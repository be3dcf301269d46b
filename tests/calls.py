"""Calls of functions: those of this thread, and their number, for tests of what is not done again."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def uncollected() -> Iterator[None]:
    """A context in which no garbage is collected: that of another test may have finalizers."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def profiled(note: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """A context in which ``note`` gets what happens in this thread, as with :func:`sys.setprofile`."""
    before = sys.getprofile()
    with uncollected():
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)


@contextmanager
def counted_calls() -> Iterator[Counter[CodeType]]:
    """A context with the number of calls of each Python function in this thread, by ``function.__code__``."""
    found: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_code] += 1

    with profiled(note):
        yield found
