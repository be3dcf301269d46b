"""JAX for the table of frameworks: its loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from watchglass.capture.jax import attention, transformations
from watchglass.capture.jax.jitted import Jitted
from watchglass.capture.jax.profiler import JaxProfiler
from watchglass.capture.jax.tracing import TRACING
from watchglass.capture.jax.watching import Watching
from watchglass.capture.loops import Loop
from watchglass.capture.port import Port
from watchglass.capture.profiling.windows import WindowProfiler
from watchglass.errors import InvalidValueError

_jit: Callable[..., Any] = jax.jit
_Jitted = type(jax.jit(lambda: None))


class JaxLoop(Loop):
    """Any loop that calls jitted functions with gradients in them, or computes gradients itself."""

    name = "jax"

    def is_loop(self, value: object) -> bool:
        """Whether this is a jitted function, or a pytree with arrays of JAX."""
        if isinstance(value, (Jitted, _Jitted)):
            return True
        try:
            return any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(value))
        except Exception:
            return False

    def attach(self, port: Port, watched: Any = None) -> None:
        """Watch all functions that are jitted and all gradients from now on.

        Raises:
            InvalidValueError: A function that was jitted before anything was watched.
        """
        if isinstance(watched, _Jitted):
            raise InvalidValueError(
                f"{getattr(watched, '__name__', 'the function')} was jitted before it could be watched; jit it by "
                "watchglass.jax.jit, or call watch before jax.jit"
            )
        if TRACING.watching is not None and TRACING.watching.port is port:
            return
        TRACING.reset(port.model_numbers)
        watching = TRACING.watching = Watching(port)
        port.detach_with(functools.partial(_leave, watching))
        for owner, name, wrapped in _wrappers():
            TRACING.replace(port, owner, name, wrapped)

    def profiler(self, port: Port) -> WindowProfiler:
        """``jax.profiler``."""
        return JaxProfiler(port)

    def jit(self, fun: Any = None, /, **options: Any) -> Any:
        """See :func:`watchglass.jax.jit`."""
        if fun is None:
            return functools.partial(self.jit, **options)
        if isinstance(fun, Jitted):
            return fun
        plain, fun = (fun, fun.__wrapped__) if isinstance(fun, _Jitted) else (_jit(fun, **options), fun)
        jitted = Jitted(plain, fun, _jit, options)
        jitted.watched.was_jitted = True
        return jitted

    def observe(self, tree: Any, name: str) -> None:
        """See :func:`watchglass.jax.observe`."""
        watching = TRACING.watching
        if watching is None or TRACING.observed(tree, name) or TRACING.busy:
            return
        watching.save(tree, name)


@functools.wraps(_jit)
def jit(*fun: Any, **options: Any) -> Any:
    """``jax.jit``, of functions that are watched."""
    if not fun:
        return functools.partial(jit, **options)
    plain = _jit(*fun, **options)
    return plain if isinstance(fun[0], Jitted) else Jitted(plain, fun[0], _jit, options)


def _wrappers() -> list[tuple[Any, str, Any]]:
    found = [
        (jax, "jit", jit),
        (jax, "grad", transformations.grad(jax.grad, jax.value_and_grad)),
        (jax, "value_and_grad", transformations.value_and_grad(jax.value_and_grad)),
        (jax, "vmap", transformations.vmap(jax.vmap)),
        (jax.lax, "scan", transformations.scan(jax.lax.scan)),
        *attention.wrappers(),
    ]
    found += [(jax, name, transformations.checkpoint(getattr(jax, name))) for name in ("checkpoint", "remat")]
    return found


def _leave(watching: Watching) -> None:
    if TRACING.watching is watching:
        TRACING.watching = None
