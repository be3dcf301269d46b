"""The functions of a script that are jitted: each is looked at before its first call, and gets a twin."""

from __future__ import annotations

import logging
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from watchglass.capture.compiled.twin import Twin
from watchglass.capture.frameworks import FRAMEWORKS, member
from watchglass.capture.hidden_steps import HiddenFunctions
from watchglass.capture.jax.functions import NO_STEP, About, Function, FunctionRepetition, Outcome
from watchglass.capture.jax.jitted import Watched
from watchglass.capture.jax.results import differentiates
from watchglass.capture.jax.tracing import GRADIENT, OPTIMIZER, TRACING, UPDATE, traced
from watchglass.capture.port import Port

_log = logging.getLogger("watchglass")
(_, _INSIDE) = FRAMEWORKS["jax"].hidden


class KnownFunctions:
    """What the functions of a process do, and their twins. For the training thread.

    Args:
        port: Gets the fact that a twin cannot be traced.
        hidden: Gets functions whose gradients are hidden in them.

    Attributes:
        programs: Programs of twins that were traced since the last step, what they return, and numbers of models.
        raised: What the script's function has raised as it was traced ahead of its call, for that call to raise.
    """

    def __init__(self, port: Port, hidden: HiddenFunctions) -> None:
        self._port, self._hidden = port, hidden
        self._functions: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()
        self._arrays = member(FRAMEWORKS["jax"].arrays)
        self.programs: list[tuple[Any, Any, int]] = []
        self.raised: Exception | None = None

    def about(self, watched: Watched, args: Any, kwargs: Any) -> About | None:
        """What a call of a function does; None if it is unknown."""
        known = watched.known
        if known is None or known[0] is not self:
            known = watched.known = (self, self._function(watched.fun), None)
        key = watched.key(args, kwargs)
        about: About | None = known[1].about.get(key)
        if about is None:
            about = self._look(watched, args, kwargs)
            if about is None:
                return None
            known[1].about[key] = about
        if about.does and known[2] is None:
            watched.known = (self, known[1], self._twin(watched, known[1]))
        return about

    def _function(self, fun: Any) -> Function:
        try:
            return self._functions.setdefault(fun, Function(fun))
        except TypeError:  # no weak references, or no hash
            return Function(fun)

    def _twin(self, watched: Watched, function: Function) -> Twin:
        jitted = watched.jit_of(function.again() if function.writes_loss else function)

        def trace(*args: Any, **kwargs: Any) -> None:
            nonlocal jitted
            function.latest = None
            arrays = list(filter(self._arrays.is_array, jax.tree_util.tree_leaves((args, kwargs))))
            whole = all(each.is_fully_addressable for each in arrays)
            function.on_device = whole and not all(map(self._arrays.on_host, arrays))
            with TRACING.inside():
                found = jitted.trace(*args, **kwargs)
                # Units of what lies on a device are counted in the twin.
                for more in (function.is_to_be_read, lambda shown: function.tags(shown) and function.on_device):
                    if more(found):
                        jitted = watched.jit_of(function.again())
                        found = jitted.trace(*args, **kwargs)
            shown = function.complete(found)
            if shown is not None:
                self.programs.append((found.jaxpr, found.out_info, shown.about.model))

        run = lambda *args, **kwargs: running(jitted, *args, **kwargs)  # noqa: E731  # a trace may change it
        repetition = FunctionRepetition(function, donates=watched.donates)
        return Twin(self._port, watched.name, trace, run, repetition)

    def _look(self, watched: Watched, args: Any, kwargs: Any) -> About | None:
        """Trace a function ahead of its first call, which makes use of that trace; None if it is a part of another."""
        if traced(args, kwargs) or jax.config.jax_disable_jit:
            return None
        try:
            with TRACING.observing() as seen:
                found = watched.plain.trace(*args, **kwargs)
        except Exception as error:
            if _is_of_script(error):
                self.raised = error
            return None  # else the call raises the same
        trained, _ = TRACING.models.found_in((args, kwargs))
        if not (seen or trained or watched.was_jitted or differentiates(found.jaxpr.jaxpr)):
            return NO_STEP  # a helper function: it is traced once, as without us
        function: Function = watched.known[1]
        function.trains |= GRADIENT in seen
        twin = self._twin(watched, function)
        watched.known = (self, function, twin)
        if twin.ready(*args, **kwargs) and function.latest is not None:
            about = function.latest.about
            if GRADIENT not in seen or GRADIENT in about.does:
                return replace(about, does=about.does | _whole(seen))
            self._hidden.report(_INSIDE, watched.name)
            return NO_STEP
        about = Outcome.of(found.out_info, {}, {}).completed(None).about
        does = frozenset(seen) | _whole(seen)
        return replace(about, does=does, model=TRACING.models.current if does else 0)


def running(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The result of a function of the script; functions that are called in it are parts of it."""
    TRACING.busy = True
    try:
        return function(*args, **kwargs)
    finally:
        TRACING.busy = False


def _whole(seen: set[str]) -> frozenset[str]:
    """An update that does not show among the values, because it is made in a condition or by hand."""
    made = GRADIENT in seen and seen & {UPDATE, OPTIMIZER}
    return frozenset((UPDATE,)) if made else frozenset()


#: Packages whose frames are no code of the script.
_BETWEEN = frozenset(("jax", "jaxlib", "optax", "flax", "equinox", "contextlib", "functools"))


def _is_of_script(error: Exception) -> bool:
    """Whether code of the script has raised an exception, and no function that watchglass has put around another."""
    found = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _BETWEEN:
            found = package != "watchglass"
    return found
