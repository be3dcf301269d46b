"""A mistake in a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from watchglass.records import Severity


class Mistake(NamedTuple):
    """What is wrong with a loss, or with what it is given.

    Attributes:
        symptom: Symptom of the finding; "" for none.
        message: A sentence.
        value: What was measured.
        limit: What it crossed.
        evidence: Values for advice.
        severity: Severity of the finding.
    """

    symptom: str
    message: str
    value: float | None = None
    limit: float | None = None
    evidence: Mapping[str, Any] = {}
    severity: Severity = Severity.WARNING
