"""A mistake in a loss, and the loss functions that were called beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from watchglass.records import Severity, loss_kind


class Mistake(NamedTuple):
    """What is wrong with a term.

    Attributes:
        severity: Severity of the finding.
        symptom: Symptom of the finding; "" for none.
        message: A sentence.
        value: What was measured.
        limit: What it crossed.
        evidence: Values for advice.
    """

    severity: Severity
    symptom: str
    message: str
    value: float | None = None
    limit: float | None = None
    evidence: Mapping[str, Any] = {}


class LossCalls(NamedTuple):
    """Loss functions that were called at a step, from their facts.

    Attributes:
        functions: Their names.
        classes: Numbers of classes that those by class were given.
    """

    functions: frozenset[str]
    classes: frozenset[int]

    @classmethod
    def of(cls, calls: Iterable[Mapping[str, Any]]) -> LossCalls:
        """Those of some facts ``loss_call``."""
        names, classes = set(), set()
        for data in calls:
            names.add(str(data.get("function")))
            shape = ((data.get("arguments") or {}).get("input") or {}).get("shape") or []
            if loss_kind(str(data.get("function"))).of_classes and len(shape) > 1:
                classes.add(int(shape[1]))
        return cls(frozenset(names), frozenset(classes))
