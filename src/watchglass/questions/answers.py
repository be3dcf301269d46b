"""Answers to programs: plain records of JSON types, short, each with the run and the steps that it is about.

Numbers that JSON lacks are texts: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

#: A number, rounded to six digits; a text where it is not finite.
Number: TypeAlias = float | str


def shown(value: float) -> Number:
    """A number as answers have it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.6g}")


def shown_or_none(value: float | None) -> Number | None:
    """The same; None for none."""
    return None if value is None else shown(value)


@dataclass(frozen=True)
class RunAnswer:
    """A run in a list."""

    run: str  #: Its identifier, for all other questions.
    name: str
    state: str  #: "finished", "not finished", "failed" and so on.
    headline: str  #: The verdict in one line.
    train_steps: int
    planned_train_steps: int | None
    loss: Number | None  #: The last training loss.
    started: str  #: ISO 8601, UTC.
    problem: str  #: Why it cannot be read, "" if it can.


@dataclass(frozen=True)
class RunsAnswer:
    """The newest runs that match."""

    location: str
    note: str  #: Why there are no runs at all, "" if there are.
    matching: int  #: How many match; only the newest are in ``runs``.
    runs: list[RunAnswer]


@dataclass(frozen=True)
class CauseAnswer:
    """A likely cause."""

    title: str
    probability: float
    first_step: int
    explanation: str
    evidence: list[str]
    against: list[str]


@dataclass(frozen=True)
class DiagnosisAnswer:
    """Findings with one explanation."""

    headline: str
    severity: str
    since_step: int
    causes: list[CauseAnswer]
    what_to_try: list[str]
    findings: list[str]  #: Identifiers.


@dataclass(frozen=True)
class FindingAnswer:
    """What a rule found."""

    finding: str  #: Its identifier.
    rule: str
    severity: str
    mode: str
    step: int
    last_step: int
    worker: str
    message: str
    value: Number | None
    limit: Number | None


@dataclass(frozen=True)
class VerdictAnswer:
    """The verdict on a run."""

    run: str
    name: str
    state: str
    status: str  #: "issues found", "no issues found", "no data", "not judged" and so on.
    headline: str
    evaluated: bool  #: Whether rules were evaluated to the end of the run; if not, ask check_run.
    train_steps: int
    last_step: int  #: The last training step, -1 for none.
    diagnoses: list[DiagnosisAnswer]
    findings: list[FindingAnswer]  #: The most severe ones.
    findings_total: int
    rules_without_answer: int
    failure: str  #: How the script failed, "" if it did not.
    stop_reason: str  #: Why a person or a program stopped it, "" for a stop by a finding, or none.


@dataclass(frozen=True)
class ExplanationAnswer:
    """Everything about one finding."""

    run: str
    finding: FindingAnswer
    tensors: list[str]
    looks_at: str
    fires_when: str
    evidence: list[str]
    suggests: list[str]  #: Causes that its symptoms suggest.
    what_to_try: list[str]


@dataclass(frozen=True)
class PointAnswer:
    """Some steps of a series, by their finite values; texts such as "NaN" where there are none."""

    step: int  #: The last one.
    last: Number
    low: Number
    high: Number
    not_finite: int  #: How many values are NaN or infinite.


@dataclass(frozen=True)
class SeriesAnswer:
    """A series over steps, thinned: each point stands for equally many steps, with their extremes."""

    run: str
    name: str
    mode: str
    first_step: int | None
    last_step: int | None
    values: int  #: How many there are.
    points: list[PointAnswer]


@dataclass(frozen=True)
class NamesAnswer:
    """Names of series or tensors."""

    run: str
    matching: int
    scalars: list[str]
    tensors: list[str]


@dataclass(frozen=True)
class DifferenceAnswer:
    """A setting or number that differs."""

    name: str
    run: str
    other: str


@dataclass(frozen=True)
class ComparisonAnswer:
    """Two runs beside each other."""

    run: str
    other: str
    headlines: list[str]  #: Of the run and of the other.
    settings: list[DifferenceAnswer]
    last_values: list[DifferenceAnswer]
    #: The first common training step at which a number differs by more than one percent, and that number.
    first_different_step: int | None
    first_different: str


@dataclass(frozen=True)
class RuleAnswer:
    """A rule in a list."""

    rule: str
    summary: str


@dataclass(frozen=True)
class RulesAnswer:
    """Built-in rules."""

    rules: list[RuleAnswer]


@dataclass(frozen=True)
class RuleDocumentAnswer:
    """The documentation of a rule."""

    rule: str
    summary: str
    looks_at: str
    fires_when: str
    usual_causes: str
    what_to_try: str
    parameters: list[str]  #: "threshold: a number, default 0.5, >= 0: share of dead units".


@dataclass(frozen=True)
class FiringAnswer:
    """A rule on one stored run."""

    run: str
    name: str
    status: str
    first_step: int | None  #: None if it did not fire.
    last_step: int | None
    count: int  #: Steps at which findings were seen.
    severity: str  #: The worst, "" if it did not fire.


@dataclass(frozen=True)
class BacktestAnswer:
    """A rule on stored runs."""

    rule: str
    parameters: list[str]
    runs: list[FiringAnswer]


@dataclass(frozen=True)
class NewsAnswer:
    """What has happened while waiting."""

    run: str
    state: str
    train_steps: int
    findings: list[FindingAnswer]  #: New ones.
    ended: bool  #: Whether the run has ended and its rules are evaluated: nothing more comes.


@dataclass(frozen=True)
class ActionAnswer:
    """What a running job was asked for."""

    run: str
    asked: str  #: A sentence with the steps.
