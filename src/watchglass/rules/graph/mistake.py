"""A mistake in a loss, and the loss functions that were called beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from watchglass.records import Severity, facts


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
    def of(cls, calls: Sequence[facts.ComputedLoss]) -> LossCalls:
        """Those of these facts."""
        by_class = (call for call in calls if call.kind.of_classes and len(call.predictions) > 1)
        return cls(frozenset(call.function for call in calls), frozenset(call.classes for call in by_class))
