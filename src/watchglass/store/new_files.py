"""Writing whole files that were not there before."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from itertools import islice
from pathlib import Path

from watchglass.store.contract import Content

#: A link planted in a foreign run must not lead reads or appends out of it.
NO_LINKS = os.O_NOFOLLOW
#: Most parts that one system call takes.
_PARTS = 1024


def write_all(descriptor: int, data: Content) -> None:
    """Write all of ``data``; one system call may write less, for instance before the disk is full."""
    parts = deque(memoryview(part).cast("B") for part in ([data] if isinstance(data, bytes) else data) if len(part))
    while parts:
        many = list(islice(parts, _PARTS))
        written = os.writev(descriptor, many) if len(many) > 1 else os.write(descriptor, many[0])
        while parts and written >= len(parts[0]):
            written -= len(parts.popleft())
        if written:
            parts[0] = parts[0][written:]


def write_new(path: Path, data: Content) -> None:
    """Create ``path`` and write all of ``data``, or leave nothing there; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o666)
    try:
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
    except BaseException:
        # It is ours since it was created, and half an object under its own name could never be written again.
        with suppress(OSError):
            os.unlink(path)
        raise
