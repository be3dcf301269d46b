"""Flax, linen and NNX, which advises the loop of JAX: calls of modules; the only package that imports it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flax import linen, nnx

from watchglass.capture.jax.models import TracedModule
from watchglass.capture.jax.tracing import TRACING
from watchglass.capture.loops import Loop
from watchglass.capture.port import Port
from watchglass.records import ModuleKind

#: Kinds of modules by the name of their class, in linen and NNX.
KINDS = {
    **dict.fromkeys(
        ("Dense", "DenseGeneral", "Einsum", "Linear", "LinearGeneral", "LoRA", "LoRALinear"), ModuleKind.LINEAR
    ),
    **dict.fromkeys(("Conv", "ConvLocal", "ConvTranspose"), ModuleKind.CONVOLUTION),
    **dict.fromkeys(
        ("LSTMCell", "OptimizedLSTMCell", "GRUCell", "MGUCell", "SimpleCell", "ConvLSTMCell", "RNN", "Bidirectional"),
        ModuleKind.RECURRENT,
    ),
    "Embed": ModuleKind.EMBEDDING,
    **dict.fromkeys(("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm"), ModuleKind.NORMALIZATION),
    **dict.fromkeys(
        ("MultiHeadAttention", "MultiHeadDotProductAttention", "SelfAttention"), ModuleKind.ATTENTION
    ),
    "PReLU": ModuleKind.ACTIVATION,
    "Dropout": ModuleKind.DROPOUT,
    "Sequential": ModuleKind.CONTAINER,
}  # fmt: skip


class FlaxLoop(Loop):
    """Modules of Flax in functions that JAX transforms."""

    name = "flax"

    def is_loop(self, value: object) -> bool:
        """Whether this is a module of linen or NNX."""
        return isinstance(value, (linen.Module, nnx.Module))

    def attach(self, port: Port, watched: Any = None) -> None:
        """Observe calls of modules while functions are traced."""
        watching = TRACING.watching
        if watching is None or self.name in watching.advisers:
            return
        watching.advisers.add(self.name)
        TRACING.around.append(lambda: linen.intercept_methods(_intercept))
        for name in KINDS:
            layer = getattr(nnx, name, None)
            if isinstance(layer, type) and "__call__" in vars(layer):
                TRACING.replace(port, layer, "__call__", observed(vars(layer)["__call__"]))


def observed(original: Callable[..., Any]) -> Callable[..., Any]:
    """``__call__`` of a layer of NNX, given the original."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        averages = [each.get_value() for each in vars(self).values() if isinstance(each, nnx.BatchStat)]
        outputs = original(self, *args, **kwargs)
        if TRACING.traces:
            path = TRACING.path_of([each.get_value() for each in vars(self).values() if isinstance(each, nnx.Variable)])
            call = None if path is None else TracedModule(path, type(self).__name__, _kind(type(self)))
            place = call and TRACING.entered(call)
            if len(averages) == 2:
                TRACING.normalizes(place, *averages)
            TRACING.called(place, _inputs(args), outputs)
        return outputs

    return call


def _intercept(following: Any, args: Any, kwargs: Any, context: Any) -> Any:
    module = context.module
    if context.method_name != "__call__" or not TRACING.traces:
        return following(*args, **kwargs)
    kind = _kind(type(module))
    rate = getattr(module, "rate", 0.0) if kind is ModuleKind.DROPOUT else 0.0
    call = TracedModule(
        tuple(module.path), type(module).__name__, kind, dropout=rate if isinstance(rate, (int, float)) else 0.0
    )
    with TRACING.within(module.variables.get("params", {})):
        place = TRACING.entered(call)
        averages = module.variables.get("batch_stats", {})
        TRACING.normalizes(place, averages.get("mean"), averages.get("var"))
        outputs = following(*args, **kwargs)
        TRACING.called(place, _inputs(args), outputs)
    return outputs


def _inputs(args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 1 else list(args)


def _kind(kind: type) -> ModuleKind:
    known = next((KINDS[each.__name__] for each in kind.__mro__ if _is_of_flax(each) and each.__name__ in KINDS), None)
    return known or (ModuleKind.OTHER if _is_of_flax(kind) else ModuleKind.CONTAINER)


def _is_of_flax(kind: type) -> bool:
    return kind.__module__.startswith("flax.")
