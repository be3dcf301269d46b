"""Limits that the system sets to this process, for failures that really happen."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """Lower a limit of this process, one of ``resource.RLIMIT_*``, and restore it."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk on which every file is full at so many bytes: a write that begins earlier stops there.

    The system reports EFBIG, where a full disk reports ENOSPC. Python ignores the signal SIGXFSZ.
    """
    with limited(resource.RLIMIT_FSIZE, size):
        yield
