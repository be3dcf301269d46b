"""The operations of a program that JAX has traced, from parameters to the loss.

Calls of functions inside are read as their content, but for activations and the like, which have words. What JAX writes
in several primitives becomes one operation where the form is certain, see ``capture/compiled/program.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.compiled.program import (
    ARRANGING,
    GraphConstant,
    GraphResult,
    TracedProgram,
    Value,
    added,
    bounded,
    chosen,
    cut_of,
    divided,
    multiplied,
    past,
    product,
    rows_of,
    subtracted,
)
from watchglass.records import OPERATIONS, PARAMETER, Operation

#: Primitives that are one word.
_WORDS = {
    **{word: word for word in (
        "add", "sub", "neg", "mul", "div", "exp", "log", "log1p", "expm1", "tanh", "sin", "cos", "abs", "sign", "sqrt",
        "rsqrt", "erf", "pow", "cumsum", "transpose", "slice", "split", "pad", "sort", "reshape", "clamp", "round",
        "acos", "asin", "atan", "acosh", "asinh", "atanh", "scatter", "expand",
    )},
    "add_any": "add", "exp2": "exp", "logistic": "sigmoid", "erfc": "erf", "erf_inv": "erfinv", "reduce_sum": "sum",
    "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod",
    "cumlogsumexp": "logsumexp", "cumprod": "prod", "squeeze": "reshape", "expand_dims": "reshape",
    "dynamic_slice": "slice", "concatenate": "cat", "rev": "rearrange", "top_k": "topk", "scatter-add": "scatter_add",
    "dynamic_update_slice": "scatter", "reduce_window_max": "max_pool", "reduce_window_sum": "average_pool",
    "atan2": "atan", "fft": "fft", "convert_element_type": "copy", "copy": "copy", "copy_p": "copy",
    "reduce_precision": "copy", "sharding_constraint": "copy", "device_put": "copy", "square": "pow",
    "integer_pow": "pow", "custom_lin": "copy",
}  # fmt: skip
#: Functions that are one word, by the name of their call, without an underscore at its start.
_FUNCTIONS = {
    **{word: word for word in (
        "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "log_sigmoid", "mish", "softmax", "log_softmax", "glu",
        "sigmoid", "logsumexp", "var", "std",
    )},
    "swish": "silu", "selu": "elu", "celu": "elu", "relu6": "clamp", "hard_tanh": "hardtanh",
    "hard_sigmoid": "hardsigmoid", "hard_silu": "hardswish", "hard_swish": "hardswish",
}  # fmt: skip
_CALLS = frozenset((
    "jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr",
))  # fmt: skip
#: Loops, of which one with parameters is a recurrent layer.
_LOOPS = ("scan", "while")


def read(
    jaxpr: Any, returned: tuple[Any, Mapping[str, Any]], known: Mapping[str, Collected], model: int = 0
) -> TracedProgram:
    """Read the program of the twin of a step.

    Args:
        jaxpr: The program, a closed jaxpr.
        returned: What it returns, in the form of its arrays: the result of the step, and the values by key.
        known: What each value is.
        model: Number of the model.
    """
    places = {at: known[key] for key, at in _places(returned) if known[key].model == model}
    whole = jaxpr.jaxpr
    consts: list[Value] = [GraphConstant() for _ in jaxpr.consts]
    given: list[Value] = [GraphResult(PARAMETER, (), tuple(each.aval.shape)) for each in whole.invars]
    once = _JaxprReader().results(whole, consts, given)
    # Parameters are returned as they were given, or without their elements.
    names = {id(_given(once[at])): what.name for at, what in places.items() if what.part is ValuePart.BEFORE}
    # Once more: operations on data alone have no part in the graph.
    leaves: list[Value] = [
        GraphResult(PARAMETER, (), tuple(each.aval.shape), names[id(node)]) if id(node) in names else GraphConstant()
        for each, node in zip(whole.invars, given, strict=True)
    ]
    results = _JaxprReader().results(whole, consts, leaves)
    return TracedProgram(
        list(names.values()),
        next((results[at] for at, what in places.items() if what.part is ValuePart.LOSS), GraphConstant()),
        {
            what.call.number: results[at]
            for at, what in places.items()
            if what.part is ValuePart.PREDICTIONS and what.call is not None
        },
    )


class ShownByProgram(NamedTuple):
    """What the program of a twin shows of its values.

    Attributes:
        rectified: Keys of those that a ReLU in the model has made, maybe in another shape; each ReLU counts once.
        kept: Keys of those that are a parameter as it was given, or with a zero that was added.
        zero: Keys of those that are zero whatever is computed, as the gradient of what the loss does not depend on.
    """

    rectified: Sequence[str] = ()
    kept: Collection[str] = ()
    zero: Collection[str] = ()


def shown_by(jaxpr: Any, returned: tuple[Any, Mapping[str, Any]], parameters: Collection[int]) -> ShownByProgram:
    """Look at the values of a program.

    Args:
        jaxpr: The program of a twin, a closed jaxpr.
        returned: What it returns, as for :func:`read`.
        parameters: Numbers of the arguments that are parameters: what depends on none is data.
    """
    given: list[Value] = [
        GraphResult(PARAMETER, (), tuple(each.aval.shape)) if at in parameters else GraphConstant()
        for at, each in enumerate(jaxpr.jaxpr.invars)
    ]
    results = _JaxprReader().results(jaxpr.jaxpr, [GraphConstant() for _ in jaxpr.consts], given)
    shown = {key: results[at] for key, at in _places(returned)}
    made = {key: result for key, result in shown.items() if isinstance(result, GraphResult)}
    first: dict[int, str] = {}
    for key, result in made.items():
        below = past(result, ARRANGING)
        # relu6 is known by its name, without limits.
        if below.word == "relu" or (below.word == "clamp" and not {"min", "max"} & below.settings.keys()):
            first.setdefault(id(below), key)
    kept = {key for key, result in made.items() if _is_kept(result)}
    zero = {key for key, result in shown.items() if isinstance(result, GraphConstant) and result.value == 0}
    return ShownByProgram(list(first.values()), kept, zero)


def _is_kept(result: GraphResult) -> bool:
    """Whether a result is a parameter, or the sum of one and zero; on a device without its elements."""
    result = past(result, ("copy", "slice"))
    if result.word == "add":
        constants = [each.value for each in result.operands if isinstance(each, GraphConstant)]
        return constants == [0.0] and past(result.first, ("copy",)).operation is PARAMETER
    return result.operation is PARAMETER


def _places(returned: tuple[Any, Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """The number of each value among all results of a twin, by key."""
    result, values = returned
    at = len(jax.tree_util.tree_leaves(result))
    for key in sorted(values):  # the order of a dictionary's leaves
        value, first = values[key], 0
        if isinstance(value, dict):  # reduced: the part that comes from it alone
            first = sorted(value).index("like" if "like" in value else "whole")
        yield key, at + first
        at += len(jax.tree_util.tree_leaves(value))


def _given(value: Value) -> Value:
    """What a part of it comes from."""
    while isinstance(value, GraphResult) and value.results:
        value = value.first
    return value


class _JaxprReader:
    """Reads programs."""

    def results(self, jaxpr: Any, consts: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        """The results of a program for such arguments."""
        known: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *given], strict=True))

        def value_of(variable: Any) -> Value:
            return GraphConstant(_number(variable.val)) if hasattr(variable, "val") else known[variable]

        for equation in jaxpr.eqns:
            taken = [value_of(each) for each in equation.invars]
            known.update(zip(equation.outvars, self._made(equation, taken), strict=True))
        return [value_of(each) for each in jaxpr.outvars]

    def _made(self, equation: Any, taken: list[Value]) -> list[Value]:
        """The results of an operation."""
        name, outs = equation.primitive.name, equation.outvars
        live = [each for each in taken if isinstance(each, GraphResult)]
        if name == "select_n" and (choice := getattr(taken[0], "value", None)) is not None:
            return [taken[1 + int(choice)]]
        if not live:
            if name == "eq" and None not in (numbers := [getattr(each, "value", None) for each in taken]):
                return [GraphConstant(float(numbers[0] == numbers[1]))]
            # A number stays one in another shape or type.
            first = taken[0] if taken and name in ("broadcast_in_dim", "convert_element_type", "reshape") else None
            return [GraphConstant(getattr(first, "value", None), cut=cut_of(taken)) for _ in outs]
        if name == "optimization_barrier":
            return taken
        shape = tuple(outs[0].aval.shape)
        if name in _CALLS:
            word = _FUNCTIONS.get(str(equation.params.get("name", "")).lstrip("_"))
            if word is not None and _is_float(outs[0]):
                axes = (len(shape) - 1,) if word in ("softmax", "log_softmax") else None
                return [GraphResult(OPERATIONS[word], live[:1], shape, axes=axes), *(GraphConstant() for _ in outs[1:])]
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            closed = getattr(inner, "jaxpr", inner)
            return self.results(closed, [GraphConstant() for _ in getattr(inner, "consts", ())], taken)
        if name == "stop_gradient" or not any(map(_is_float, outs)):
            return [GraphConstant.cut_off(taken) for _ in outs]
        node = self._operation(name, equation.params, taken, live, shape)
        return [node if _is_float(each) else GraphConstant.cut_off(taken) for each in outs]

    def _operation(
        self, name: str, params: Mapping[str, Any], taken: list[Value], live: list[GraphResult], shape: tuple[int, ...]
    ) -> GraphResult:
        make = _MAKERS.get(name)
        if make is not None:
            return make(params, taken, shape)
        if name in _LOOPS and any(each.operation is PARAMETER for each in live):
            return GraphResult(OPERATIONS["recurrent"], taken, shape)
        word = _WORDS.get(name)
        if word is None:
            return GraphResult(Operation(name, "unknown"), taken, shape)
        return GraphResult(OPERATIONS[word], taken, shape, **_settings(name, word, params, taken))


def _settings(name: str, word: str, params: Mapping[str, Any], taken: list[Value]) -> dict[str, Any]:
    if word in ("sum", "max", "min", "prod"):
        return {"axes": tuple(params.get("axes", ()))}
    if word == "transpose":
        return {"order": tuple(params["permutation"])}
    if word == "pow":
        exponent = taken[1].value if len(taken) > 1 and isinstance(taken[1], GraphConstant) else None
        return {"exponent": 2.0 if name == "square" else float(params["y"]) if "y" in params else exponent}
    if word == "clamp":
        low, _, high = taken
        return {"min": getattr(low, "value", None), "max": getattr(high, "value", None)}
    return {}


def _broadcast(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    node = next(each for each in taken if isinstance(each, GraphResult))
    same = math.prod(node.shape) == math.prod(shape)
    return GraphResult(OPERATIONS["reshape" if same else "expand"], taken, shape)


def _dot(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    (contracted, _), (batched, _) = params["dimension_numbers"]
    made, left = product(taken, shape, sums=len(contracted) > 0 and not batched), taken[0]
    if made.word == "linear" and isinstance(left, GraphResult) and past(left, ARRANGING).operation is PARAMETER:
        # Its own axes come first in the result.
        made.settings["units"] = math.prod(shape[: len(left.shape) - len(contracted)])
    return made


def _convolution(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    numbers = params["dimension_numbers"]
    kernel = taken[1]
    if isinstance(kernel, GraphResult):
        leaf = past(kernel, ("copy",))
        if leaf.operation is PARAMETER and len(leaf.shape) == len(numbers.rhs_spec):
            leaf.shape = tuple(kernel.shape[at] for at in numbers.rhs_spec)
    return GraphResult(OPERATIONS["convolution"], taken, tuple(shape[at] for at in numbers.out_spec))


def _plain(make: Callable[..., GraphResult], first: int = 0, **options: Any) -> Any:
    """A maker that needs no parameters of the primitive."""
    return lambda params, taken, shape: make(taken[first:], shape, **options)


_MAKERS: dict[str, Callable[[Mapping[str, Any], list[Value], tuple[int, ...]], GraphResult]] = {
    "max": _plain(bounded, side="min"), "min": _plain(bounded, side="max"),
    "broadcast_in_dim": _broadcast, "dot_general": _dot, "conv_general_dilated": _convolution,
    "gather": _plain(rows_of), "select_n": _plain(chosen, 1), "add": _plain(added), "add_any": _plain(added),
    "sub": _plain(subtracted), "div": _plain(divided), "mul": _plain(multiplied),
}  # fmt: skip


def _number(value: Any) -> float | None:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 and array.dtype.kind in "biuf" else None


def _is_float(variable: Any) -> bool:
    return "float" in str(getattr(variable.aval, "dtype", ""))
