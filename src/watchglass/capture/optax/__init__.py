"""optax, which advises the loop of JAX: updates, settings of optimizers, losses; the only package that imports it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import optax

from watchglass.capture.jax.tracing import TRACING
from watchglass.capture.loops import Loop
from watchglass.capture.optax.losses import LOSSES, losing
from watchglass.capture.optax.optimizers import CLIPS, FACTORIES, clipping, injecting, making
from watchglass.capture.port import Port


class OptaxLoop(Loop):
    """Updates by ``optax.apply_updates``, and what optimizers and losses of optax were made with."""

    name = "optax"

    def is_loop(self, value: object) -> bool:
        """Whether this is an optimizer of optax."""
        return isinstance(value, optax.GradientTransformation)

    def attach(self, port: Port, watched: Any = None) -> None:
        """Observe updates, optimizers that are made, and losses."""
        watching = TRACING.watching
        if watching is None or self.name in watching.advisers:
            return
        watching.advisers.add(self.name)
        TRACING.replace(port, optax, "apply_updates", updating(optax.apply_updates))
        for name, kind in FACTORIES.items():
            if hasattr(optax, name):
                TRACING.replace(port, optax, name, making(getattr(optax, name), kind, port))
        for name, limit in CLIPS.items():
            TRACING.replace(port, optax, name, clipping(getattr(optax, name), name, limit, port))
        TRACING.replace(port, optax, "inject_hyperparams", injecting(optax.inject_hyperparams))
        for owner in (optax, optax.losses):
            for name, loss in LOSSES.items():
                if hasattr(owner, name):
                    TRACING.replace(port, owner, name, losing(getattr(owner, name), loss))


def updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """``optax.apply_updates``, given the original."""

    @functools.wraps(original)
    def apply_updates(params: Any, updates: Any) -> Any:
        after = original(params, updates)
        TRACING.updates(params, after)
        return after

    return apply_updates
