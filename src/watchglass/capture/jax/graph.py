"""The operations of a program that JAX has traced, from parameters to the loss.

Calls of functions inside are read as their content, but for activations and the like, which have words. What JAX writes
in several primitives becomes one operation where the form is certain: means, softmax, logsumexp, normalisations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.operation_graph import OperationGraph
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
_ARRANGING = ("reshape", "expand", "copy")
#: Operations between a product and what shows that it is an activation or a normalisation, at most.
_MOST_HOPS = 10


class JaxConstant:
    """A value that depends on no parameter.

    Args:
        value: Its number, if it is one.
    """

    __slots__ = ("value",)

    def __init__(self, value: float | None = None) -> None:
        self.value = value


class JaxResult:
    """A result of an operation, or a parameter.

    Args:
        operation: The operation.
        operands: What it takes.
        shape: Shape of the result.
        parameter: Name of the parameter, if it is one.
        settings: Its settings, see :meth:`OperationGraph.setting`.
    """

    __slots__ = ("operands", "operation", "parameter", "settings", "shape")

    def __init__(
        self, operation: Operation, operands: Sequence[JaxResult | JaxConstant], shape: tuple[int, ...],
        parameter: str = "", **settings: Any,
    ) -> None:  # fmt: skip
        self.operation, self.operands, self.shape = operation, operands, shape
        self.parameter, self.settings = parameter, settings

    @property
    def word(self) -> str:
        """The word of its operation."""
        return self.operation.word

    @property
    def results(self) -> list[JaxResult]:
        """The operands that depend on parameters."""
        return [each for each in self.operands if isinstance(each, JaxResult)]

    @property
    def first(self) -> JaxResult:
        """The first of these."""
        return self.results[0]


Value = JaxResult | JaxConstant


class JaxGraph(OperationGraph):
    """The operations from parameters, which are names, to a loss.

    Args:
        loss: What the loss is.
    """

    def __init__(self, loss: Value) -> None:
        super().__init__(loss if isinstance(loss, JaxResult) else None)

    def operands_of(self, node: JaxResult) -> Sequence[tuple[JaxResult | None, int]]:
        """What a node takes."""
        return [(each if isinstance(each, JaxResult) else None, 0) for each in node.operands]

    def operation_of(self, node: JaxResult) -> Operation:
        """The operation of a node."""
        return node.operation

    def parameter_of(self, node: JaxResult) -> tuple[str, bool]:
        """The name of a parameter."""
        return node.parameter, True

    def shape(self, index: int, number: int = 0) -> tuple[int, ...]:
        """Shape of a result; channels come second of convolutions and batch normalisations, as elsewhere."""
        return () if index < 0 else self.nodes[index].shape

    def setting(self, index: int, name: str) -> Any:
        """A setting of an operation."""
        return self.nodes[index].settings.get(name)


class JaxProgram:
    """The program of the twin of a step.

    Args:
        jaxpr: The program, a closed jaxpr.
        returned: What it returns, in the form of its arrays: the result of the step, and the values by key.
        known: What each value is.
        model: Number of the model.

    Attributes:
        parameters: Names of the parameters of the model.
        made_by: By number of a call of a loss function, the last operation that made its predictions, and for a softmax
            the size of the axis over which its values add up to one; None for others.
    """

    def __init__(
        self, jaxpr: Any, returned: tuple[Any, Mapping[str, Any]], known: Mapping[str, Collected], model: int = 0
    ) -> None:
        result, values = returned
        at, places = len(jax.tree_util.tree_leaves(result)), dict[int, Collected]()
        for key in sorted(values):  # the order of a dictionary's leaves
            if known[key].model == model:
                places[at] = known[key]
            at += len(jax.tree_util.tree_leaves(values[key]))
        whole = jaxpr.jaxpr
        consts: list[Value] = [JaxConstant() for _ in jaxpr.consts]
        given: list[Value] = [JaxResult(PARAMETER, (), tuple(each.aval.shape)) for each in whole.invars]
        once = _Reader().results(whole, consts, given)
        # Parameters are returned as they were given.
        names = {id(once[at]): what.name for at, what in places.items() if what.part is ValuePart.BEFORE}
        # Once more: operations on data alone have no part in the graph.
        leaves: list[Value] = [
            JaxResult(PARAMETER, (), tuple(each.aval.shape), names[id(node)]) if id(node) in names else JaxConstant()
            for each, node in zip(whole.invars, given, strict=True)
        ]
        results = _Reader().results(whole, consts, leaves)
        self.parameters = list(names.values())
        self._loss: Value = next(
            (results[at] for at, what in places.items() if what.part is ValuePart.LOSS), JaxConstant()
        )
        self.made_by = {
            what.call.number: _made_by(results[at])
            for at, what in places.items()
            if what.part is ValuePart.PREDICTIONS and what.call is not None
        }

    def graph(self) -> JaxGraph:
        """The operations of the loss, none where it depends on no parameter."""
        return JaxGraph(self._loss)


#: Operations that limit the range of their values.
_LIMITING = ("softmax", "log_softmax", "sigmoid", "hardsigmoid", "tanh", "relu", "softplus")


def _made_by(value: Value) -> tuple[str | None, int | None]:
    while isinstance(value, JaxResult):
        if value.operation.kind == "matrix":
            return "weighted_sum", None
        if value.word in _LIMITING:
            axes: tuple[int, ...] = value.settings.get("axes") or ()
            return value.word, value.shape[axes[0]] if value.word.endswith("softmax") and len(axes) == 1 else None
        # A bias is a part of the layer.
        others = [each for each in value.results if _past(each, _ARRANGING).operation is not PARAMETER]
        if len(others) != 1 or not (value.word == "add" or value.operation.kind == "arranges"):
            break
        value = others[0]
    return None, None


class _Reader:
    """Reads programs."""

    def results(self, jaxpr: Any, consts: Sequence[Value], given: Sequence[Value]) -> list[Value]:
        """The results of a program for such arguments."""
        known: dict[Any, Value] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *given], strict=True))

        def value_of(variable: Any) -> Value:
            return JaxConstant(_number(variable.val)) if hasattr(variable, "val") else known[variable]

        for equation in jaxpr.eqns:
            taken = [value_of(each) for each in equation.invars]
            known.update(zip(equation.outvars, self._made(equation, taken), strict=True))
        return [value_of(each) for each in jaxpr.outvars]

    def _made(self, equation: Any, taken: list[Value]) -> list[Value]:
        """The results of an operation."""
        name, outs = equation.primitive.name, equation.outvars
        live = [each for each in taken if isinstance(each, JaxResult)]
        if not live:
            # A number stays one in another shape or type.
            first = taken[0] if taken and name in ("broadcast_in_dim", "convert_element_type", "reshape") else None
            return [JaxConstant(getattr(first, "value", None)) for _ in outs]
        if name == "optimization_barrier":
            return taken
        shape = tuple(outs[0].aval.shape)
        if name in _CALLS:
            word = _FUNCTIONS.get(str(equation.params.get("name", "")).lstrip("_"))
            if word is not None and _is_float(outs[0]):
                axes = (len(shape) - 1,) if word in ("softmax", "log_softmax") else None
                return [JaxResult(OPERATIONS[word], live[:1], shape, axes=axes), *(JaxConstant() for _ in outs[1:])]
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            closed = getattr(inner, "jaxpr", inner)
            return self.results(closed, [JaxConstant() for _ in getattr(inner, "consts", ())], taken)
        if name == "stop_gradient" or not any(map(_is_float, outs)):
            return [JaxConstant() for _ in outs]
        node = self._operation(name, equation.params, taken, live, shape)
        return [node if _is_float(each) else JaxConstant() for each in outs]

    def _operation(
        self, name: str, params: Mapping[str, Any], taken: list[Value], live: list[JaxResult], shape: tuple[int, ...]
    ) -> JaxResult:
        make = _MAKERS.get(name)
        if make is not None:
            return make(params, taken, shape)
        if name in _LOOPS and any(each.operation is PARAMETER for each in live):
            return JaxResult(OPERATIONS["recurrent"], taken, shape)
        word = _WORDS.get(name)
        if word is None:
            return JaxResult(Operation(name, "unknown"), taken, shape)
        return JaxResult(OPERATIONS[word], taken, shape, **_settings(name, word, params, taken))


def _settings(name: str, word: str, params: Mapping[str, Any], taken: list[Value]) -> dict[str, Any]:
    if word in ("sum", "max", "min", "prod"):
        return {"axes": tuple(params.get("axes", ()))}
    if word == "transpose":
        return {"order": tuple(params["permutation"])}
    if word == "pow":
        exponent = taken[1].value if len(taken) > 1 and isinstance(taken[1], JaxConstant) else None
        return {"exponent": 2.0 if name == "square" else float(params["y"]) if "y" in params else exponent}
    if word == "clamp":
        low, _, high = taken
        return {"min": getattr(low, "value", None), "max": getattr(high, "value", None)}
    return {}


def _bounded(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...], side: str) -> JaxResult:
    """A maximum (``side`` "min") or a minimum."""
    live = [each for each in taken if isinstance(each, JaxResult)]
    limit = next((each.value for each in taken if isinstance(each, JaxConstant)), None)
    if limit is None:
        return JaxResult(OPERATIONS["maximum" if side == "min" else "minimum"], taken, shape)
    if side == "min" and limit == 0:
        return JaxResult(OPERATIONS["relu"], live, shape)
    below, limits = live[0], dict[str, Any]({side: limit})
    if below.word == "clamp":
        below, limits = below.first, {**below.settings, **limits}
    return JaxResult(OPERATIONS["clamp"], [below], shape, **limits)


def _broadcast(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    node = next(each for each in taken if isinstance(each, JaxResult))
    same = math.prod(node.shape) == math.prod(shape)
    return JaxResult(OPERATIONS["reshape" if same else "expand"], taken, shape)


def _dot(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    fixed = [each for each in taken if isinstance(each, JaxResult) and _past(each, _ARRANGING).operation is PARAMETER]
    (contracted, _), (batched, _) = params["dimension_numbers"]
    layer = bool(fixed) and not batched and len(contracted) > 0
    return JaxResult(OPERATIONS["linear" if layer else "bmm"], taken, shape)


def _convolution(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    numbers = params["dimension_numbers"]
    kernel = taken[1]
    if isinstance(kernel, JaxResult):
        leaf = _past(kernel, ("copy",))
        if leaf.operation is PARAMETER and len(leaf.shape) == len(numbers.rhs_spec):
            leaf.shape = tuple(kernel.shape[at] for at in numbers.rhs_spec)
    return JaxResult(OPERATIONS["convolution"], taken, tuple(shape[at] for at in numbers.out_spec))


def _gather(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    table = taken[0]
    is_table = isinstance(table, JaxResult) and _past(table, ("copy",)).operation is PARAMETER and len(table.shape) == 2
    return JaxResult(OPERATIONS["embedding" if is_table else "gather"], taken[:2], shape)


def _select(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    chosen = [each for each in taken[1:] if isinstance(each, JaxResult)]
    others = [each for each in taken[1:] if isinstance(each, JaxConstant)]
    if len(chosen) == 1 and others:
        scaled = chosen[0].word in ("div", "mul") and len(chosen[0].results) == 1 and others[0].value == 0
        return JaxResult(OPERATIONS["dropout" if scaled else "masked_fill"], chosen, shape)
    return JaxResult(OPERATIONS["where"], taken[1:], shape)


def _add(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    live = [each for each in taken if isinstance(each, JaxResult)]
    if len(live) == 1 and (of := _sum_of_exponentials(live[0])) is not None:
        given, axes = of
        return JaxResult(OPERATIONS["logsumexp"], [given], shape, axes=axes)
    return JaxResult(OPERATIONS["add"], taken, shape)


def _sub(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    first, second = taken
    if isinstance(first, JaxResult) and isinstance(second, JaxResult):
        below = _past(second, _ARRANGING)
        of = _sum_of_exponentials(below)
        if of is not None and of[0] is _unshifted(first):
            return JaxResult(OPERATIONS["log_softmax"], [of[0]], shape, axes=of[1])
        logits = first.results[0] if first.word == "logsumexp" else None
        picked = _past(second, (*_ARRANGING, "gather", "slice", "masked_fill"), logits)
        if logits is not None and picked is logits and second is not logits:
            # The likelihood of one class for each row.
            shares = JaxResult(OPERATIONS["log_softmax"], [logits], logits.shape, axes=first.settings["axes"])
            return JaxResult(OPERATIONS["nll_loss"], [shares], shape, reduction="none")
    zero = isinstance(second, JaxConstant) and second.value == 0
    return JaxResult(OPERATIONS["copy" if zero else "sub"], taken, shape)


def _sum_of_exponentials(node: JaxResult) -> tuple[JaxResult, Any] | None:
    """What a node is the logarithm of the sum of the exponentials of, and the axes; None for others."""
    if node.word != "log":
        return None
    summed = _past(node.first, ("abs", *_ARRANGING))
    if summed.word != "sum" or summed.first.word != "exp":
        return None
    return _unshifted(summed.first.first), summed.settings["axes"]


def _unshifted(node: JaxResult) -> JaxResult:
    """What a node is, but for a number that is subtracted from all elements of a row: their largest."""
    if node.word == "sub" and isinstance(node.operands[0], JaxResult) and isinstance(node.operands[1], JaxConstant):
        return node.operands[0]
    return node


def _div(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    first, second = taken
    if isinstance(first, JaxResult) and isinstance(second, JaxResult):
        summed = _past(second, _ARRANGING)
        if first.word == "exp" and summed.word == "sum" and summed.first is first:
            return JaxResult(OPERATIONS["softmax"], [_unshifted(first.first)], shape, axes=summed.settings["axes"])
        if summed.word == "sqrt" and (norm := _normalized(first, second, shape)) is not None:
            return norm
    if isinstance(first, JaxResult) and isinstance(second, JaxConstant) and second.value:
        return _mean(first, 1 / second.value, shape) or JaxResult(
            OPERATIONS["div"], taken, shape, factor=1 / second.value
        )
    return JaxResult(OPERATIONS["div"], taken, shape)


def _mul(params: Mapping[str, Any], taken: list[Value], shape: tuple[int, ...]) -> JaxResult:
    live = [each for each in taken if isinstance(each, JaxResult)]
    if len(live) == 1:
        factor = next((each.value for each in taken if isinstance(each, JaxConstant)), None)
        mean = _mean(live[0], factor, shape) if factor else None
        return mean or JaxResult(OPERATIONS["mul"], taken, shape, factor=factor)
    for one, other in (live, reversed(live)):
        activation = _gate(one, other)
        if activation is not None:
            return JaxResult(OPERATIONS[activation], [one], shape)
        norm = _normalized(one, other, shape)
        if norm is not None:
            return norm
    return JaxResult(OPERATIONS["mul"], taken, shape)


def _mean(node: JaxResult, factor: float, shape: tuple[int, ...]) -> JaxResult | None:
    """The mean that a sum times a number is; None for others."""
    summed = _past(node, _ARRANGING)
    if summed.word != "sum" or math.prod(node.shape) != math.prod(summed.shape):
        return None
    elements = math.prod(summed.first.shape) // max(1, math.prod(summed.shape))
    if not math.isclose(elements * factor, 1.0, rel_tol=1e-5):
        return None
    return JaxResult(OPERATIONS["mean"], [summed.first], shape, axes=summed.settings["axes"])


def _gate(value: JaxResult, gate: JaxResult) -> str | None:
    """The activation that is a product of a value with a function of it; None for other products."""
    at = gate
    for _ in range(_MOST_HOPS):
        if at.word == "sigmoid":
            return "silu" if _reaches_alone(at, value) else None
        if at.word in ("tanh", "erf"):
            return "gelu" if _reaches_alone(at, value) else None
        if len(at.results) != 1 or at.word not in ("mul", "add", "sub", "div", *_ARRANGING):
            return None
        at = at.first
    return None


def _reaches_alone(node: JaxResult, value: JaxResult) -> bool:
    """Whether a node is computed from a value and numbers alone, in few operations."""
    waiting, seen = [node], 0
    while waiting:
        at, seen = waiting.pop(), seen + 1
        if at is value:
            continue
        if at.operation is PARAMETER or seen > _MOST_HOPS or at.word not in _PLAIN:
            return False
        waiting += at.results
    return True


_PLAIN = ("mul", "add", "sub", "div", "pow", "neg", "tanh", "erf", "sigmoid", "exp", *_ARRANGING)


#: Moments over a batch or a row.
_MOMENTS = ("mean", "var", "std", "sum")


def _normalized(value: JaxResult, scale: JaxResult, shape: tuple[int, ...]) -> JaxResult | None:
    """The normalisation that a difference from a mean, over a deviation, is; None for other products."""
    roots = [each for each in _chain(scale) if each.word in ("rsqrt", "sqrt")]
    if not roots:
        return None
    centred = _past(value, _ARRANGING)
    if centred.word == "sub" and len(centred.results) == 2:
        mean = _past(centred.results[1], _ARRANGING)
        given = _past(centred.first, ("copy",))
        if mean.word != "mean" or _past(mean.first, ("copy",)) is not given:
            return None
        axes, rank = sorted(mean.settings["axes"]), len(given.shape)
        word = "group_norm"
        if axes == [rank - 1]:
            word = "layer_norm"
        elif axes == list(range(rank - 1)):
            word = "batch_norm"
            shape = (shape[0], shape[-1], *shape[1:-1])
    else:
        squares = [each for root in roots for each in _chain(root) if each.word == "mean"]
        given = _past(centred, ("copy",))
        if not any(each.first.word == "pow" and _past(each.first.first, ("copy",)) is given for each in squares):
            return None
        word = "rms_norm"
    weights = [each for each in _chain(scale, (*_MOMENTS, given.word)) if each.operation is PARAMETER]
    return JaxResult(OPERATIONS[word], [given, *weights[:1]], shape)


def _chain(node: JaxResult, ends: Sequence[str] = ()) -> Iterator[JaxResult]:
    """A node and the nearest ones below, not below those of these words."""
    waiting = [node]
    for at in waiting:
        yield at
        if at.word not in ends:
            waiting += at.results[: max(0, _MOST_HOPS - len(waiting))]


def _past(node: JaxResult, words: Sequence[str], end: JaxResult | None = None) -> JaxResult:
    """The node below operations of these words; no further than an end."""
    while node is not end and node.word in words and node.results:
        node = node.first
    return node


_MAKERS: dict[str, Callable[[Mapping[str, Any], list[Value], tuple[int, ...]], JaxResult]] = {
    "max": functools.partial(_bounded, side="min"), "min": functools.partial(_bounded, side="max"),
    "broadcast_in_dim": _broadcast, "dot_general": _dot, "conv_general_dilated": _convolution,
    "gather": _gather, "select_n": _select, "add": _add, "add_any": _add, "sub": _sub, "div": _div, "mul": _mul,
}  # fmt: skip


def _number(value: Any) -> float | None:
    array = np.asarray(value)
    return float(array) if array.ndim == 0 and array.dtype.kind in "biuf" else None


def _is_float(variable: Any) -> bool:
    return "float" in str(getattr(variable.aval, "dtype", ""))
