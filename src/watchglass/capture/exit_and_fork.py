"""Exit and fork of a watched process."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from watchglass.capture.guard import harmless
from watchglass.capture.process_failure import exit_text, keep_interrupt, report, uncaught

if TYPE_CHECKING:
    from watchglass.capture.hook import Hook


_watchers: list[Hook] = []


def close_at_exit(watcher: Hook, register: Callable[[Callable[[], None]], object] = atexit.register) -> None:
    """Close a watcher when the process ends, also in a child of multiprocessing, which runs no ``atexit``."""
    _watchers.append(watcher)
    exit_text.open()
    end = functools.partial(harmless(_end), watcher)
    register(end)
    watcher.on_close.append(lambda: _forget(watcher, end))
    # Also in a process that is no child yet: a spawned one becomes one only when its main module has been imported, and
    # forgets nothing then.
    _close_with_child(watcher)
    # A forked child of multiprocessing drops the finalizers of its parent, and may yet become a worker.
    multiprocessing.util.register_after_fork(watcher, harmless(_close_with_child))


def _close_with_child(watcher: Hook) -> None:
    finalizer = multiprocessing.util.Finalize(watcher, harmless(_end_of_child), (watcher,), exitpriority=100)
    watcher.on_close.append(finalizer.cancel)


def _end(watcher: Hook) -> None:
    error = uncaught()
    try:
        watcher.__exit__(None, error, getattr(sys, "last_traceback", None))
    except KeyboardInterrupt:
        watcher.active = False  # a second Ctrl-C: what is not written yet can be recovered
    finally:
        keep_interrupt(error)


def _end_of_child(watcher: Hook) -> None:
    # multiprocessing finalizes while the exception is on its way, and prints it afterwards.
    error = sys.exc_info()[1]
    report(error, trains=watcher.started)
    watcher.__exit__(None, error, None)


def _forget(watcher: Hook, end: Callable[[], None]) -> None:
    atexit.unregister(end)
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        exit_text.close()


def _report_fork() -> None:
    for watcher in _watchers:
        watcher.forked()


os.register_at_fork(after_in_child=harmless(_report_fork))
