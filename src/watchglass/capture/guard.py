"""The guard: the one place where the hot-path law is kept.

Return at once when off, re-entered or on another thread; never raise into the training; measure the cost.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from watchglass.errors import TrainingStopped

if TYPE_CHECKING:
    from watchglass.capture.hook import Hook

_Callback = TypeVar("_Callback", bound=Callable[..., Any])


def name_of(callback: Callable[..., Any]) -> str:
    """What a callback is called in a message."""
    return getattr(callback, "__qualname__", None) or repr(callback)


class Guard:
    """Lets callbacks into the training, and nothing of theirs but a stop.

    Args:
        hook: Whose callbacks these are; told of their faults and their cost.

    Attributes:
        waiting: The training's thread waits for others to do a part of its work: what they call counts as its calls.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._busy = self._suspended = False
        self._thread = threading.get_ident()
        self.waiting = False

    def guarded(self, callback: _Callback) -> _Callback:
        """``callback`` under the hot-path law: silent when off, re-entered or on another thread; never raises."""
        # Bound here: this runs many times in every step of the training.
        now_ns, thread, hook, cost = time.perf_counter_ns, threading.get_ident, self._hook, self._hook.cost

        @functools.wraps(callback)
        def run(*args: Any) -> Any:
            if self._busy or not hook.active or (thread() != self._thread and not self.waiting):
                return None
            self._busy = True
            started = now_ns()
            try:
                return callback(*args)
            except TrainingStopped:
                raise
            except Exception as error:
                hook.fault(error, name_of(callback))
                return None
            finally:
                self._busy = False
                cost.callbacks_ns += now_ns() - started

        return run  # type: ignore[return-value]

    def shielded(self, callback: _Callback) -> _Callback:
        """``callback``, which never raises but for a stop; called on any thread, and inside others."""
        hook = self._hook

        @functools.wraps(callback)
        def run(*args: Any) -> Any:
            if not hook.active:
                return None
            try:
                return callback(*args)
            except TrainingStopped:
                raise
            except Exception as error:
                hook.fault(error, name_of(callback))
                return None

        return run  # type: ignore[return-value]

    def lawful(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What a script calls, under the same law; inside a callback, where it is kept already, the call as it is."""
        if self._suspended or threading.get_ident() != self._thread:
            return None
        return call(*arguments) if self._busy else self.guarded(call)(*arguments)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Callbacks do nothing inside: what runs here is ours, not the training's."""
        before = self._busy, self._suspended
        self._busy = self._suspended = True
        try:
            yield
        finally:
            self._busy, self._suspended = before
