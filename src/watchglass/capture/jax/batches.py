"""The batch of a function: the arguments that its predictions are computed from, beside the parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from watchglass.capture.compiled.collecting import Collected, ValuePart, Values
from watchglass.capture.jax.trees import getter, words_of


class Argument(NamedTuple):
    """An array among the arguments of a function.

    Attributes:
        path: Its place among them, as words.
        dtype: Its dtype in the function.
        take: Takes it out of the arguments of a call.
    """

    path: tuple[str, ...]
    dtype: Any
    take: Callable[[Any], Any]


def arguments_in(given: Any) -> list[Argument]:
    """The arrays among the arguments of a function that is traced, in the order of the inputs of its program."""
    leaves = jax.tree_util.tree_flatten_with_path(given)[0]
    return [
        Argument(words_of(path), leaf.dtype, getter(given, at))
        for at, (path, leaf) in enumerate(leaves)
        if isinstance(leaf, jax.core.Tracer)
    ]


def batch_in(
    jaxpr: Any, form: tuple[Any, Values], arguments: Sequence[Argument], parameters: Collection[int],
    known: Mapping[str, Collected],
) -> dict[str, Argument]:  # fmt: skip
    """The arguments that are the batch, by name; none where a module is the model, whose inputs are collected.

    They have as many rows as the predictions. Where these are not known, arrays of several axes count that the loss is
    computed from, if all have the same number of rows. What lies in a mapping or an object with parameters, or with
    arrays that are no rows, is a state.

    Args:
        jaxpr: The program of a twin.
        form: The form of its result, and of the values by key.
        arguments: Its arguments.
        parameters: Numbers of those that are parameters.
        known: What each value is.
    """
    result, values = form
    sizes = [len(jax.tree_util.tree_leaves(values[key])) for key in sorted(values)]
    places = itertools.accumulate(sizes, initial=len(jax.tree_util.tree_leaves(result)))
    outputs = [(known[key], at) for key, at in zip(sorted(values), places, strict=False)]
    ends, rows = _ends(jaxpr, outputs)
    by_modules = any(what.part is ValuePart.INPUT and what.place.is_root for what, _ in outputs)
    if by_modules or not (ends and parameters) or len(jaxpr.invars) != len(arguments):
        return {}
    _, used = dce_jaxpr(jaxpr, [at in ends for at in range(len(jaxpr.outvars))])
    shapes = [var.aval.shape for var in jaxpr.invars]
    taken = [at for at, uses in enumerate(used) if uses and shapes[at] and not _is_key(arguments[at], shapes[at])]
    found = [at for at in taken if at not in parameters and (shapes[at][0] in rows if rows else len(shapes[at]) > 1)]
    states = {arguments[at].path[:-1] for at in taken if at in parameters or (rows and shapes[at][0] not in rows)}
    found = [at for at in found if arguments[at].path[-1].isdigit() or arguments[at].path[:-1] not in states]
    if len({shapes[at][0] for at in found}) > 1:
        return {}
    words = [arguments[at].path[-1] for at in found]
    names = (str(number) if word.isdigit() else word for number, word in enumerate(words))
    return {name: arguments[at] for name, at in zip(names, found, strict=True)}


def given_batch(batch: Mapping[str, Argument], given: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a batch with their names, as they are among the arguments of a call that has not used them up."""
    for name, argument in batch.items():
        value = argument.take(given)
        if isinstance(value, jax.Array) and value.is_deleted():
            continue
        if isinstance(value, np.ndarray) and value.dtype != argument.dtype:
            value = value.astype(argument.dtype)
        yield name, value


def _is_key(argument: Argument, shape: tuple[int, ...]) -> bool:
    """Whether it holds keys of random numbers."""
    own = jax.numpy.issubdtype(argument.dtype, jax.dtypes.prng_key)
    return own or (argument.dtype == np.uint32 and shape[-1] == 2)


def _ends(jaxpr: Any, outputs: Sequence[tuple[Collected, int]]) -> tuple[set[int], set[int]]:
    """Numbers of the results that are computed from the batch, and how many rows they have, if that is known."""
    predictions = [(what, at) for what, at in outputs if what.part is ValuePart.PREDICTIONS]
    if not predictions:
        return {at for what, at in outputs if what.part in (ValuePart.LOSS, ValuePart.METRIC)}, set()
    shapes = [jaxpr.outvars[at].aval.shape for _, at in predictions]
    shapes += [what.call.predictions for what, _ in predictions if what.call is not None]
    return {at for _, at in predictions}, {shape[0] for shape in shapes if shape}
