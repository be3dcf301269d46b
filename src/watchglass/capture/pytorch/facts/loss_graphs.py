"""Fact ``loss_graph``: how a script makes its loss of a model's outputs, from autograd's graph."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

from watchglass.capture.pytorch.graph.autograd_graph import CONSTANT, Graph, Operand
from watchglass.capture.pytorch.graph.nodes import axis_of, output_path
from watchglass.records import facts

#: Terms of a sum, and operations of a term, that are recorded at most.
_MOST_TERMS, _MOST_OPERATIONS = 12, 64
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
#: Fields that follow from the size of a batch, and numbers that may be annealed.
_SIZES = ("shape", "size", "elements", "rows", "broadcast", "factor")
_NORMALIZING = ("softmax", "log_softmax", "logsumexp")
#: No axis: a reshape has put parts of several axes into one.
_MIXED = -1


def described(graph: Graph) -> facts.TermsOfLoss:
    """The fact, from the graph of the loss."""
    terms = [_Term(graph, at).described(factor) for at, factor in _terms(graph)]
    # A penalty may have a term for each parameter.
    terms.sort(key=lambda term: term.kind != "data")
    return facts.TermsOfLoss(True, terms=tuple(terms[:_MOST_TERMS]), terms_count=len(terms))


def _terms(graph: Graph) -> list[tuple[Operand, float | None]]:
    """The terms that a loss is the sum of, with the numbers that they are multiplied by, None where not known."""
    found: list[tuple[Operand, float | None]] = []
    waiting: list[tuple[Operand, float | None]] = [(Operand(len(graph) - 1, 0), 1.0)]
    while waiting and len(found) < 4 * _MOST_TERMS:
        operand, factor = waiting.pop(0)
        name = graph.operations[operand.at].word
        below = graph.results(operand.at)
        single = all(math.prod(graph.shape(*each)) == 1 for each in below)
        if not below or not single:
            found.append((operand, factor))
        elif name in ("add", "sub", "rsub"):
            alpha = float(graph.saved(operand.at, "alpha", 1))
            signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-alpha, 1.0)}[name]
            for each, sign in zip(graph.below[operand.at], signs, strict=False):
                if each.at != CONSTANT:
                    waiting.append((each, None if factor is None else factor * sign))
        elif name in ("stack", "cat", "sum"):
            waiting += [(each, factor) for each in below]
        elif name == "neg":
            waiting.append((below[0], None if factor is None else -factor))
        elif name in ("mul", "div") and len(below) == 1:
            by = graph.factor(operand.at)
            waiting.append((below[0], None if factor is None or by is None else factor * by))
        elif graph.operations[operand.at].kind == "arranges" and len(below) == 1:
            waiting.append((below[0], factor))
        else:
            found.append((operand, factor))
    return found + waiting


class _Term:
    """One term, down to the operations with weights that it hangs on."""

    def __init__(self, graph: Graph, root: Operand) -> None:
        self._graph = graph
        self._root = root
        # Operations from the start on, the nearest first, by index; what made an output of the model, and those below;
        # names of the layers that it ends at.
        self._order: list[int] = []
        self._inside: set[int] = set()
        self._ends: dict[int, str] = {}
        self._whole = True
        self._walk()

    def described(self, coefficient: float | None) -> facts.TermOfLoss:
        """The term, which is multiplied by a number."""
        graph = self._graph
        kind = "data" if graph.varying[self._root.at] else "penalty"
        # Operands first; operations that only arrange values are passed over.
        shown = [at for at in sorted(self._order) if graph.operations[at].kind != "arranges"]
        places = {at: place for place, at in enumerate(shown)}
        operations = tuple(self._operation(at, places) for at in shown)
        return facts.TermOfLoss(coefficient, kind, self._whole, operations)

    def _walk(self) -> None:
        graph, seen = self._graph, {self._root.at}
        waiting = [self._root]
        while waiting:
            operand = waiting.pop(0)
            at = operand.at
            if len(self._order) >= _MOST_OPERATIONS:
                self._whole = False
                break
            self._order.append(at)
            if output_path(graph.nodes[at], operand.number) is not None:
                self._inside.add(at)
            if weights := graph.weights(at):
                self._ends[at] = graph.name(weights[0])
                continue
            for each in graph.results(at):
                if each.at not in seen and each.at not in graph.parameters:
                    seen.add(each.at)
                    waiting.append(each)
        for at in sorted(self._order, reverse=True):
            if at in self._inside:
                self._inside.update(each.at for each in graph.below[at] if each.at in seen)

    def _operation(self, at: int, places: dict[int, int]) -> facts.MadeBy:
        graph = self._graph
        operation = graph.operations[at]
        inside = at in self._inside or None
        shape = graph.shape(at)
        if at in self._ends:
            return facts.MadeBy(operation.name, shape, inside, layer=self._ends[at])
        of = tuple(self._source(each, places) for each in graph.below[at])[:: -1 if operation.form == "rsub" else 1]
        known = False if operation.kind == "unknown" else None
        return facts.MadeBy(operation.name, shape, inside, known, of=of, **self._settings(at))

    def _source(self, operand: Operand, places: dict[int, int]) -> Any:
        """What an operand is: the place of an operation, ``"constant"``, ``"parameter"`` or ``"unknown"``."""
        while operand.at not in places:
            if operand.at == CONSTANT:
                return "constant"
            if not self._graph.varying[operand.at]:
                return "parameter"
            arranges = self._graph.operations[operand.at].kind == "arranges"
            if operand.at not in self._order or not arranges:
                return "unknown"
            operand = next(iter(self._graph.results(operand.at)), Operand(CONSTANT, 0))
        return places[operand.at]

    def _settings(self, at: int) -> dict[str, Any]:
        """What matters of an operation: axis, limits, reduction."""
        graph, operation = self._graph, self._graph.operations[at]
        name, results = operation.name, graph.results(at)
        if not results:
            return {}
        given, shape, own = results[0], graph.shape(*results[0]), math.prod(graph.shape(at))
        if name in _NORMALIZING:
            return self._normalized(given, shape, graph.saved(at, "dim"))
        if name == "clamp":
            limits = [graph.saved(at, each) for each in ("min", "max")]
            return {"min": _number(limits[0]), "max": _number(limits[1])}
        if name == "pow":
            return {"exponent": _number(graph.saved(at, "exponent"))}
        if name in ("sum", "mean"):
            axes = graph.saved(at, "dim")
            over = tuple(sorted(axis_of(axis, len(shape)) for axis in axes) if axes else range(len(shape)))
            return {"axes": over, "elements": math.prod(shape) // max(1, own), "rows": shape[0] if shape else 1}
        found: dict[str, Any] = {}
        if own > math.prod(shape) and operation.kind in ("adds", "multiplies"):
            found["broadcast"] = shape
        if name in ("mul", "div") and len(results) == 1 and (factor := _number(graph.factor(at))) is not None:
            found["factor"] = factor
        if operation.kind == "loss":
            reduction = graph.saved(at, "reduction")
            reduced = _REDUCTIONS.get(reduction) if isinstance(reduction, int) else None
            return {"reduction": reduced, "elements": math.prod(shape), "rows": shape[0] if shape else 1}
        return found

    def _normalized(self, given: Operand, shape: tuple[int, ...], axes: Any) -> dict[str, Any]:
        axes = axes if isinstance(axes, (tuple, list)) else (axes,)
        if len(axes) != 1 or not isinstance(axes[0], int) or not shape:
            return {}
        axis = axis_of(axes[0], len(shape))
        original = self._original(given, axis)
        mixes = {"mixes": True} if original == _MIXED else {}
        return {"axis": axis, "size": shape[axis], "axis_of_output": None if mixes else original, **mixes}

    def _original(self, operand: Operand, axis: int) -> int | None:
        """The axis of the last result before axes were swapped; None if that is unclear, :data:`_MIXED` for none."""
        graph = self._graph
        while operand.at != CONSTANT and graph.operations[operand.at].kind == "arranges":
            at, axes = operand.at, len(graph.shape(*operand))
            swapped = self._swapped(at, axes)
            if not swapped and graph.operations[at].name != "copy":
                before, now = graph.shape(*graph.below[at][0]), graph.shape(*operand)
                if before != now:
                    found = _axis_before(before, now, axis)
                    if found is None or found == _MIXED:
                        return found
                    axis = found
            axis, operand = swapped.get(axis, axis), graph.below[at][0]
        return axis

    def _swapped(self, at: int, axes: int) -> dict[int, int]:
        """By axis of the result of a transposition, the one before; empty for other operations."""
        graph = self._graph
        if graph.operations[at].name != "transpose":
            return {}
        if (dims := graph.saved(at, "dims")) is not None:
            return {to: axis_of(of, axes) for to, of in enumerate(dims)}
        one, other = (axis_of(int(graph.saved(at, name, number)), axes) for number, name in enumerate(("dim0", "dim1")))
        return {one: other, other: one}


def _axis_before(before: tuple[int, ...], now: tuple[int, ...], axis: int) -> int | None:
    """The axis that another arrangement of the same elements has as ``axis``, as a whole or in parts.

    None if ``axis`` joins several axes, or if elements were omitted or repeated. :data:`_MIXED` if it has parts of one
    axis and of the next one, so that neighbours along it are unrelated.
    """
    if math.prod(before) != math.prod(now):
        return (0 if axis < len(now) - 1 else len(before) - 1) if before[-1:] == now[-1:] else None
    # Elements of the axes before, and with this one: an axis of `before` begins and ends at such numbers too.
    first, last = math.prod(now[:axis]), math.prod(now[: axis + 1])
    ends = list(itertools.accumulate(before, operator.mul, initial=1))
    for index, (begin, end) in enumerate(itertools.pairwise(ends)):
        if begin < end and first % begin == 0 and last <= end and end % last == 0:
            return index
    return None if {first, last} <= set(ends) else _MIXED


def pattern(fact: facts.TermsOfLoss) -> Any:
    """The terms without sizes and coefficients: other batches, longer sequences and annealed weights are no change."""
    return [
        (
            term.kind,
            term.whole,
            [{name: value for name, value in vars(each).items() if name not in _SIZES} for each in term.operations],
        )
        for term in fact.terms
    ]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
