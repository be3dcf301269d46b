"""The guard keeps the hot-path law: a fault of watchglass ends the capture, never the training run.

Frameworks, modules, optimizers, loaders, the interpreter and compilers call only callbacks that went through
:meth:`Guard.guarded` or :meth:`Guard.shielded`, outermost, or functions made by
:func:`~watchglass.capture.wrappers_importlib_bootstrap.around`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from watchglass.capture.planning.cost import Cost

_Callback = TypeVar("_Callback", bound=Callable[..., Any])


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


def fault_everywhere(error: Exception, where: Callable[..., Any]) -> bool:
    """A part that all captures share has failed: end each capture; returns False.

    A closed one is skipped, even if it is strict. A strict one raises once the others are off.
    """
    strict = False
    for guard in list(_guards):
        strict = guard.fault_shared(error, where) or strict
    if strict:
        raise error
    return False


def harmless(callback: _Callback) -> _Callback:
    """``callback`` of a part that all captures share; it raises only :class:`~watchglass.errors.TrainingStopped`."""

    @functools.wraps(callback)
    def run(*args: Any) -> Any:
        try:
            return callback(*args)
        except Exception as error:
            fault_everywhere(error, callback)
            return None

    return run  # type: ignore[return-value]  # takes the arguments of the callback


def _is_of_the_script(ident: int) -> bool:
    """Whether Python has started this thread. Python lists no thread of a library, or lists a dummy for it."""
    return any(each.ident == ident and type(each).__name__ != "_DummyThread" for each in threading.enumerate())


def name_of(callback: Callable[..., Any]) -> str:
    """Name of a callback in a message."""
    return getattr(callback, "__qualname__", None) or repr(callback)


class Guard:
    """Runs callbacks in the training process; of their exceptions only ``TrainingStopped`` passes.

    Args:
        cost: Gets the time of the callbacks.
        on_fault: Called once with the fault that ends the capture, and the name of the callback.
        strict: Whether a fault is raised.

    Attributes:
        active: Whether callbacks run; false after a fault and after the end of the capture.
        broken: Whether a fault has ended the capture.
        strict: Whether a fault is raised.
        thread: Identity of the training thread: the one that has made the guard, unless another one enters.
        waiting: The training thread waits for other threads that do its work: their calls count as its calls.
        passing: A loop that drives runs a function of its framework, and collects itself: what guarded callbacks would
            observe meanwhile is a part of its step.
    """

    def __init__(self, cost: Cost, on_fault: Callable[[Exception, str], None], *, strict: bool) -> None:
        self._cost, self._on_fault = cost, on_fault
        self.active, self.broken, self.strict = True, False, strict
        self._busy = self._suspended = False
        self._undo: list[Callable[[], object]] = []
        self.thread = threading.get_ident()
        self.waiting = self.passing = False
        _guards.add(self)

    @property
    def is_busy(self) -> bool:
        """Whether what runs now is not observed: a callback, code of capture itself, or a step of a loop around it."""
        return self._busy or self.passing

    def enter_thread(self) -> None:
        """The calling thread is the one that trains; before anything is observed."""
        self.thread = threading.get_ident()

    def guarded(self, callback: _Callback, *, unless: Callable[[], bool] | None = None) -> _Callback:
        """``callback`` under the hot-path law: silent when off, re-entered or on another thread; never raises.

        Args:
            callback: The callback.
            unless: Whether to do nothing now, called first: a compiler that reads the code must not get further.
        """
        # Bound here: this runs many times in every step.
        thread, cost = threading.get_ident, self._cost
        now_ns = cost.now_ns

        @functools.wraps(callback)
        def run(*args: Any) -> Any:
            if unless is not None and unless():
                return None
            if self._busy or self.passing or not self.active or (thread() != self.thread and not self.is_lent):
                return None
            self._busy = True
            started = now_ns()
            try:
                if cost.measures:
                    cost.entered(started)
                result = callback(*args)
                if cost.measures:
                    cost.left(now_ns())
                return result
            except Exception as error:
                self.fault(error, callback)
                return None
            finally:
                self._busy = False
                cost.callbacks_ns += now_ns() - started

        return run  # type: ignore[return-value]  # takes the arguments of the callback

    def shielded(
        self, callback: _Callback, *, unless: Callable[[], bool] | None = None, leaves: bool = False
    ) -> _Callback:
        """``callback``, which raises only ``TrainingStopped``; for callbacks on any thread, or with their own checks.

        Args:
            callback: The callback.
            unless: As of :meth:`guarded`.
            leaves: Whether hooks may be removed here, after a fault: not where PyTorch is going through them.
        """

        # Not with functools.wraps: some are made at every step.
        def run(*args: Any) -> Any:
            if unless is not None and unless():
                return None
            if not self.active:
                if leaves:
                    self.detach_if_broken()
                return None
            try:
                return callback(*args)
            except Exception as error:
                self.fault(error, callback)
                return None

        return run  # type: ignore[return-value]  # takes the arguments of the callback

    @property
    def is_lent(self) -> bool:
        """Whether the training thread waits for the calling thread, which autograd has started.

        Threads that the script starts do not count: they train nothing that is watched.
        """
        return self.waiting and not _is_of_the_script(threading.get_ident())

    def fault(self, error: Exception, where: Callable[..., Any] | str) -> None:
        """A callback has raised: end the capture; raise only if strict.

        Args:
            error: The exception.
            where: The callback, or a name of the work.
        """
        if self.strict:
            raise error
        if not self.broken:
            self.active, self.broken = False, True
            self._on_fault(error, where if isinstance(where, str) else name_of(where))

    def fault_shared(self, error: Exception, where: Callable[..., Any]) -> bool:
        """A shared part has raised; returns whether to raise it: this guard is active and strict."""
        if not self.active or self.strict:
            return self.active
        self.fault(error, where)
        return False

    def detach_with(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` when the capture detaches."""
        self._undo.append(undo)

    def detach(self) -> None:
        """Undo what was put into frameworks, the last one first."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:  # the others must be undone too
                self.fault(error, "detaching")

    def detach_if_broken(self) -> bool:
        """Detach after a fault, from where that is safe; returns whether there was one.

        Not called during a fault: PyTorch may be iterating over the hooks that this removes.
        """
        if self.broken:
            self.detach()
        return self.broken

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of capture for a script: guarded, or plainly inside a callback, which is guarded already."""
        if self._suspended or threading.get_ident() != self.thread:
            return None
        if self._busy:
            return function(*arguments)
        passing, self.passing = self.passing, False
        try:
            return self.guarded(function)(*arguments)
        finally:
            self.passing = passing

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Callbacks do nothing inside: this code belongs to capture, not to the script."""
        before = self._busy, self._suspended
        self._busy = self._suspended = True
        try:
            yield
        finally:
            self._busy, self._suspended = before
