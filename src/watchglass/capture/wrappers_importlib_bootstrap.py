"""Wrappers around functions of a framework or of a script.

``warnings`` counts ``stacklevel`` in frames, and leaves out those of files with "importlib" and "_bootstrap" in their
names (``_is_internal_frame``, in every version of Python since 3.3). Therefore this file has that name: a warning that
points at its caller points at the line of the script, as if our frame were not there, and is shown once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

from watchglass.capture.guard import fault_everywhere

#: In the place of a result: the call ended by an exception.
RAISED = object()

Begin = Callable[[tuple[Any, ...], dict[str, Any]], bool]
End = Callable[[tuple[Any, ...], dict[str, Any], Any], None]


def around(
    original: Callable[..., Any],
    begin: Begin,
    end: End,
    *,
    bypass: Callable[[], bool] = lambda: False,
    passing: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """``original`` with calls before and after it; the original is called exactly once, even if they fail.

    Args:
        original: The function.
        begin: Called with positional and keyword arguments before it; returns whether ``end`` is to be called.
        end: Called with these and the result, or :data:`RAISED`, after it.
        bypass: Whether to pass through now, as while a compiler reads the code.
        passing: Called with the arguments where it passes through. Must never raise.

    Returns:
        A function of the same signature. Faults of ``begin`` and ``end`` end the capture and nothing else; to
        stop the training they may raise a ``BaseException``.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if bypass():
            if passing is not None:
                passing(*args, **kwargs)
            return original(*args, **kwargs)
        try:
            observed = begin(args, kwargs)
        except Exception as error:
            _end(end, args, kwargs)
            observed = fault_everywhere(error, begin)
        except BaseException:
            _end(end, args, kwargs)
            raise
        if not observed:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            _end(end, args, kwargs)
            raise
        try:
            end(args, kwargs, result)
        except Exception as error:
            fault_everywhere(error, end)
        return result

    name = getattr(original, "__name__", "call")
    # The name that a traceback shows.
    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(original)(call)


def with_another(original: Callable[[Any], Any], choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``original``, called with the result of ``choose`` for its argument; with the argument where that fails."""

    def call(value: Any) -> Any:
        try:
            chosen = choose(value)
        except Exception as error:
            fault_everywhere(error, choose)
            chosen = value
        return original(chosen)

    return call


def noting(original: Callable[..., Any], begins: Callable[[], object], fails: Callable[[], object]) -> Any:
    """``original``, with a call of ``begins`` before it, and of ``fails`` where it raises; neither may raise.

    It costs less than :func:`around`, for functions that are called for each sample.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        begins()
        try:
            return original(*args, **kwargs)
        except BaseException:
            fails()
            raise

    return call


def marking(original: Callable[..., Any], before: Callable[[], object], after: Callable[[], object]) -> Any:
    """``original``, with calls before and after it, however it ends; neither may raise.

    It costs less than :func:`around`, for functions that are called in each step.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        before()
        try:
            return original(*args, **kwargs)
        finally:
            after()

    return call


def timing(
    original: Callable[..., Any],
    begins: Callable[[], Any],
    ended: Callable[[Any, Any, Any], object],
) -> Callable[..., Any]:
    """A method; where ``begins()`` before it returns something, ``ended`` gets that, the object and the result.

    Nothing is reported of a call that raises. It costs less than :func:`around`, for methods that a step calls often.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            begun = begins()
        except Exception as error:
            begun = fault_everywhere(error, begins)
        result = original(*args, **kwargs)
        try:
            if begun:
                ended(begun, args[0], result)
        except Exception as error:
            fault_everywhere(error, ended)
        return result

    return call


class Sent:
    """A function of a script, with calls before and after it, which a process may inherit or get as it starts.

    Pickled for anything else, it is the function alone.

    Args:
        original: The function; None for nothing to call.
        begin: Called before it.
        end: Called after it, unless it raised.
    """

    def __init__(
        self, original: Callable[..., Any] | None, begin: Callable[[], object], end: Callable[[], object]
    ) -> None:
        self.original, self._begin, self._end = original, begin, end

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the original returns; it is called exactly once, even if the other calls fail."""
        try:
            self._begin()
        except Exception as error:
            fault_everywhere(error, self._begin)
        result = None if self.original is None else self.original(*args, **kwargs)
        try:
            self._end()
        except Exception as error:
            fault_everywhere(error, self._end)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            return operator.getitem, ((self.original,), 0)
        return Sent, (self.original, self._begin, self._end)


def _end(end: End, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        end(args, kwargs, RAISED)
    except Exception as error:
        fault_everywhere(error, end)
