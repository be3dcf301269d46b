"""Fact ``loss_graph``: how a script makes its loss of a model's outputs, from the graph of any framework."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

from watchglass.capture.operation_graph import CONSTANT, Operand, OperationGraph
from watchglass.records import facts

#: Terms of a sum, and operations of a term, that are recorded at most.
_MOST_TERMS, _MOST_OPERATIONS = 12, 64
#: Fields that follow from the size of a batch, and numbers that may be annealed.
_SIZES = ("shape", "size", "elements", "rows", "broadcast", "factor")
_NORMALIZING = ("softmax", "log_softmax", "logsumexp")
#: No axis: a reshape has put parts of several axes into one.
_MIXED = -1


def described(graph: OperationGraph, name: Callable[[Any], str]) -> facts.TermsOfLoss:
    """The fact.

    Args:
        graph: The graph of the loss.
        name: Finds the name of a parameter; "" for one of no model.
    """
    terms = [_Term(graph, at, name).described(factor) for at, factor in _terms(graph)]
    # A penalty may have a term for each parameter.
    terms.sort(key=lambda term: term.kind != "data")
    return facts.TermsOfLoss(True, terms=tuple(terms[:_MOST_TERMS]), terms_count=len(terms))


def _terms(graph: OperationGraph) -> list[tuple[Operand, float | None]]:
    """The terms that a loss is the sum of, with the numbers that they are multiplied by, None where not known."""
    found: list[tuple[Operand, float | None]] = []
    waiting: list[tuple[Operand, float | None]] = [(Operand(len(graph) - 1, 0), 1.0)]
    while waiting and len(found) < 4 * _MOST_TERMS:
        operand, factor = waiting.pop(0)
        at, word = operand.at, graph.word(operand.at)
        below = graph.results(at)
        signs: list[float | None] = [1.0] * len(graph.below[at])
        if word in ("add", "sub", "rsub"):
            alpha = graph.setting(at, "alpha")
            second = (1.0 if alpha is None else alpha) * (1 if word == "add" else -1)
            signs = [second, 1.0] if word == "rsub" else [1.0, second]
        elif word == "neg":
            signs = [-1.0]
        elif word in ("mul", "div") and len(below) == 1:
            signs = [graph.setting(at, "factor")] * 2
        elif word not in ("stack", "cat", "sum") and (graph.operations[at].kind != "arranges" or len(below) != 1):
            below = []
        if not below or any(graph.size(*each) != 1 for each in below):
            found.append((operand, factor))
            continue
        for each, sign in zip(graph.below[at], signs, strict=False):
            if each.at != CONSTANT:
                waiting.append((each, None if factor is None or sign is None else factor * sign))
    return found + waiting


class _Term:
    """One term, down to the operations with weights that it hangs on."""

    def __init__(self, graph: OperationGraph, root: Operand, name: Callable[[Any], str]) -> None:
        self._graph = graph
        self._root = root
        # Operations from the start on, the nearest first, by index; names of the layers that it ends at.
        self._order: list[int] = []
        self._ends: dict[int, str] = {}
        self._whole = True
        self._walk(name)

    def described(self, coefficient: float | None) -> facts.TermOfLoss:
        """The term, which is multiplied by a number."""
        graph = self._graph
        kind = "data" if graph.varying[self._root.at] else "penalty"
        # Operands first; operations that only arrange values are passed over.
        shown = [at for at in sorted(self._order) if graph.operations[at].kind != "arranges"]
        places = {at: place for place, at in enumerate(shown)}
        operations = tuple(self._operation(at, places) for at in shown)
        return facts.TermOfLoss(coefficient, kind, self._whole, operations)

    def _walk(self, name: Callable[[Any], str]) -> None:
        graph, seen = self._graph, {self._root.at}
        waiting = [self._root]
        while waiting:
            at = waiting.pop(0).at
            if len(self._order) >= _MOST_OPERATIONS:
                self._whole = False
                break
            self._order.append(at)
            if weights := graph.weights(at):
                self._ends[at] = name(graph.parameters[weights[0]])
                continue
            for each in graph.results(at):
                if each.at not in seen and each.at not in graph.parameters:
                    seen.add(each.at)
                    waiting.append(each)

    def _operation(self, at: int, places: dict[int, int]) -> facts.MadeBy:
        graph = self._graph
        operation = graph.operations[at]
        shape = graph.shape(at)
        if at in self._ends:
            return facts.MadeBy(operation.name, shape, layer=self._ends[at])
        of = tuple(self._source(each, places) for each in graph.below[at])[:: -1 if operation.form == "rsub" else 1]
        known = False if operation.kind == "unknown" else None
        return facts.MadeBy(operation.name, shape, known, of=of, **self._settings(at))

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
        shape, own = graph.shape(*results[0]), graph.size(at)
        size, rows = math.prod(shape), shape[0] if shape else 1
        if name in _NORMALIZING:
            return self._normalized(results[0], shape, graph.setting(at, "axes"))
        if name in ("clamp", "pow"):
            return {each: graph.setting(at, each) for each in (("exponent",) if name == "pow" else ("min", "max"))}
        if name in ("sum", "mean"):
            return {"axes": graph.setting(at, "axes"), "elements": size // max(1, own), "rows": rows}
        if operation.kind == "loss":
            return {"reduction": graph.setting(at, "reduction"), "elements": size, "rows": rows}
        if operation.kind not in ("adds", "multiplies"):
            return {}
        single = name in ("mul", "div") and len(results) == 1
        return {
            "broadcast": shape if own > size else None, "factor": graph.setting(at, "factor") if single else None,
        }  # fmt: skip

    def _normalized(self, given: Operand, shape: tuple[int, ...], axes: tuple[int, ...]) -> dict[str, Any]:
        if len(axes) != 1 or not shape:
            return {}
        original = self._original(given, axes[0])
        mixes = {"mixes": True} if original == _MIXED else {}
        return {"axis": axes[0], "size": shape[axes[0]], "axis_of_output": None if mixes else original, **mixes}

    def _original(self, operand: Operand, axis: int) -> int | None:
        """The axis of the last result before axes were swapped; None if that is unclear, :data:`_MIXED` for none."""
        graph = self._graph
        while operand.at != CONSTANT and graph.operations[operand.at].kind == "arranges":
            name, below = graph.operations[operand.at].name, graph.below[operand.at][0]
            if name == "transpose":
                axis = (graph.setting(operand.at, "order") or range(axis + 1))[axis]
            elif name != "copy":
                before, now = graph.shape(*below), graph.shape(*operand)
                found = axis if before == now else _axis_before(before, now, axis)
                if found is None or found == _MIXED:
                    return found
                axis = found
            operand = below
        return axis


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
