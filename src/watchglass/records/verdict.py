"""What all findings of a run come to: diagnoses with ranked causes, in one verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from watchglass.records.findings import Finding, RuleStatus, Severity


@dataclass(frozen=True)
class Cause:
    """A disease: what may be wrong with a training, as data that can be read and extended.

    Attributes:
        id: Short identifier, ``"learning_rate_too_high"``.
        title: Half a sentence for headlines, ``"the learning rate is too high"``.
        explanation: Two or three sentences: how it leads to what was seen.
        what_to_try: Sentences, most promising first.
        source: Where the knowledge comes from.
    """

    id: str
    title: str
    explanation: str
    what_to_try: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True)
class RankedCause:
    """A cause of a diagnosis, with what speaks for it.

    Attributes:
        cause: The cause.
        score: How likely, in 0..1.
        step: Mode step of the earliest finding that speaks for it.
        evidence: Sentences of the findings that speak for it, earliest first.
    """

    cause: Cause
    score: float
    step: int
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """Findings of one disease with ranked causes.

    Attributes:
        causes: Up to three, most likely first.
        findings: Ids of the findings it explains, earliest first: the chain of symptoms.
        severity: The worst of them.
        step: Step of the earliest finding.
        subject: Tensor or module that was hit first, "" where none can be named.
        headline: One sentence: what is wrong, where, since when.
        what_to_try: Concrete sentences, most promising first.
    """

    causes: tuple[RankedCause, ...]
    findings: tuple[str, ...]
    severity: Severity
    step: int
    subject: str
    headline: str
    what_to_try: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The diagnoses of a run in one statement.

    Attributes:
        run: Path of the run as it was given.
        status: ``"no issues found"``, ``"issues found"``, ``"stopped"``, ``"incomplete"`` or ``"no data"``.
        diagnoses: Worst and earliest first.
        findings: All findings, in order of severity, then step.
        statuses: One for each rule.
        metrics: Last value of each metric worth a line, ``{"validation accuracy": 0.98}``.
        train_steps: TRAIN steps seen.
        planned_train_steps: TRAIN steps the run would have had, None where unknown.
        seconds: Length of the training as recorded.
        seconds_saved: Estimated seconds not spent because of the stop; None where unknown.
        capture: What the capture cost and dropped, as recorded, for the last line.
    """

    run: str
    status: str
    diagnoses: tuple[Diagnosis, ...]
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    train_steps: int = 0
    planned_train_steps: int | None = None
    seconds: float = 0.0
    seconds_saved: float | None = None
    capture: dict[str, Any] = field(default_factory=dict)
