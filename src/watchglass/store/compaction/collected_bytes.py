"""Bytes that are collected before they can be written as one object: in memory while few, in a temporary file then."""

from __future__ import annotations

import mmap
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

_IN_MEMORY = 8 << 20
_CHUNK = 4 << 20


class CollectedBytes:
    """Bytes that grow by appending. For one thread; close it.

    Attributes:
        size: How many there are.
        crc: Their CRC-32.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, prefix="watchglass-")  # noqa: SIM115  closed by close
        self.size = self.crc = 0

    def add(self, data: bytes) -> None:
        """Add bytes at the end."""
        self._file.seek(self.size)
        self._file.write(data)
        self.size += len(data)
        self.crc = zlib.crc32(data, self.crc)

    @contextmanager
    def parts(self) -> Iterator[list[bytes | memoryview]]:
        """The bytes in parts, for as long as the context lasts; those of a file are mapped, not read."""
        if self.size <= _IN_MEMORY:
            self._file.seek(0)
            yield [self._file.read()]
            return
        self._file.rollover()
        self._file.flush()
        with mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ) as mapped:
            whole = memoryview(mapped)
            views = [whole[at : at + _CHUNK] for at in range(0, self.size, _CHUNK)]
            try:
                yield list[bytes | memoryview](views)
            finally:
                for view in (*views, whole):
                    view.release()

    def close(self) -> None:
        """Release them."""
        self._file.close()
