"""Transformations of JAX as the script calls them: they pass on what is collected inside the functions they transform.

Outside of the trace of a twin they do what JAX does, and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.jax.tracing import GRADIENT, TRACING, Passing, traced

#: What further results are a mean of, over micro-batches or samples.
_AVERAGED = frozenset((ValuePart.GRADIENT, ValuePart.LOSS, ValuePart.METRIC, ValuePart.ATTENTION))


def value_and_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.value_and_grad``, given the original."""
    return _differentiating(original, original, lambda result, has_aux: result, valued=True)


def grad(original: Callable[..., Any], both: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.grad``, given the original, and that of ``jax.value_and_grad``."""

    def gradient_of(result: Any, has_aux: bool) -> Any:
        value, gradients = result
        return (gradients, value[1]) if has_aux else gradients

    return _differentiating(original, both, gradient_of, valued=False)


def _differentiating(
    original: Callable[..., Any], both: Callable[..., Any], given: Callable[[Any, bool], Any], *, valued: bool
) -> Callable[..., Any]:
    @functools.wraps(original)
    def transform(fun: Any, argnums: Any = 0, has_aux: bool = False, *positional: Any, **options: Any) -> Any:
        plain = original(fun, argnums, has_aux, *positional, **options)

        def collecting(*args: Any, **kwargs: Any) -> Any:
            def with_options(inner: Callable[..., Any]) -> Any:
                return both(inner, argnums, True, *positional, **options)

            found = TRACING.differentiated(fun, with_options, argnums, has_aux, args, kwargs)
            return given(found, has_aux)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if TRACING.sees(GRADIENT):
                return collecting(*args, **kwargs)
            watching = TRACING.watching
            if watching is None or TRACING.busy or watching.port.guard.passing:
                return plain(*args, **kwargs)
            if traced(args, kwargs):
                watching.hides(fun)
                return plain(*args, **kwargs)
            loss = (_loss_before_aux if has_aux else _loss_alone) if valued else None
            return watching.gradient((argnums, loss), plain, collecting, args, kwargs)

        return call

    return transform


def _loss_alone(result: Any) -> Any:
    return result[0]


def _loss_before_aux(result: Any) -> Any:
    return result[0][0]


def vmap(original: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.vmap``, given the original."""

    @functools.wraps(original)
    def transform(fun: Any, in_axes: Any = 0, out_axes: Any = 0, *positional: Any, **options: Any) -> Any:
        plain = original(fun, in_axes, out_axes, *positional, **options)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not TRACING.collects:
                return plain(*args, **kwargs)
            passing = Passing(TRACING, fun)
            out, values = original(passing, in_axes, (out_axes, 0), *positional, **options)(*args, **kwargs)
            passing.absorb(out, values, _averaged)
            return out

        return call

    return transform


def checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.checkpoint``, given the original."""

    @functools.wraps(original)
    def transform(fun: Any, **options: Any) -> Any:
        plain = original(fun, **options)

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not TRACING.collects:
                return plain(*args, **kwargs)
            passing = Passing(TRACING, fun)
            out, values = original(passing, **options)(*args, **kwargs)
            passing.absorb(out, values)
            return out

        return call

    return transform


def scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.lax.scan``, given the original.

    A loop whose body updates parameters is one over steps: tensors are those of its last step, and there is a loss for
    each. Of another one gradients and losses are means, as over micro-batches.
    """

    @functools.wraps(original)
    def call(f: Any, *positional: Any, **options: Any) -> Any:
        if not TRACING.collects:
            return original(f, *positional, **options)
        passing = Passing(TRACING, f)

        def body(carry: Any, x: Any) -> Any:
            (carry, y), values = passing(carry, x)
            return carry, (y, values)

        carry, (ys, values) = original(body, *positional, **options)
        steps = any(TRACING.collector.known[key].part is ValuePart.AFTER for key in values)
        passing.absorb((carry, ys), values, _last if steps else _averaged)
        return carry, ys

    return call


def _averaged(what: Collected, value: Any) -> Any:
    if what.part in (ValuePart.MEAN, ValuePart.VARIANCE):
        return value[0]  # the same in all samples
    return value.mean(axis=0) if what.part in _AVERAGED else value


def _last(what: Collected, value: Any) -> Any:
    return value if what.part is ValuePart.LOSS else value[-1]
