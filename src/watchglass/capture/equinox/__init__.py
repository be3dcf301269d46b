"""Equinox, which advises the loop of JAX: calls of layers, updates; the only package that imports it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox

from watchglass.capture.jax.models import TracedModule
from watchglass.capture.jax.tracing import TRACING
from watchglass.capture.loops import Loop
from watchglass.capture.port import Port
from watchglass.records import ModuleKind

#: Kinds of layers by the name of their class.
KINDS = {
    "Linear": ModuleKind.LINEAR,
    "Conv": ModuleKind.CONVOLUTION,
    "ConvTranspose": ModuleKind.CONVOLUTION,
    "LSTMCell": ModuleKind.RECURRENT,
    "GRUCell": ModuleKind.RECURRENT,
    "Embedding": ModuleKind.EMBEDDING,
    "BatchNorm": ModuleKind.NORMALIZATION,
    "LayerNorm": ModuleKind.NORMALIZATION,
    "GroupNorm": ModuleKind.NORMALIZATION,
    "RMSNorm": ModuleKind.NORMALIZATION,
    "MultiheadAttention": ModuleKind.ATTENTION,
    "PReLU": ModuleKind.ACTIVATION,
}


class EquinoxLoop(Loop):
    """Models of Equinox in functions that JAX transforms."""

    name = "equinox"

    def is_loop(self, value: object) -> bool:
        """Whether this is a module of Equinox."""
        return isinstance(value, equinox.Module)

    def attach(self, port: Port, watched: Any = None) -> None:
        """Observe calls of layers while functions are traced, and updates."""
        watching = TRACING.watching
        if watching is None or self.name in watching.advisers:
            return
        watching.advisers.add(self.name)
        TRACING.replace(port, equinox, "apply_updates", updating(equinox.apply_updates))
        for name, kind in KINDS.items():
            layer = getattr(equinox.nn, name, None)
            if layer is not None:
                TRACING.replace(port, layer, "__call__", observed(vars(layer)["__call__"], kind))


def updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """``equinox.apply_updates``, given the original."""

    @functools.wraps(original)
    def apply_updates(model: Any, updates: Any) -> Any:
        after = original(model, updates)
        if TRACING.watching is not None:
            kept = [equinox.filter(each, equinox.is_inexact_array) for each in (model, after)]
            TRACING.updates(*kept)
        return after

    return apply_updates


def observed(original: Callable[..., Any], kind: ModuleKind) -> Callable[..., Any]:
    """``__call__`` of a layer, given the original."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        averages = _averages(self, args) if TRACING.collects else (None, None)  # the state is used up then
        outputs = original(self, *args, **kwargs)
        if TRACING.traces:
            path = TRACING.path_of(self)
            call = None if path is None else TracedModule(path, type(self).__name__, kind, unit_axis=0)
            place = call and TRACING.entered(call)
            TRACING.normalizes(place, *averages)
            TRACING.called(place, _without_state(args), _without_state(outputs))
        return outputs

    return call


def _without_state(found: Any) -> Any:
    """What a layer takes or returns; a state cannot be read once it is used up."""
    if not isinstance(found, tuple):
        return found
    left = [each for each in found if not isinstance(each, equinox.nn.State)]
    return left[0] if len(left) == 1 else left


def _averages(layer: Any, args: tuple[Any, ...]) -> tuple[Any, Any]:
    """The moving averages of a layer, which it takes in a state besides its input."""
    states = [each for each in args if isinstance(each, equinox.nn.State)]
    index = getattr(layer, "ema_state_index", None) or getattr(layer, "state_index", None)
    return states[0].get(index) if states and isinstance(index, equinox.nn.StateIndex) else (None, None)
