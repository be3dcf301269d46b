"""Names and places of the leaves of a pytree."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax

#: A leaf of a pytree with its path, as words.
Leaf = tuple[tuple[str, ...], Any]


def named_leaves(tree: Any) -> list[Leaf]:
    """The leaves of a pytree with their paths, without what libraries put around parameters.

    Those are the collection ``params`` of Flax, and of NNX the states that it passes to JAX and their ``value``.
    """
    rows = [(words_of(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]
    if rows and all(path[:1] == ("states",) and len(path) > 2 for path, _ in rows):
        rows = [(path[2:], leaf) for path, leaf in rows]
    if rows and all(path[-1:] == ("value",) and len(path) > 1 for path, _ in rows):
        rows = [(path[:-1], leaf) for path, leaf in rows]
    if rows and all(path[:1] == ("params",) and len(path) > 1 for path, _ in rows):
        rows = [(path[1:], leaf) for path, leaf in rows]
    return rows


def words_of(path: Iterable[Any]) -> tuple[str, ...]:
    """The keys of a path of JAX, as words."""
    fields = ("name", "key", "idx")
    return tuple(str(next((getattr(key, each) for each in fields if hasattr(key, each)), key)) for key in path)


def dotted(path: Iterable[str]) -> str:
    """A path as a name."""
    return ".".join(path)


def getter(tree: Any, index: int) -> Callable[[Any], Any]:
    """A function that takes the leaf of this number out of a tree of the same structure, without flattening it."""
    steps = [_step(key) for key in jax.tree_util.tree_flatten_with_path(tree)[0][index][0]]
    if None in steps:
        return lambda like: jax.tree_util.tree_leaves(like)[index]

    def get(like: Any) -> Any:
        for step in steps:
            like = step(like)  # type: ignore[misc]  # none of them is None
        return like

    return get


def _step(key: Any) -> Callable[[Any], Any] | None:
    if isinstance(key, jax.tree_util.SequenceKey):
        return operator.itemgetter(key.idx)
    if isinstance(key, jax.tree_util.DictKey):
        return operator.itemgetter(key.key)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return operator.attrgetter(key.name)
    return None
