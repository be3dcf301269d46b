"""The operations of a compiled program, from parameters to the loss, as adapters read them from what they have traced.

What frameworks write in several operations becomes one where the form is certain: means, softmax, logsumexp,
normalisations, activations.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from watchglass.capture.operation_graph import MOST_NODES, OperationGraph
from watchglass.records import OPERATIONS, PARAMETER, Operation

#: Operations that keep the values, in some order.
ARRANGING = ("reshape", "expand", "copy")
#: Operations between a product and what shows that it is an activation or a normalisation, at most.
_MOST_HOPS = 10


class GraphConstant:
    """A value that depends on no parameter.

    Args:
        value: Its number, if it is one.
        numbers: Its numbers, as an array, where they are known and few.
        cut: Results that it was computed from, where no gradient passes any more.
    """

    __slots__ = ("cut", "numbers", "value")

    def __init__(self, value: float | None = None, numbers: Any = None, cut: Sequence[GraphResult] = ()) -> None:
        self.value, self.numbers, self.cut = value, numbers, cut

    @classmethod
    def cut_off(cls, taken: Sequence[Value]) -> GraphConstant:
        """What an operation makes of such values without letting a gradient pass."""
        return cls(cut=cut_of(taken))


class GraphResult:
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
        self, operation: Operation, operands: Sequence[GraphResult | GraphConstant], shape: tuple[int, ...],
        parameter: str = "", **settings: Any,
    ) -> None:  # fmt: skip
        self.operation, self.operands, self.shape = operation, operands, shape
        self.parameter, self.settings = parameter, settings

    @property
    def word(self) -> str:
        """The word of its operation."""
        return self.operation.word

    @property
    def results(self) -> list[GraphResult]:
        """The operands that depend on parameters."""
        return [each for each in self.operands if isinstance(each, GraphResult)]

    @property
    def first(self) -> GraphResult:
        """The first of these."""
        return self.results[0]


Value = GraphResult | GraphConstant


class ProgramGraph(OperationGraph):
    """The operations from parameters, which are names, to a loss.

    Args:
        loss: What the loss is.
    """

    def __init__(self, loss: Value) -> None:
        super().__init__(loss if isinstance(loss, GraphResult) else None)

    def operands_of(self, node: GraphResult) -> Sequence[tuple[GraphResult | None, int]]:
        """What a node takes."""
        return [(each if isinstance(each, GraphResult) else None, 0) for each in node.operands]

    def operation_of(self, node: GraphResult) -> Operation:
        """The operation of a node."""
        return node.operation

    def parameter_of(self, node: GraphResult) -> tuple[str, bool]:
        """The name of a parameter."""
        return node.parameter, True

    def shape(self, index: int, number: int = 0) -> tuple[int, ...]:
        """Shape of a result; channels come second of convolutions and batch normalisations, as elsewhere."""
        return () if index < 0 else self.nodes[index].shape

    def setting(self, index: int, name: str) -> Any:
        """A setting of an operation."""
        return self.nodes[index].settings.get(name)

    def used_before_cuts(self, missed: Collection[str]) -> tuple[int, str | None]:
        """Of parameters that the loss does not depend on, how many its values were computed from all the same.

        And the module whose layer takes nothing but such values: there the graph is cut. None without one.
        """
        used, before = set[str](), None
        for index, node in enumerate(self.nodes):
            cut = {id(each): each for taken in node.operands if isinstance(taken, GraphConstant) for each in taken.cut}
            lost = _parameters_below(cut.values()) & set(missed) if cut else set[str]()
            used |= lost
            weights = self.weights(index) if lost and before is None else ()
            if weights and not any(self.varying[each.at] for each in self.results(index)):
                before = self.parameters[weights[0]].rpartition(".")[0] or self.parameters[weights[0]]
        return len(used), before


#: Results that a constant is known to be cut off from, at most.
_MOST_CUT = 16


def cut_of(taken: Sequence[Value]) -> list[GraphResult]:
    """The results from which what an operation takes is computed where no gradient passes to them."""
    found: dict[int, GraphResult] = {}
    for each in taken:
        found.update((id(node), node) for node in ((each,) if isinstance(each, GraphResult) else each.cut))
    return list(found.values())[:_MOST_CUT]


class TracedProgram:
    """What is read of the program of the twin of a step.

    Args:
        parameters: Names of the parameters that it trains.
        loss: Its loss.
        predictions: What its loss functions judge, by number of the call.

    Attributes:
        parameters: These names.
        made_by: By number of a call of a loss function, the last operation that made its predictions, None where that
            is not known, and for a softmax the size of the axis over which its values add up to one.
    """

    def __init__(self, parameters: Sequence[str], loss: Value, predictions: Mapping[int, Value]) -> None:
        self.parameters = list(parameters)
        self._loss = loss
        self.made_by = {number: _made_by(value) for number, value in predictions.items()}

    def graph(self) -> ProgramGraph:
        """The operations of its loss, none where it depends on no parameter; parameters are their names."""
        return ProgramGraph(self._loss)


def _parameters_below(nodes: Iterable[GraphResult]) -> set[str]:
    """Names of the parameters that results depend on."""
    waiting, seen, names = list(nodes), set[int](), set[str]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting += node.results
            names.update((node.parameter,) if node.operation is PARAMETER else ())
    return names


#: Operations that limit the range of their values.
_LIMITING = ("softmax", "log_softmax", "sigmoid", "hardsigmoid", "tanh", "relu", "softplus")


def _made_by(value: Value) -> tuple[str | None, int | None]:
    while isinstance(value, GraphResult):
        if value.operation.kind == "matrix":
            return "weighted_sum", None
        if value.word in _LIMITING:
            axes: tuple[int, ...] = value.settings.get("axes") or ()
            return value.word, value.shape[axes[0]] if value.word.endswith("softmax") and len(axes) == 1 else None
        # A bias is a part of the layer.
        others = [each for each in value.results if past(each, ARRANGING).operation is not PARAMETER]
        if len(others) != 1 or not (value.word == "add" or value.operation.kind == "arranges"):
            break
        value = others[0]
    return None, None


def bounded(taken: list[Value], shape: tuple[int, ...], side: str) -> GraphResult:
    """A maximum (``side`` "min") or a minimum."""
    live = [each for each in taken if isinstance(each, GraphResult)]
    limit = next((each.value for each in taken if isinstance(each, GraphConstant)), None)
    if limit is None:
        return GraphResult(OPERATIONS["maximum" if side == "min" else "minimum"], taken, shape)
    if side == "min" and limit == 0:
        return GraphResult(OPERATIONS["relu"], live, shape)
    below, limits = live[0], dict[str, Any]({side: limit})
    if below.word == "clamp":
        below, limits = below.first, {**below.settings, **limits}
    return GraphResult(OPERATIONS["clamp"], [below], shape, **limits)


def product(taken: list[Value], shape: tuple[int, ...], *, sums: bool) -> GraphResult:
    """A product of matrices: a layer if one of them is a parameter.

    Args:
        taken: Both.
        shape: Shape of the result.
        sums: Whether it sums over an axis of both, and no other axis of both counts pairs of matrices.
    """
    fixed = [each for each in taken if isinstance(each, GraphResult) and past(each, ARRANGING).operation is PARAMETER]
    return GraphResult(OPERATIONS["linear" if fixed and sums else "bmm"], taken, shape)


def rows_of(taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """What is taken out of the first value, at the places that the second names."""
    table = taken[0]
    is_table = (
        isinstance(table, GraphResult) and past(table, ("copy",)).operation is PARAMETER and len(table.shape) == 2
    )
    return GraphResult(OPERATIONS["embedding" if is_table else "gather"], taken[:2], shape)


def chosen(taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A choice among values, element by element."""
    live = [each for each in taken if isinstance(each, GraphResult)]
    others = [each for each in taken if isinstance(each, GraphConstant)]
    if len(live) == 1 and others:
        scaled = bool(shape) and live[0].word in ("div", "mul") and len(live[0].results) == 1 and others[0].value == 0
        return GraphResult(OPERATIONS["dropout" if scaled else "masked_fill"], live, shape)
    return GraphResult(OPERATIONS["where"], taken, shape)


def added(taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A sum of two values."""
    live = [each for each in taken if isinstance(each, GraphResult)]
    if len(live) == 1 and (of := _sum_of_exponentials(live[0])) is not None:
        given, axes = of
        return GraphResult(OPERATIONS["logsumexp"], [given], shape, axes=axes)
    if len(live) == 2:
        for one, other in (live, reversed(live)):
            if (layer := _biased(one, other, shape)) is not None:
                return layer
            if (norm := _normalized_apart(one, other, shape)) is not None:
                return norm
    return GraphResult(OPERATIONS["add"], taken, shape)


def _biased(node: GraphResult, bias: GraphResult, shape: tuple[int, ...]) -> GraphResult | None:
    """A layer with a bias, which is a part of it; None for other sums."""
    layer = past(node, ("reshape",))
    if not layer.operation.weighted_sum or past(bias, ARRANGING).operation is not PARAMETER or not layer.shape:
        return None
    last = layer.shape[1 if layer.word == "convolution" and len(layer.shape) > 1 else -1]
    units = layer.settings.get("units", last)
    if math.prod(bias.shape) != units:
        return None
    whole = GraphResult(layer.operation, [*layer.operands, bias], layer.shape, **layer.settings)
    return whole if layer is node else GraphResult(node.operation, [whole], shape)


def subtracted(taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A difference."""
    first, second = taken
    if isinstance(first, GraphResult) and isinstance(second, GraphResult):
        below = past(second, ARRANGING)
        of = _sum_of_exponentials(below)
        if of is not None and of[0] is _unshifted(first):
            return GraphResult(OPERATIONS["log_softmax"], [of[0]], shape, axes=of[1])
        logits = first.results[0] if first.word == "logsumexp" else None
        picked = past(second, (*ARRANGING, "gather", "slice", "masked_fill"), logits)
        if logits is not None and picked is logits and second is not logits:
            # The likelihood of one class for each row.
            shares = GraphResult(OPERATIONS["log_softmax"], [logits], logits.shape, axes=first.settings["axes"])
            return GraphResult(OPERATIONS["nll_loss"], [shares], shape, reduction="none")
    zero = isinstance(second, GraphConstant) and second.value == 0
    return GraphResult(OPERATIONS["copy" if zero else "sub"], taken, shape)


def _sum_of_exponentials(node: GraphResult) -> tuple[GraphResult, Any] | None:
    """What a node is the logarithm of the sum of the exponentials of, and the axes; None for others."""
    if node.word != "log":
        return None
    summed = past(node.first, ("abs", *ARRANGING))
    if summed.word != "sum" or summed.first.word != "exp":
        return None
    return _unshifted(summed.first.first), summed.settings["axes"]


def _unshifted(node: GraphResult) -> GraphResult:
    """What a node is, but for a number that is subtracted from all elements of a row: their largest."""
    if node.word == "sub" and isinstance(node.operands[0], GraphResult) and isinstance(node.operands[1], GraphConstant):
        return node.operands[0]
    return node


def divided(taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A quotient."""
    first, second = taken
    if isinstance(first, GraphResult) and isinstance(second, GraphResult):
        summed = past(second, ARRANGING)
        if first.word == "exp" and summed.word == "sum" and summed.first is first:
            return GraphResult(OPERATIONS["softmax"], [_unshifted(first.first)], shape, axes=summed.settings["axes"])
        if summed.word == "sqrt" and (norm := _normalized(first, second, shape)) is not None:
            return norm
    if isinstance(first, GraphResult) and isinstance(second, GraphConstant) and second.value:
        return _mean(first, 1 / second.value, shape) or GraphResult(
            OPERATIONS["div"], taken, shape, factor=1 / second.value
        )
    return GraphResult(OPERATIONS["div"], taken, shape)


def multiplied(taken: list[Value], shape: tuple[int, ...]) -> GraphResult:
    """A product, element by element."""
    live = [each for each in taken if isinstance(each, GraphResult)]
    if len(live) == 1:
        factor = next((each.value for each in taken if isinstance(each, GraphConstant)), None)
        mean = _mean(live[0], factor, shape) if factor else None
        return mean or GraphResult(OPERATIONS["mul"], taken, shape, factor=factor)
    for one, other in (live, reversed(live)):
        activation = _gate(one, other)
        if activation is not None:
            return GraphResult(OPERATIONS[activation], [_unscaled(one)], shape)
        norm = _normalized(one, other, shape)
        if norm is not None:
            return norm
    return GraphResult(OPERATIONS["mul"], taken, shape)


def _mean(node: GraphResult, factor: float, shape: tuple[int, ...]) -> GraphResult | None:
    """The mean that a sum times a number is; None for others."""
    summed = past(node, ARRANGING)
    if summed.word != "sum" or math.prod(node.shape) != math.prod(summed.shape):
        return None
    elements = math.prod(summed.first.shape) // max(1, math.prod(summed.shape))
    if not math.isclose(elements * factor, 1.0, rel_tol=1e-5):
        return None
    return GraphResult(OPERATIONS["mean"], [summed.first], shape, axes=summed.settings["axes"])


def _gate(value: GraphResult, gate: GraphResult) -> str | None:
    """The activation that is a product of a value with a function of it; None for other products."""
    at = gate
    for _ in range(_MOST_HOPS):
        if at.word == "sigmoid":
            return "silu" if _reaches_alone(at, value) else None
        if at.word in ("tanh", "erf"):
            return "gelu" if _reaches_alone(at, value) else None
        if len(at.results) != 1 or at.word not in ("mul", "add", "sub", "div", *ARRANGING):
            return None
        at = at.first
    return None


def _unscaled(value: GraphResult) -> GraphResult:
    """What a value is, but for a number that it is multiplied by."""
    return value.first if value.word in ("mul", "div") and len(value.results) == 1 else value


def _reaches_alone(node: GraphResult, value: GraphResult) -> bool:
    """Whether a node is computed from a value and numbers alone, in few operations."""
    waiting, seen, ends = [node], 0, (value, _unscaled(value))
    while waiting:
        at, seen = waiting.pop(), seen + 1
        if at in ends:
            continue
        if at.operation is PARAMETER or seen > _MOST_HOPS or at.word not in _PLAIN:
            return False
        waiting += at.results
    return True


_PLAIN = ("mul", "add", "sub", "div", "pow", "neg", "tanh", "erf", "sigmoid", "exp", *ARRANGING)


#: Moments over a batch or a row.
_MOMENTS = ("mean", "var", "std", "sum")


def _normalized(value: GraphResult, scale: GraphResult, shape: tuple[int, ...]) -> GraphResult | None:
    """The normalisation that a difference from a mean, over a deviation, is; None for other products."""
    roots = [each for each in _chain(scale) if each.word in ("rsqrt", "sqrt")]
    if not roots:
        return None
    centred = past(value, ARRANGING)
    if centred.word == "sub" and len(centred.results) == 2:
        mean = past(centred.results[1], ARRANGING)
        given = past(centred.first, ("copy",))
        if mean.word != "mean" or past(mean.first, ("copy",)) is not given:
            return None
        return _normalization(mean, given, scale, shape)
    squares = [each for root in roots for each in _chain(root) if each.word == "mean"]
    given = past(centred, ("copy",))
    if not any(each.first.word == "pow" and past(each.first.first, ("copy",)) is given for each in squares):
        return None
    return GraphResult(OPERATIONS["rms_norm"], [given, *_parameters_in(scale, given)[:1]], shape)


def _normalized_apart(one: GraphResult, other: GraphResult, shape: tuple[int, ...]) -> GraphResult | None:
    """The normalisation that a sum is of a value and of its mean, both over its deviation; None for other sums."""
    if one.word != "mul":
        return None
    for value, scale in (one.results, one.results[::-1]) if len(one.results) == 2 else ():
        given, below = past(value, ("copy",)), [past(each, ARRANGING) for each in _chain(other)]
        means = [each for each in below if each.word == "mean" and past(each.first, ("copy",)) is given]
        if means and past(scale, ARRANGING) in below and any(each.word in ("rsqrt", "sqrt") for each in _chain(scale)):
            norm = _normalization(means[0], given, scale, shape)
            shift = [each for each in _parameters_in(other, given) if each not in norm.operands]
            return GraphResult(norm.operation, [*norm.operands, *shift], norm.shape)
    return None


def _normalization(
    mean: GraphResult, given: GraphResult, scale: GraphResult, shape: tuple[int, ...]
) -> GraphResult:  # fmt: skip
    axes, rank = sorted(mean.settings["axes"]), len(given.shape)
    word = "group_norm"
    if axes == [rank - 1]:
        word = "layer_norm"
    elif axes == list(range(rank - 1)):
        word = "batch_norm"
        shape = (shape[0], shape[-1], *shape[1:-1])
    return GraphResult(OPERATIONS[word], [given, *_parameters_in(scale, given)[:1]], shape)


def _parameters_in(part: GraphResult, given: GraphResult) -> list[GraphResult]:
    """The parameters by which a normalisation scales or shifts what it is given."""
    return [each for each in _chain(part, (*_MOMENTS, given.word)) if each.operation is PARAMETER]


def _chain(node: GraphResult, ends: Sequence[str] = ()) -> Iterator[GraphResult]:
    """A node and the nearest ones below, not below those of these words."""
    waiting = [node]
    for at in waiting:
        yield at
        if at.word not in ends:
            waiting += at.results[: max(0, _MOST_HOPS - len(waiting))]


def past(node: GraphResult, words: Sequence[str], end: GraphResult | None = None) -> GraphResult:
    """The node below operations of these words; no further than an end."""
    while node is not end and node.word in words and node.results:
        node = node.first
    return node
