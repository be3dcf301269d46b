"""Which operation first made values that are not finite, from autograd's graph of a step that has failed.

Each kind of node has a check that reads what the node has saved: the values that it was given, or its result. The graph
shows operations outside of modules, too: a loss that the script wrote itself. Only tensors on the CPU are read. Nodes
keep the graph alive, so nothing here outlives the callback that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from watchglass.capture.facts.first_bad import Look
from watchglass.capture.operation_graph import CONSTANT
from watchglass.capture.pytorch.first_bad.extremes import look_at
from watchglass.capture.pytorch.first_bad.lines import OperationLines, ways_of
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.capture.pytorch.graph.nodes import axes_of, axis_of, saved_tensor, signed
from watchglass.records import OperationFault

#: Reads what a node of a graph has saved; None where it is not at fault.
_Check = Callable[[Graph, int], "OperationFault | None"]
#: Operations that may lie between a probability and its logarithm.
_MOST_BETWEEN = 8
_LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
#: Ends of the domain, where the derivative is infinite, and whether the value is infinite there, too.
_DOMAINS = {
    "acos": (-1.0, 1.0, False), "asin": (-1.0, 1.0, False), "atanh": (-1.0, 1.0, True), "erfinv": (-1.0, 1.0, True),
    "logit": (0.0, 1.0, True), "acosh": (1.0, math.inf, False),
}  # fmt: skip
#: Where the gradient of a finite value is infinite: what is saved that shows it, the lowest values and the highest ones
#: (NaN for no limit), and the kind of the fault. Of ``pow`` that holds for exponents between 0 and 1.
INFINITE_GRADIENTS: Mapping[str, tuple[str, float, float, str]] = {
    "sqrt": ("result", 0.0, math.nan, "root_at_zero"), "pow": ("self", 0.0, math.nan, "root_at_zero"),
    "xlogy": ("other", 0.0, math.nan, "log_of_zero"),
    **{word: ("self", low, high, "end_of_domain") for word, (low, high, also) in _DOMAINS.items() if not also},
}  # fmt: skip
_EXPONENTIALS = ("exp", "expm1")
_SPREADS = ("var", "std", "var_mean", "std_mean")
_DECOMPOSITIONS = {"eigh": "eigenvalues", "svd": "S", "eig": "eigenvalues"}


def of_forward(graph: Graph, *lines: OperationLines, besides: Iterable[Any] = ()) -> OperationFault | None:
    """The first operation that made values that are not finite of finite ones; None where none is found.

    Args:
        graph: The graph of the loss.
        lines: OperationLines of the script; the first that know the operation count.
        besides: Nodes that made outputs of modules whose values are all finite: nothing below them is at fault.
    """
    left_out = _below(graph, besides)
    for at in range(len(graph)):
        if at not in left_out:
            fault = _forward_fault(graph, at)
            if fault is not None:
                return _placed(fault, graph, at, *lines)
    return None


def of_backward(graph: Graph, *lines: OperationLines) -> OperationFault | None:
    """The operation nearest to a finite loss whose gradient is not finite; None where none is found.

    Args:
        graph: The graph of the loss, before a backward runs through it.
        lines: OperationLines of the script.
    """
    for at in range(len(graph) - 1, -1, -1):
        fault = _backward_fault(graph, at) or _discarded(graph, at)
        if fault is not None:
            return _placed(fault, graph, at, *lines)
    return None


def _placed(fault: OperationFault, graph: Graph, at: int, *lines: OperationLines) -> OperationFault:
    way = ways_of(graph).get(at) if lines else None
    if way is None:
        return fault
    places = (each.of(way) for each in lines)
    place, code = next((found for found in places if found[0]), ("", ""))
    return replace(fault, place=place, code=code)


def _discarded(graph: Graph, at: int) -> OperationFault | None:
    """A result that is not finite does not reach a finite loss: a gradient of zero times infinity does."""
    found = _forward_fault(graph, at)
    if found is None or found.harmless:
        return None
    if not is_chosen_from(graph, at):
        return replace(found, backward=True)
    limit = found.numbers.get("limit")
    operation = f"{found.operation} of values above {limit}" if limit else found.operation
    return replace(found, kind="untaken_branch", operation=operation, backward=True)


def is_chosen_from(graph: Graph, at: int) -> bool:
    """Whether a choice follows an operation, before anything that mixes elements."""
    reached = {at}
    for index in range(at + 1, len(graph)):
        if any(each.at in reached for each in graph.below[index]):
            if graph.word(index) == "where":
                return True
            reached.add(index)
    return False


def _below(graph: Graph, nodes: Iterable[Any]) -> set[int]:
    numbers = {node: at for at, node in enumerate(graph.nodes)}
    waiting = [numbers[node] for node in nodes if node in numbers]
    found: set[int] = set()
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += [each.at for each in graph.results(at)]
    return found


def _forward_fault(graph: Graph, at: int) -> OperationFault | None:
    return _checked(_FORWARD, graph, at)


def _backward_fault(graph: Graph, at: int) -> OperationFault | None:
    fault = _checked(_BACKWARD, graph, at)
    if fault is not None and is_chosen_from(graph, at):
        return replace(fault, kind="untaken_branch")
    return fault


def _checked(checks: Mapping[str, _Check], graph: Graph, at: int) -> OperationFault | None:
    check = checks.get(graph.word(at))
    try:
        with torch.no_grad():
            return None if check is None else check(graph, at)
    except (RuntimeError, TypeError, ValueError):
        return None  # tensors of other classes, and those inside a transform or a dispatch mode


# -- reading what nodes have saved -------------------------------------------------------------------------------------


def _tensor(graph: Graph, at: int, name: str) -> Tensor | None:
    value = saved_tensor(graph.nodes[at], name)
    return value if value is not None and value.is_cpu else None


def _look(value: Tensor | None) -> Look | None:
    return None if value is None or not value.numel() else look_at(value)


def _saved(graph: Graph, at: int, name: str = "self") -> Look | None:
    return _look(_tensor(graph, at, name))


def _fault(
    kind: str, operation: str, look: Look | None = None, *, backward: bool = False, **numbers: Any
) -> OperationFault:
    if look is None or math.isnan(look.low):
        return OperationFault(kind, operation, backward, numbers=numbers)
    return OperationFault(kind, operation, backward, look.low, look.high, numbers)


def _source(graph: Graph, at: int, also: tuple[str, ...] = ()) -> int:
    """The operation whose values an operation is given, past what only arranges them."""
    for _ in range(_MOST_BETWEEN):
        below = [each.at for each in graph.results(at)]
        if not below:
            return CONSTANT
        at = below[0]
        if graph.operations[at].kind != "arranges" and graph.word(at) not in also:
            return at
    return CONSTANT


# -- values ------------------------------------------------------------------------------------------------------------


def _logarithm(graph: Graph, at: int) -> OperationFault | None:
    look, zero = _saved(graph, at), _LOGARITHMS[graph.word(at)]
    if look is None or not look.finite or look.low > zero:
        return None
    operation = graph.word(at)
    if look.low < zero:
        return _fault("log_of_negative", operation, look)
    source = _source(graph, at, ("rsub", "sub"))
    made = graph.word(source) if source != CONSTANT else ""
    kind = {"softmax": "log_of_softmax", "sigmoid": "log_of_sigmoid"}.get(made, "log_of_zero")
    return _fault(kind, operation, look)


def _domain(graph: Graph, at: int) -> OperationFault | None:
    look, (low, high, infinite) = _saved(graph, at), _DOMAINS[graph.word(at)]
    if look is None or not look.finite:
        return None
    if look.low < low or look.high > high:
        return _fault("outside_domain", graph.word(at), look)
    if infinite and (look.low == low or look.high == high):
        return _fault("end_of_domain", graph.word(at), look)
    return None


def _infinite_gradient(graph: Graph, at: int) -> OperationFault | None:
    """A value at which the gradient is infinite."""
    word = graph.word(at)
    saved, low, high, kind = INFINITE_GRADIENTS.get(word) or ("self", *_DOMAINS[word][:2], "end_of_domain")
    look = _saved(graph, at, saved)
    if look is None or not look.finite or (word == "pow" and not is_root(graph, at)):
        return None
    if look.low != low and look.high != high and not (kind == "root_at_zero" and look.low < low):
        return None
    look = Look(look.low**2, look.high**2) if word == "sqrt" else look
    return _fault(kind, _with_exponent(graph, at) if word == "pow" else word, look, backward=True)


def _root(graph: Graph, at: int) -> OperationFault | None:
    """A square root of which only the result is saved: NaN shows that something negative, or NaN, was given."""
    look, word = _saved(graph, at, "result"), graph.word(at)
    if look is None or look.high < math.inf or _is_bad(graph, at):
        return None
    if math.isnan(look.high):
        return _fault("root_of_negative", word)
    return _fault("division_by_zero", word) if word == "rsqrt" else None


def _exponent(graph: Graph, at: int) -> float | None:
    value: float | None = graph.setting(at, "exponent")
    return value


def is_root(graph: Graph, at: int) -> bool:
    """Whether a power has an infinite gradient at zero."""
    return 0 < (_exponent(graph, at) or 0) < 1


def _with_exponent(graph: Graph, at: int) -> str:
    return f"pow with exponent {_exponent(graph, at):g}"


def _power(graph: Graph, at: int) -> OperationFault | None:
    exponent, base = _exponent(graph, at), _tensor(graph, at, "self")
    look = _look(base)
    if exponent is None or base is None or look is None or not look.finite:
        return None
    operation = _with_exponent(graph, at)
    if look.low < 0 and not exponent.is_integer():
        return _fault("root_of_negative", operation, look)
    if exponent < 0 and look.low <= 0 <= look.high and bool((base == 0).any()):
        return _fault("division_by_zero", operation, look)
    if exponent > 1 and look.magnitude > 1 and exponent * math.log(look.magnitude) > math.log(_largest(base)):
        kind = "float16_overflow" if base.dtype == torch.float16 else "product_overflow"
        return _fault(kind, operation, look, dtype=_dtype(base))
    return None


def _division(graph: Graph, at: int) -> OperationFault | None:
    divisor = _tensor(graph, at, "other")
    look = _look(divisor)
    if divisor is None or look is None or not look.finite or not bool((divisor == 0).any()):
        return None
    source = graph.below[at][0].at
    if divisor.numel() == 1 and source != CONSTANT and graph.word(source) == "sum":
        return _fault("mean_of_nothing", "mean")
    return _fault("division_by_zero", "div", look)


def _reciprocal(graph: Graph, at: int) -> OperationFault | None:
    look = _saved(graph, at, "result")
    if look is None or (look.low > -math.inf and look.high != math.inf):
        return None
    return _fault("division_by_zero", "reciprocal")


def _exponential(graph: Graph, at: int) -> OperationFault | None:
    result = _tensor(graph, at, "result")
    look = _look(result)
    if result is None or look is None or look.high != math.inf or _is_bad(graph, at):
        return None
    if result.dtype == torch.float16:
        return _fault("float16_overflow", graph.word(at))
    return _fault("exponential_overflow", graph.word(at), limit=f"{math.log(_largest(result)):.3g}")


def _product(graph: Graph, at: int) -> OperationFault | None:
    one, other = _tensor(graph, at, "self"), _tensor(graph, at, "other")
    looks = _look(one), _look(other)
    if one is None or other is None or looks[0] is None or looks[1] is None:
        return None
    if not (looks[0].finite and looks[1].finite):
        return None
    product = _look(one * other)
    if product is None or product.finite:
        return None
    look = Look(min(looks[0].low, looks[1].low), max(looks[0].high, looks[1].high))
    kind = "float16_overflow" if one.dtype == torch.float16 else "product_overflow"
    return _fault(kind, "mul", look, dtype=_dtype(one))


def _spread(graph: Graph, at: int) -> OperationFault | None:
    value = _tensor(graph, at, "self")
    if value is None:
        return None
    elements = math.prod(value.shape[axis] for axis in axes_of(graph.saved(at, "dim"), value.dim()) or ())
    correction = graph.saved(at, "correction", 1)
    if elements == 1 and (correction is None or correction == 1):
        return _fault("spread_of_one", graph.word(at).removesuffix("_mean"), elements=1)
    return None


def _mean(graph: Graph, at: int) -> OperationFault | None:
    return None if graph.saved(at, "self_sym_numel", 1) else _fault("mean_of_no_rows", "mean")


def _labels(graph: Graph, at: int) -> OperationFault | None:
    total, labels = _tensor(graph, at, "total_weight"), _tensor(graph, at, "target")
    if total is None or labels is None or graph.setting(at, "reduction") != "mean" or float(total):
        return None
    given = _saved(graph, at)
    if given is not None and given.bad:
        return None
    ignored = signed(int(graph.saved(at, "ignore_index", -100)))
    if bool((labels == ignored).all()):
        return _fault("labels_all_ignored", "nll_loss", labels=labels.numel(), ignored=ignored)
    return _fault("labels_weigh_nothing", "nll_loss", labels=labels.numel())


def _softmax(graph: Graph, at: int) -> OperationFault | None:
    result = _tensor(graph, at, "result")
    if result is None or not result.dim() or not result.numel():
        return None
    bad = result.isnan().all(axis_of(int(graph.saved(at, "dim", -1)), result.dim()))
    rows, masked = int(bad.sum()), _mask(graph, _source(graph, at, ("mul", "div")), at)
    if not rows or masked is False or (masked is None and rows == bad.numel()):
        return None
    return _fault("row_masked_whole", graph.word(at), rows=rows, all_rows=bad.numel())


def _mask(graph: Graph, source: int, at: int) -> bool | None:
    """Whether a mask lies before a softmax: None where its place is in an addition, whose mask is not saved."""
    nearest = next((each.at for each in graph.below[at] if each.at != CONSTANT), CONSTANT)
    words = {graph.word(each) for each in (source, nearest) if each != CONSTANT}
    if words & {"masked_fill", "where"}:
        return True
    return None if "add" in words else False


def _ctc(graph: Graph, at: int) -> OperationFault | None:
    losses = _tensor(graph, at, "result0")
    if losses is None or not bool(losses.isinf().any()) or graph.saved(at, "zero_infinity"):
        return None
    inputs, targets = _lengths(graph, at, "input_lengths"), _lengths(graph, at, "target_lengths")
    bad = losses.isinf().reshape(-1).tolist()
    if len(inputs) != len(bad) or len(targets) != len(bad):
        return None
    first = bad.index(True)
    return _fault(
        "target_too_long", "ctc_loss", targets=sum(bad), all_targets=len(bad), target=targets[first],
        input=inputs[first],
    )  # fmt: skip


def _lengths(graph: Graph, at: int, name: str) -> list[int]:
    value = graph.saved(at, name)
    if value is None:
        tensor = _tensor(graph, at, name)
        return [] if tensor is None else [int(each) for each in tensor.reshape(-1).tolist()]
    return [int(each) for each in value]


def _decomposition(graph: Graph, at: int) -> OperationFault | None:
    values = _tensor(graph, at, _DECOMPOSITIONS[graph.word(at)])
    if values is None or not values.dim() or values.shape[-1] < 2 or values.is_complex():
        return None
    if not bool((values.sort(-1).values.diff(dim=-1) == 0).any()):
        return None
    return _fault("equal_eigenvalues", graph.word(at), backward=True)


def _is_bad(graph: Graph, at: int) -> bool:
    """Whether what an operation was given is known to hold NaN already: its source has saved its result."""
    source = _source(graph, at)
    if source == CONSTANT:
        return False
    look = _saved(graph, source, "result")
    return look is not None and math.isnan(look.high)


def _largest(value: Tensor) -> float:
    return torch.finfo(value.dtype).max if value.is_floating_point() else math.inf


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


#: By kind of node: of values that are not finite.
_FORWARD: Mapping[str, _Check] = {
    **dict.fromkeys(_LOGARITHMS, _logarithm),
    **dict.fromkeys(_DOMAINS, _domain),
    **dict.fromkeys(_EXPONENTIALS, _exponential),
    **dict.fromkeys(_SPREADS, _spread),
    **dict.fromkeys(("softmax", "log_softmax"), _softmax),
    "nll_loss": _labels, "ctc_loss": _ctc, "sqrt": _root, "rsqrt": _root, "pow": _power, "div": _division,
    "reciprocal": _reciprocal, "mul": _product, "mean": _mean,
}  # fmt: skip
#: By kind of node: of finite values whose gradient is not finite.
_BACKWARD: Mapping[str, _Check] = {
    **dict.fromkeys((*INFINITE_GRADIENTS, *_DOMAINS), _infinite_gradient),
    **dict.fromkeys(_DECOMPOSITIONS, _decomposition),
}
