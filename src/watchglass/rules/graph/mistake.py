"""A mistake in a loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from watchglass.records import Severity


class Mistake(NamedTuple):
    """What is wrong with a loss, or with what it is given."""

    symptom: str  #: Symptom of the finding; "" for none.
    message: str  #: A sentence.
    value: float | None = None  #: What was measured.
    limit: float | None = None  #: What it crossed.
    evidence: Mapping[str, Any] = {}  #: Values for advice.
    severity: Severity = Severity.WARNING  #: Severity of the finding.
