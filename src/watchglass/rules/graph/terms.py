"""The terms of a loss, from the fact ``loss_graph``: results of operations, what made them, and what takes them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeVar

from watchglass.records import OPERATIONS, Operation, facts
from watchglass.tables import StepView

#: How many times as many elements as at first make a sum of them a loss without a level (house).
_VARIES = 1.25

Kind = TypeVar("Kind")
Value = TypeVar("Value")


class Made:
    """What an operation of a term made.

    Attributes:
        term: The term.
        place: Its place there; operands come first.
        operation: The operation; one that is not declared is of an unknown kind.
        name: Its word.
        shape: Its shape.
        layer: Name of the weight that it was multiplied by; None for other operations.
        operands: What it was made of: results, or ``"constant"``, ``"parameter"``, ``"unknown"``.
        sources: The results among them.
        first: The first of these; None for none.
        others: The other operands.
        takers: The results that are made of it.
        data: The operation as the fact has it, with its settings.
    """

    def __init__(self, term: LossTerm, place: int, data: facts.MadeBy) -> None:
        name, before = data.operation, term.results
        self.term, self.place = term, place
        self.operation, self.name = OPERATIONS.get(name) or Operation(name, "unknown"), name
        self.data, self.shape, self.layer = data, list(data.shape), data.layer
        self.operands: list[Made | str] = [before[of] if isinstance(of, int) else of for of in data.of or ()]
        self.sources = [each for each in self.operands if isinstance(each, Made)]
        self.first = self.sources[0] if self.sources else None
        self.others = {each for each in self.operands if isinstance(each, str)}
        self.takers: list[Made] = []
        self._values: dict[Any, Any] = {}
        for source in self.sources:
            source.takers.append(self)

    def value(self, algebra: Callable[[Made], Value]) -> Value:
        """Its value in an algebra, which makes that of a result from those of its sources; found once, from these up.

        Args:
            algebra: Gives the value of a result.
        """
        if algebra not in self._values:
            for made in self.term.results[: self.place]:
                if algebra not in made._values:
                    made._values[algebra] = algebra(made)
            self._values[algebra] = algebra(self)
        value: Value = self._values[algebra]
        return value

    @property
    def of_layers(self) -> list[Made]:
        """Those of its sources that depend on a layer, and not on constants and single parameters alone."""
        return [each for each in self.sources if any(made.layer is not None for made in (each, *each.before))]

    @property
    def output_of(self) -> Made | None:
        """The layer whose output this is: the result of its operation, or its sum with a bias; None for others."""
        biased = self.name == "add" and len(self.operands) == 2 and self.others == {"parameter"}
        made = self.sources[0] if biased and self.sources else self
        return made if made.layer is not None and made.operation.weighted_sum else None

    @property
    def units(self) -> int:
        """Units or channels of the output of a layer; 0 for other results."""
        layer = self.output_of
        if not self.shape or layer is None:
            return 0
        return self.shape[1] if layer.name == "convolution" and len(self.shape) > 1 else self.shape[-1]

    @property
    def shifted(self) -> bool:
        """Whether it is one result that was only clamped, or that a constant was added to."""
        added = self.name in ("add", "sub") and self.others <= {"constant"}
        return len(self.sources) == 1 and (self.name == "clamp" or added)

    @cached_property
    def before(self) -> set[Made]:
        """All results that it is made of."""
        return {each for source in self.sources for each in (source, *source.before)}

    @cached_property
    def after(self) -> set[Made]:
        """All results that are made of it."""
        return {each for taker in self.takers for each in (taker, *taker.after)}

    def back(self, names: Iterable[str]) -> Made:
        """The first result that another operation made, from this one back through single operands of these."""
        made = self
        while made.name in names and len(made.sources) == 1:
            made = made.sources[0]
        return made


class LossTerm:
    """One term of a loss, from its fact."""

    def __init__(self, data: facts.TermOfLoss) -> None:
        self.data = data.operations  #: The operations as the fact has them.
        self.results: list[Made] = []  #: Their results, operands first.
        for place, each in enumerate(self.data):
            self.results.append(Made(self, place, each))
        # A term is one number. Where a scaler is switched off, runs may lack the last operation, and so the sign.
        number = not self.results or math.prod(self.results[-1].shape) == 1
        #: Whether these are all, and known.
        self.whole = data.whole and number and all(each.known is not False for each in self.data)
        self.coefficient = data.coefficient  #: What the term is multiplied by; None where that is not a number.
        self.of_data = data.kind == "data"  #: Whether it depends on data; else it is a penalty on weights.

    @property
    def last(self) -> Made | None:
        """The result of the term, where all of it is known."""
        return self.results[-1] if self.whole and self.results else None

    @property
    def layers(self) -> set[str]:
        """Names of the layers that it depends on."""
        return {each.layer for each in self.results if each.layer is not None}

    @property
    def summed(self) -> int:
        """Elements that the term is a sum of; 0 if it is none, or a mean."""
        return (self.data[-1].elements or 0) if self.data and self.data[-1].operation == "sum" else 0


def once_for_each(make: Callable[[Kind], Value]) -> Callable[[Kind], Value]:
    """``make``, which is called once for each fact, however many rules ask."""
    known: dict[int, tuple[weakref.ref[Kind], Value]] = {}

    def find(fact: Kind) -> Value:
        at = id(fact)
        if at not in known:
            known[at] = weakref.ref(fact, lambda dead: known.pop(at, None)), make(fact)
        return known[at][1]

    return find


@once_for_each
def terms_of(fact: facts.TermsOfLoss) -> list[LossTerm]:
    """The terms of a fact, the same for all rules."""
    return [LossTerm(term) for term in fact.terms]


def data_terms(fact: facts.TermsOfLoss) -> list[LossTerm]:
    """Those that depend on data; the others are penalties on weights."""
    return [term for term in terms_of(fact) if term.of_data]


def smooths_labels(terms: Iterable[LossTerm]) -> bool:
    """Whether a loss counts all classes alike beside the labels, as ``cross_entropy`` does that smooths them."""
    of_labels = of_all = False
    for term in terms:
        for made in term.results:
            if any(each.name == "log_softmax" for each in made.sources):
                of_labels |= made.name == "nll_loss"
                of_all |= made.name == "sum" and any(each.name == "neg" for each in made.takers)
    return of_labels and of_all


def remember_summed(summed: list[int], view: StepView) -> None:
    """Keep the first number of elements that a loss was a sum of and the largest one, in place; nothing for means."""
    for fact in view.facts(facts.TermsOfLoss):
        elements = sum(term.summed for term in terms_of(fact))
        if elements:
            summed[:] = [summed[0] if summed else elements, max([elements, *summed])]


def without_level(summed: list[int]) -> bool:
    """Whether the loss is a sum over a number of elements that is larger at some steps than at first.

    A last batch of an epoch is smaller, and raises no loss.
    """
    return bool(summed) and summed[1] > _VARIES * summed[0]
