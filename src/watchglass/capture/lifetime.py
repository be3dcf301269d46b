"""The ends of a process that is watched: it exits, or it forks."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import Protocol

from watchglass.capture.guard import harmless


class Watcher(Protocol):
    """What has something to finish when its process ends."""

    on_close: list[Callable[[], None]]

    def close(self, status: str | None = None) -> None:
        """Write what is queued; ``status`` is ``"failed"`` where an exception ends the process."""

    def forked(self) -> None:
        """This process is a fork of the one that made the watcher."""


_watchers: list[Watcher] = []
_registered = False


def close_at_exit(watcher: Watcher) -> None:
    """Close a watcher when the process ends, also in a child of multiprocessing, which runs no ``atexit``."""
    global _registered
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=harmless(_tell_of_fork))
    _watchers.append(watcher)
    end = functools.partial(harmless(_end), watcher)
    atexit.register(end)
    watcher.on_close.append(lambda: _forget(watcher, end))
    if multiprocessing.parent_process() is not None:
        _close_with_child(watcher)
    # A forked child of multiprocessing forgets what its parent wanted to do at the end, and may yet become a worker.
    multiprocessing.util.register_after_fork(watcher, harmless(_close_with_child))


def _close_with_child(watcher: Watcher) -> None:
    multiprocessing.util.Finalize(watcher, harmless(watcher.close), exitpriority=100)


def _end(watcher: Watcher) -> None:
    # Where nobody caught it, Python has printed and kept it; in an interactive session it ended a line, no more.
    crashed = getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
    watcher.close("failed" if crashed else None)


def _forget(watcher: Watcher, end: Callable[[], None]) -> None:
    atexit.unregister(end)
    if watcher in _watchers:
        _watchers.remove(watcher)


def _tell_of_fork() -> None:
    for watcher in _watchers:
        watcher.forked()
