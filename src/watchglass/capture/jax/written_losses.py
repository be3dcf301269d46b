"""Losses that scripts write out, squared and absolute errors, found in the program that JAX has traced.

No function is called for such a loss. So the twin is read as a program, of which any value can be a further result.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Literal

from watchglass.capture.compiled.collecting import Collected, ObservedLoss, ValuePart, Values
from watchglass.capture.jax.tracing import TRACING

#: What may lie between a loss and the errors that it is the mean or the sum of.
_SCALING = frozenset(("convert_element_type", "reshape", "squeeze", "div", "mul", "reduce_sum", "copy"))
#: Operations that are followed down from a loss.
_MOST_HOPS = 12


@dataclass(frozen=True)
class WrittenLoss:
    """A loss of a program.

    Attributes:
        function: The word of its kind.
        predictions: The variable that depends on parameters.
        labels: The variable that it is compared with.
        result: Number of the result that the loss is.
        reduction: How the errors became one number.
    """

    function: str
    predictions: Any
    labels: Any
    result: int
    reduction: str


def written_loss(jaxpr: Any, parameters: Collection[int], results: Iterable[int]) -> WrittenLoss | None:
    """The first result of a program that is such a loss.

    Args:
        jaxpr: The program.
        parameters: Numbers of its inputs that are parameters.
        results: Numbers of its results that may be the loss.
    """
    made = {out: equation for equation in jaxpr.eqns for out in equation.outvars}
    live = {jaxpr.invars[at] for at in parameters}
    for equation in jaxpr.eqns:
        if any(not isinstance(each, Literal) and each in live for each in equation.invars):
            live.update(equation.outvars)
    found = (_read(made, live, jaxpr.outvars[at], at) for at in results)
    return next((each for each in found if each is not None), None)


def _read(made: Mapping[Any, Any], live: Collection[Any], var: Any, result: int) -> WrittenLoss | None:
    function, reduction = "", ""
    for _ in range(_MOST_HOPS):
        equation = None if isinstance(var, Literal) else made.get(var)
        if equation is None:
            return None
        name, taken = equation.primitive.name, equation.invars
        followed = [each for each in taken if not isinstance(each, Literal) and each in live]
        if name == "sub" and function and reduction and len(followed) == 1:
            labels = next(each for each in taken if each is not followed[0])
            predictions, others = _given(made, followed[0]), _given(made, labels)
            return (
                None if isinstance(labels, Literal) else WrittenLoss(function, predictions, others, result, reduction)
            )
        squares = name == "square" or (name == "integer_pow" and equation.params["y"] == 2)
        if squares or name == "abs" or (name == "mul" and len(followed) == 2 and taken[0] is taken[1]):
            if function or not reduction:
                return None
            function = "l1_loss" if name == "abs" else "mse_loss"
        elif (
            name not in _SCALING or len(followed) != 1 or any(_shape(each) for each in taken if each is not followed[0])
        ):
            return None
        elif name == "reduce_sum":
            reduction = reduction or "sum"
        elif name in ("div", "mul") and not function:
            reduction = "mean"
        var = followed[0]
    return None


def _shape(var: Any) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))


def _given(made: Mapping[Any, Any], var: Any) -> Any:
    """What was compared, before it was given the shape of the other."""
    while not isinstance(var, Literal) and var in made and made[var].primitive.name == "broadcast_in_dim":
        var = made[var].invars[0]
    return var


class ReadingTwin:
    """The function of a twin that also returns what a written loss compares.

    Args:
        function: The function of the twin, which returns a result and values.
        parameters: Gives numbers of its arguments that are parameters, after it was traced.
        judged: Called with the number of the result that is the loss; returns the number of the model.
    """

    def __init__(
        self, function: Callable[..., tuple[Any, Values]], parameters: Callable[[], Collection[int]],
        judged: Callable[[int], int],
    ) -> None:  # fmt: skip
        self._function, self._parameters, self._judged = function, parameters, judged
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The result, and the values."""
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        traced = [at for at, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]

        def of_traced(*given: Any) -> tuple[Any, Values]:
            filled = list(leaves)
            for at, value in zip(traced, given, strict=True):
                filled[at] = value
            again, named = jax.tree_util.tree_unflatten(tree, filled)
            return self._function(*again, **named)

        given = [leaves[at] for at in traced]
        closed, form = jax.make_jaxpr(of_traced, return_shape=True)(*given)
        values = _evaluated(closed, given)
        flat = [values(each) for each in closed.jaxpr.outvars]
        result, collected = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(form), flat)
        loss = written_in(closed.jaxpr, form, self._parameters())
        if loss is not None:
            collected = {**collected, **_compared(loss, values, self._judged(loss.result))}
        return result, collected


def written_in(jaxpr: Any, form: tuple[Any, Mapping[str, Any]], given: Collection[int]) -> WrittenLoss | None:
    """The written loss of the program of a twin; None where a loss function was called, or there is none.

    Args:
        jaxpr: The program.
        form: The form of its result, and of the values by key.
        given: Numbers of its arguments that are parameters, if they are not among the values.
    """
    result, values = form
    known, keys = TRACING.collector.known, sorted(values)
    parts = [known[key].part for key in keys]
    if ValuePart.PREDICTIONS in parts:
        return None
    leaves = jax.tree_util.tree_leaves(result)
    first = {var: at for at, var in reversed(list(enumerate(jaxpr.invars)))}
    sizes = [len(jax.tree_util.tree_leaves(values[key])) for key in keys]
    places = list(itertools.accumulate(sizes, initial=len(leaves)))
    before = [jaxpr.outvars[at] for at, part in zip(places, parts, strict=False) if part is ValuePart.BEFORE]
    parameters = [first[var] for var in before if not isinstance(var, Literal) and var in first] or list(given)
    losses = [at for at, part in zip(places, parts, strict=False) if part is ValuePart.LOSS]
    if not losses and not before:
        losses = [at for at, leaf in enumerate(leaves) if not leaf.shape and "float" in str(leaf.dtype)]
    return written_loss(jaxpr, parameters, losses) if parameters else None


def _compared(loss: WrittenLoss, values: Callable[[Any], Any], model: int) -> Values:
    predictions, labels = values(loss.predictions), values(loss.labels)
    call = ObservedLoss(
        loss.function, predictions.shape, labels.shape, (str(predictions.dtype), str(labels.dtype)),
        reduction=loss.reduction,
    )  # fmt: skip
    with TRACING.frame() as found:
        for part, name, value in (
            (ValuePart.PREDICTIONS, "prediction", predictions),
            (ValuePart.LABELS, "label", labels),
        ):
            TRACING.collector.add(Collected(part, name, model=model, call=call), value)
    return found


def _evaluated(closed: Any, given: Iterable[Any]) -> Callable[[Any], Any]:
    """Run a program in the trace that is open; returns what gives the value of each variable."""
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *given], strict=True))

    def of(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else values[var]

    for equation in jaxpr.eqns:
        bound = equation.primitive.get_bind_params(equation.params)
        functions, options = ((), bound) if isinstance(bound, dict) else bound  # a pair before JAX 0.10
        context = getattr(equation, "ctx", None)
        with nullcontext() if context is None else context.manager:
            made = equation.primitive.bind(*functions, *map(of, equation.invars), **options)
        values.update(zip(equation.outvars, made if equation.primitive.multiple_results else [made], strict=True))
    return of
