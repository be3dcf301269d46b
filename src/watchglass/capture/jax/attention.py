"""Calls of attention in functions that are traced: which share of the positions sees the next one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from watchglass.capture.compiled.collecting import ValuePart
from watchglass.capture.jax.tracing import TRACING
from watchglass.records import facts

#: Positions that see each other, at least.
_LEAST = 3


def softmax(original: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.nn.softmax``, given the original: one over positions hides those whose weight is exactly zero."""

    @functools.wraps(original)
    def call(x: Any, axis: Any = -1, *positional: Any, **options: Any) -> Any:
        weights = original(x, axis, *positional, **options)
        square = (
            jnp.ndim(weights) > 1 and weights.shape[-1] == weights.shape[-2] and axis in (-1, jnp.ndim(weights) - 1)
        )
        if TRACING.collects and square:
            _add(weights.shape[-1], weights > 0)
        return weights

    return call


def dot_product_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.nn.dot_product_attention``, given the original."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if TRACING.collects:
            given = signature.bind(*args, **kwargs).arguments
            positions = given["query"].shape[-3]
            if positions == given["key"].shape[-3]:
                _add(positions, *_shown(given))
        return result

    return call


def _shown(given: dict[str, Any]) -> list[Any]:
    """What is true, all of it, where a position sees another."""
    window = given.get("local_window_size")
    to_the_right = window[1] if isinstance(window, tuple) else window
    if given.get("is_causal") or to_the_right == 0:
        return [jnp.zeros((1, 1), bool)]
    mask, bias = given.get("mask"), given.get("bias")
    shown = [] if mask is None else [mask]
    # Numbers as low as half of the least one hide.
    return shown if bias is None else [*shown, bias > jnp.finfo(bias.dtype).min / 2]


def _add(positions: int, *shown: Any) -> None:
    if positions < _LEAST:
        return
    share = jnp.float32(1.0)
    for each in shown:
        whole = jnp.broadcast_to(each, (*each.shape[:-2], positions, positions))
        share = share * jnp.diagonal(whole, 1, -2, -1).astype(jnp.float32).mean()
    about = facts.SeenByAttention(positions, positions)
    TRACING.add(ValuePart.ATTENTION, str(positions), share, attention=about, model=TRACING.models.current)


def wrappers() -> list[tuple[Any, str, Any]]:
    """The public functions that are replaced, each with its owner and its name."""
    return [
        (jax.nn, "softmax", softmax(jax.nn.softmax)),
        (jax.nn, "dot_product_attention", dot_product_attention(jax.nn.dot_product_attention)),
    ]
