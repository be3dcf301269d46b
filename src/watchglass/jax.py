"""What a script in JAX may call itself; imports nothing of JAX before it is used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from watchglass.capture import loop


def observe(tree: Any, name: str) -> Any:
    """Save arrays at the current step, also inside functions that JAX traces; returns them.

    It works inside ``jit``, ``grad``, ``vmap``, ``scan`` and ``checkpoint``. Where nothing is watched it does nothing.

    Args:
        tree: A pytree of arrays.
        name: Its name in the run; of an array in a pytree the path follows, ``hidden.0``.
    """
    if "watchglass.capture.jax" in sys.modules:
        loop("jax").observe(tree, name)  # type: ignore[attr-defined]  # of JAX alone
    return tree


def jit(fun: Any = None, /, **options: Any) -> Any:
    """``jax.jit``, whose calls are watched as soon as something watches.

    For functions that are jitted before :func:`watchglass.watch` is called.

    Args:
        fun: The function, or what ``jax.jit`` has made of it with the same options.
        **options: Those of ``jax.jit``.
    """
    import_module("jax")  # its adapter is made once it is imported
    return loop("jax").jit(fun, **options)  # type: ignore[attr-defined]  # of JAX alone
