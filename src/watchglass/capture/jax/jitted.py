"""What ``jax.jit`` returns to the script: a function of JAX that also knows its twin."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

from watchglass.capture.jax.tracing import TRACING, Passing

#: Packages whose own functions are no steps.
_LIBRARIES = frozenset(("jax", "jaxlib", "optax", "flax", "chex", "orbax", "distrax", "numpy", "watchglass"))


class Jitted:
    """A jitted function. Attributes and behaviour are those of the one of JAX, which is called where nothing is due.

    Args:
        plain: What JAX made.
        fun: The function.
        jit: The ``jit`` of JAX.
        options: Its options.
    """

    def __init__(
        self, plain: Callable[..., Any], fun: Callable[..., Any], jit: Callable[..., Any], options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, plain)
        for name in ("lower", "trace", "eval_shape", "clear_cache"):
            vars(self)[name] = getattr(plain, name)
        self.watched = Watched(plain, fun, jit, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        watching, watched = TRACING.watching, self.watched
        if TRACING.busy and TRACING.collector.active and TRACING.collects:
            return watched.passed(args, kwargs)
        if watching is None or TRACING.busy or watching.port.guard.passing:
            return watched.plain(*args, **kwargs)
        return watching.call(watched, args, kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "watched":  # while it is copied
            raise AttributeError(name)
        return getattr(self.watched.plain, name)

    def __repr__(self) -> str:
        return repr(self.watched.plain)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return operator.getitem, ((self.watched.plain,), 0)  # what JAX made, alone


class Watched:
    """A jitted function with what its twin needs.

    Args:
        plain: What JAX made.
        fun: The function.
        jit: The ``jit`` of JAX.
        options: Its options.

    Attributes:
        is_of_library: Whether a library has it for itself, so that it is no step.
        known: What the present watching knows of it.
        was_jitted: Whether JAX may have traced it before it could be watched.
        donates: Whether it may reuse the memory of arguments.
    """

    def __init__(self, plain: Any, fun: Callable[..., Any], jit: Callable[..., Any], options: dict[str, Any]) -> None:
        self.plain, self.fun, self._jit, self._options = plain, fun, jit, options
        self.name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or repr(fun)
        self.is_of_library = str(getattr(fun, "__module__", "")).partition(".")[0] in _LIBRARIES
        self._numbers, self._names = _static_arguments(fun, options)
        self.known: Any = None
        found = (options.get(name) for name in ("donate_argnums", "donate_argnames"))
        self.donates = any(each not in (None, ()) for each in found)
        self.was_jitted = False

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The static arguments of a call."""
        if not self._numbers:
            return None
        given = [args[each] for each in self._numbers if each < len(args)]
        return (*given, *((name, kwargs[name]) for name in self._names if name in kwargs))

    def passed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call inside a twin that is traced: the values inside are collected, too."""
        passing = Passing(TRACING, self.fun)
        out, values = self.jit_of(passing)(*args, **kwargs)
        passing.absorb(out, values)
        return out

    def jit_of(self, fun: Callable[..., Any]) -> Any:
        """A function that returns the result of this one and values, jitted with the same options."""
        options = dict(self._options)
        if options.get("out_shardings") is not None:
            options["out_shardings"] = (options["out_shardings"], None)
        return self._jit(fun, **options)


def _static_arguments(fun: Callable[..., Any], options: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the static arguments, as JAX completes each by the other."""
    numbers, names = options.get("static_argnums"), options.get("static_argnames")
    found = [] if numbers is None else [numbers] if isinstance(numbers, int) else list(numbers)
    named = [] if names is None else [names] if isinstance(names, str) else list(names)
    if not found and not named:
        return (), ()
    try:
        parameters = list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        parameters = []
    found = [each % len(parameters) if each < 0 and parameters else each for each in found]
    by_position = {parameters[each] for each in found if 0 <= each < len(parameters)}
    by_name = {index for index, name in enumerate(parameters) if name in named}
    return tuple(sorted({*found, *by_name})), tuple(sorted({*named, *by_position}))
