"""A term of the loss in the fact ``loss_graph``: its operations, and the operations that take their results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from watchglass.records import Fact
from watchglass.tables import StepView

#: How many times as many elements as at first make a sum of them a loss without a level (house).
_VARIES = 1.25


class LossTerm:
    """One term of a loss, from its fact."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.operations: list[Mapping[str, Any]] = list(data.get("operations") or ())
        # A term is one number. Where a scaler is switched off, runs may lack the last operation, and so the sign.
        number = not self.operations or not self.shape(-1) or math.prod(self.shape(-1)) == 1
        known = all(each.get("known", True) for each in self.operations)
        self.whole = bool(data.get("whole")) and known and number
        self.coefficient = data.get("coefficient")
        #: By place of an operation, places of those that take its result.
        self.takers: dict[int, list[int]] = {}
        for at in range(len(self.operations)):
            for source in self.sources(at):
                self.takers.setdefault(source, []).append(at)

    def name(self, at: int) -> str:
        """Name of an operation."""
        return str(self.operations[at].get("operation"))

    def shape(self, at: int) -> list[int]:
        """Shape of its result."""
        return list(self.operations[at].get("shape") or ())

    def operands(self, at: int) -> list[Any]:
        """What it takes: places of operations, or words for others."""
        return list(self.operations[at].get("of") or ())

    def sources(self, at: int) -> list[int]:
        """Places of the operations that it takes."""
        return [each for each in self.operands(at) if isinstance(each, int)]

    def of_layers(self, at: int) -> list[int]:
        """Those of its sources that depend on a layer, and not on constants and single parameters alone."""
        layers = {place for place, each in enumerate(self.operations) if each.get("layer") is not None}
        return [each for each in self.sources(at) if layers & {each, *self.before(each)}]

    def before(self, at: int) -> set[int]:
        """Places of all operations that its result is made of."""
        found: set[int] = set()
        waiting = [at]
        while waiting:
            for each in self.sources(waiting.pop()):
                if each not in found:
                    found.add(each)
                    waiting.append(each)
        return found

    def after(self, at: int) -> set[int]:
        """Places of all operations that are made of its result."""
        found: set[int] = set()
        waiting = [at]
        while waiting:
            for each in self.takers.get(waiting.pop(), ()):
                if each not in found:
                    found.add(each)
                    waiting.append(each)
        return found

    def summed(self) -> int:
        """Elements that the term is a sum of; 0 if it is none, or a mean."""
        last = self.operations[-1] if self.operations else {}
        elements = last.get("elements")
        return elements if last.get("operation") == "sum" and isinstance(elements, int) else 0

    def shifted(self, at: int) -> bool:
        """Whether an operation only clamps, or adds a constant to, one result."""
        given = self.operands(at)
        others = [each for each in given if not isinstance(each, int)]
        return len(self.sources(at)) == 1 and (
            self.name(at) == "clamp" or (self.name(at) in ("add", "sub") and all(each == "constant" for each in others))
        )


def data_terms(fact: Fact) -> list[LossTerm]:
    """Those terms of a fact ``loss_graph`` that depend on data; the others are penalties on weights."""
    return [LossTerm(term) for term in fact.data.get("terms") or () if term.get("kind") == "data"]


def smooths_labels(terms: Iterable[LossTerm]) -> bool:
    """Whether a loss counts all classes alike beside the labels, as ``cross_entropy`` does that smooths them."""
    of_labels = of_all = False
    for term in terms:
        for at in range(len(term.operations)):
            if "log_softmax" in map(term.name, term.sources(at)):
                of_labels |= term.name(at) == "nll_loss"
                of_all |= term.name(at) == "sum" and "neg" in map(term.name, term.takers.get(at, ()))
    return of_labels and of_all


def remember_summed(summed: list[int], view: StepView) -> None:
    """Keep the first number of elements that a loss was a sum of and the largest one, in place; nothing for means."""
    for fact in view.facts("loss_graph"):
        elements = sum(LossTerm(term).summed() for term in fact.data.get("terms") or ())
        if elements:
            summed[:] = [summed[0] if summed else elements, max([elements, *summed])]


def no_level(summed: list[int]) -> bool:
    """Whether the loss is a sum over a number of elements that is larger at some steps than at first.

    A last batch of an epoch is smaller, and raises no loss.
    """
    return bool(summed) and summed[1] > _VARIES * summed[0]
