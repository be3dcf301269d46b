"""Calls of Keras's attention layers: which share of the positions sees the next one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras

from watchglass.records import facts

_NAMES = ("Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention")
#: The layers; their ``call`` is public.
ATTENTION = tuple(layer for name in _NAMES if (layer := getattr(keras.layers, name, None)) is not None)
#: Positions that see each other, at least.
_LEAST = 3


def seen_by(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[facts.SeenByAttention, Any] | None:
    """What a call of such a layer is, with the share of its positions that see the next one.

    Args:
        original: The method ``call``.
        args: Its arguments, the layer first.
        kwargs: Its arguments by name.

    Returns:
        None where there are not as many queries as keys, or their number is not known.
    """
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    both = given.get("inputs")
    query, value = (given["query"], given["value"]) if both is None else both[:2]
    positions = query.shape[1] if len(query.shape) == len(value.shape) == 3 else None
    if positions is None or positions < _LEAST or value.shape[1] != positions:
        return None
    # Another pair of one tensor may have become two on its way.
    about = facts.SeenByAttention(positions, positions, itself=True if query is value else None)
    mask = given.get("attention_mask")
    if given.get("use_causal_mask"):
        return about, keras.ops.zeros((), "float32")
    if mask is None:
        return about, keras.ops.ones((), "float32")
    whole = keras.ops.broadcast_to(mask, (*keras.ops.shape(mask)[:-2], positions, positions))
    next_ones = keras.ops.diagonal(keras.ops.cast(whole, "float32"), 1, -2, -1)
    return about, keras.ops.mean(next_ones)
