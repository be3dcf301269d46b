"""Decisions taken from bytes, so that one fuzz target serves hypothesis, atheris and plain chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")


class Choices:
    """Takes decisions from the front of ``data``; once that is used up every decision is the first possible one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether anything is left to decide with."""
        return self._at < len(self._data)

    def number(self, below: int) -> int:
        """A number in ``[0, below)``."""
        if below <= 1:
            return 0
        width = ((below - 1).bit_length() + 7) // 8
        taken = self._data[self._at : self._at + width]
        self._at += width
        return int.from_bytes(taken, "little") % below

    def one_of(self, options: Sequence[_T]) -> _T:
        """One of the options."""
        return options[self.number(len(options))]

    def rarely(self) -> bool:
        """True one time in eight."""
        return self.number(8) == 7

    def content(self, most: int) -> bytes:
        """Up to so many arbitrary bytes."""
        size = self.number(most + 1)
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken
