"""Exit and fork of a watched process."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import Any

from watchglass.capture.guard import harmless
from watchglass.capture.port import Port
from watchglass.capture.process.process_failure import exit_text, failure_from, keep_interrupt, report, uncaught

_watchers: list[Port] = []


def close_at_exit(watcher: Port, register: Callable[[Callable[[], None]], object] = atexit.register) -> None:
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


def _close_with_child(watcher: Port) -> None:
    finalizer = multiprocessing.util.Finalize(watcher, harmless(_end_of_child), (watcher,), exitpriority=100)
    watcher.on_close.append(finalizer.cancel)


def _end(watcher: Port) -> None:
    error = uncaught()
    try:
        _close(watcher, error, getattr(sys, "last_traceback", None))
    except KeyboardInterrupt:
        watcher.guard.active = False  # a second Ctrl-C: what is not written yet can be recovered
    finally:
        keep_interrupt(error)


def _end_of_child(watcher: Port) -> None:
    # multiprocessing finalizes while the exception is on its way, and prints it afterwards.
    error = sys.exc_info()[1]
    report(error, trains=watcher.started)
    _close(watcher, error, None)


def _close(watcher: Port, error: BaseException | None, trace: Any) -> None:
    failure = failure_from(error, trace)
    watcher.close("failed" if failure is not None else None, failure)


def _forget(watcher: Port, end: Callable[[], None]) -> None:
    atexit.unregister(end)
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        exit_text.close()


def _report_fork() -> None:
    for watcher in _watchers:
        watcher.forked()


os.register_at_fork(after_in_child=harmless(_report_fork))
