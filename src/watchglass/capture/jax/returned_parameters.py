"""Updates that a script writes out: which results of a function are its parameters, as the next call gets them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax

from watchglass.capture.compiled.collecting import Collected, ValuePart, Values

#: Calls that are compared with the one before.
_MOST_CALLS = 8


class ReturnedParameters:
    """The parameters of a model among the results of a function. For the training thread.

    Several results may look like them, as momenta or gradients do. They are those that the next call is given.

    Args:
        parameters: What the parameters are, in order.
        taken: Takes the first of them out of the arguments.
        starts: Where among the leaves of the result they may begin.
    """

    def __init__(self, parameters: Sequence[Collected], taken: Callable[[Any], Any], starts: Sequence[int]) -> None:
        self._updated = [replace(each, part=ValuePart.AFTER) for each in parameters]
        self._taken, self._starts = taken, starts
        self._start: int | None = None
        self._latest: list[tuple[int, weakref.ref[Any]]] = []
        self._calls = 0

    @property
    def is_open(self) -> bool:
        """Whether calls are to be compared."""
        return self._start is None and self._calls < _MOST_CALLS

    def called(self, given: Any, result: Any) -> None:
        """A call has returned that was given these arguments; raises nothing."""
        latest, self._latest = self._latest, []
        with suppress(Exception):  # arguments in another form than those that were traced, or no array of JAX
            first, leaves = self._taken(given), jax.tree_util.tree_leaves(result)
            self._start = next((at for at, leaf in latest if leaf() is first), None)
            self._latest = [(at, weakref.ref(leaves[at])) for at in self._starts]
        self._calls += 1

    def values(self, result: Any) -> Iterator[tuple[Collected, Any]]:
        """The parameters as a call has returned them; none while it is not known where they are."""
        if self._start is not None:
            leaves = jax.tree_util.tree_leaves(result)[self._start :]
            yield from zip(self._updated, leaves, strict=False)


def returned_parameters(
    values: Values, known: Mapping[str, Collected], out: Any, taken: Mapping[int, Callable[[Any], Any] | None]
) -> list[ReturnedParameters]:
    """The parameters among the result of a function, by model; none of models that a library updates.

    Args:
        values: The values of the function, as it is traced.
        known: What each is.
        out: Its result, as it is traced.
        taken: Take the first parameter of a model out of the arguments, by its number.
    """
    leaves, shapes = jax.tree_util.tree_leaves(out), [_shape(leaf) for leaf in jax.tree_util.tree_leaves(out)]
    by_part: dict[tuple[ValuePart, int], list[tuple[Collected, Any]]] = {}
    for key, value in values.items():
        by_part.setdefault((known[key].part, known[key].model), []).append((known[key], value))
    found = []
    for model, take in taken.items():
        before = by_part.get((ValuePart.BEFORE, model), [])
        gradients = {id(value) for _, value in by_part.get((ValuePart.GRADIENT, model), ())}
        if take is None or not (before and gradients) or (ValuePart.AFTER, model) in by_part:
            continue
        own, size = [_shape(value) for _, value in before], len(before)
        same = {id(value) for _, value in before} | gradients
        starts = [
            at
            for at in range(len(leaves) - size + 1)
            if shapes[at : at + size] == own and not all(id(leaf) in same for leaf in leaves[at : at + size])
        ]
        if starts:
            found.append(ReturnedParameters([what for what, _ in before], take, starts))
    return found


def _shape(leaf: Any) -> tuple[Any, Any]:
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
