"""Fact ``membership`` of compiled steps: parameters that optimizers are given, with a gradient or without."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from watchglass.record import OpenStep
from watchglass.records import facts

_MOST_NAMED = 32

#: By type of the optimizer, the names of the parameters that it is given at one step, and whether each has a gradient.
Given = Mapping[str, Mapping[str, bool]]


class OptimizedParameters:
    """Makes the fact about a model when it has changed. For the training thread.

    Args:
        source: The source of facts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._reported: dict[int, facts.Membership] = {}

    def save(
        self, step: OpenStep, model: int, given: Given, trainable: Iterable[str], derived: Collection[str] = ()
    ) -> None:
        """Add the fact if it is another one than before; nothing where no optimizer was called.

        Args:
            step: The step.
            model: Number of the model.
            given: What optimizers are given.
            trainable: Names of all parameters of the model that are not frozen.
            derived: Those whose gradients the script has computed.
        """
        fact = membership_of(given, list(trainable), derived)
        if fact is not None and self._reported.get(model) != fact:
            self._reported[model] = fact
            step.records.add_fact(fact, self._source)


def membership_of(given: Given, trainable: Collection[str], derived: Collection[str]) -> facts.Membership | None:
    """The fact of one step; None where no optimizer was called."""
    if not given:
        return None
    held = {name: has for each in given.values() for name, has in each.items()}
    left_out = [name for name in trainable if name not in held]
    missed = [name for name in left_out if name in derived]
    return facts.Membership(
        list(given)[-1],
        {kind: facts.HeldParameters(kind, len(each)) for kind, each in given.items()},
        len(trainable),
        left_out=_named(left_out),
        left_out_with_gradient=len(missed),
        left_out_beside=_named(missed),
        without_gradient=_named(name for name, has in held.items() if not has),
    )


def _named(names: Iterable[str]) -> facts.NamedParameters:
    every = tuple(names)
    return facts.NamedParameters(len(every), every[:_MOST_NAMED])
