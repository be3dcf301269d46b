"""Decides who wrote an object when the answer to an exclusive write was lost."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

#: Name of the metadata that holds a write's mark. Azure wants an identifier.
MARK = "watchglasswrite"
#: Writes of unknown outcome that are remembered.
_MOST = 4096


class UncertainWrites:
    """Marks of exclusive writes that failed and may still have succeeded. Thread-safe."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[str, bytes]] = {}

    def mark_of(self, path: str, views: Sequence[memoryview]) -> tuple[str, bool]:
        """The mark to write with, and whether an earlier try with it may have succeeded.

        An earlier try counts only for the same bytes at the same path: other bytes must not be taken for these.
        """
        earlier = self._marks.get(path)
        if earlier is not None and earlier[1] == _digest(views):
            return earlier[0], True
        return secrets.token_hex(8), False

    def remember(self, path: str, mark: str, views: Sequence[memoryview]) -> None:
        """Note a failed write whose outcome is unknown; the caller may retry with the same bytes."""
        while len(self._marks) >= _MOST:
            self._marks.pop(next(iter(self._marks), ""), None)
        self._marks[path] = (mark, _digest(views))

    def settle(self, path: str) -> None:
        """The outcome is known."""
        self._marks.pop(path, None)


def _digest(views: Sequence[memoryview]) -> bytes:
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return digest.digest()
