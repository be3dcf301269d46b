"""Segments of a run as tests of the store write and read them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from watchglass.store import FrameKind, LocalStore, create_attempt, create_run, encode_frame, layout


def new_store(folder: Path) -> LocalStore:
    """A store with a run and its first attempt."""
    store = LocalStore(folder)
    create_run(store, command=[])
    create_attempt(store, "")
    return store


def fact(number: int) -> bytes:
    """A frame that holds a number."""
    return encode_frame(FrameKind.FACTS, b"%d" % number)


def numbers(found: Iterable[Any]) -> list[int]:
    """The numbers of such frames, as a reader gave them."""
    return [int(frame.payload) for _, _, frame in found if frame.kind == FrameKind.FACTS]


def segment(store: LocalStore, seq: int = 0) -> Path:
    """Where a segment of the first attempt lies."""
    return store.root / next(e.path for e in store.list(layout.segments(0)) if e.path.endswith(f"-{seq:08}"))
