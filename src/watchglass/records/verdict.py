"""What all findings of a run come to: diagnoses with ranked causes, in one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from watchglass.records.failure import BypassedUpdates, Failure
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
        evidence: Sentences that speak for it, earliest first, each with its step and rule.
        against: Sentences that speak against it, alike.
        what_to_try: What to try if this is the cause, most promising first.
    """

    cause: Cause
    score: float
    step: int
    evidence: tuple[str, ...]
    against: tuple[str, ...] = ()
    what_to_try: tuple[str, ...] = ()


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
        workers: Workers on which it was seen.
        models: Numbers of the models that it is about.
    """

    causes: tuple[RankedCause, ...]
    findings: tuple[str, ...]
    severity: Severity
    step: int
    subject: str
    headline: str
    what_to_try: tuple[str, ...]
    workers: tuple[str, ...] = ()
    models: tuple[int, ...] = ()


@dataclass(frozen=True)
class SymptomReading:
    """A symptom of a finding, and what it says of causes.

    Attributes:
        symptom: Its identifier, ``"gradient_growth"``.
        means: One sentence; "" where the knowledge does not have it.
        links: Causes with weights, what speaks most for one first: above 0 speaks for a cause, below 0 against it.
    """

    symptom: str
    means: str
    links: tuple[tuple[Cause, float], ...]


@dataclass(frozen=True)
class ExplainedFinding:
    """All that is known of one finding.

    Attributes:
        finding: The finding.
        looks_at: What its rule looks at, "" where the rule is not at hand.
        fires_when: The condition of the rule.
        source: Where rule and thresholds come from.
        diagnosis: Position in the verdict's diagnoses of the one that it belongs to, None for none.
        symptoms: What it says of causes, by symptom.
        what_to_try: Sentences, most promising first.
    """

    finding: Finding
    looks_at: str
    fires_when: str
    source: str
    diagnosis: int | None
    symptoms: tuple[SymptomReading, ...]
    what_to_try: tuple[str, ...]


@dataclass(frozen=True)
class ModelSummary:
    """What one model of a run has come to.

    Attributes:
        model: Its number, in the order in which models were first trained or evaluated.
        name: What its tensors and series are called after: ``"model"``, ``"model_2"``.
        type: Class name, "" where it is not known.
        train_steps: TRAIN steps that trained it.
        training_loss: The last one; None where there is none.
        validation_loss: Mean loss of its last evaluation.
        best_validation_loss: The smallest mean loss of its evaluations.
        accuracy: Mean accuracy of its last evaluation.
        findings: How many findings are about it.
        worst: The worst severity among them, None for none.
        validation_of: Loss function that the validation loss is of, where the training loss holds more or is on another
            scale; "" where they are alike.
        worker: Worker that trained it, of a run whose workers train each by itself and number models each by itself;
            "" where one worker, or all of them together, trained everything.
    """

    model: int
    name: str
    type: str = ""
    train_steps: int = 0
    training_loss: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    accuracy: float | None = None
    findings: int = 0
    worst: Severity | None = None
    validation_of: str = ""
    worker: str = ""

    @property
    def validation_name(self) -> str:
        """What the validation loss is called beside the training loss."""
        return f"validation loss ({self.validation_of})" if self.validation_of else "validation loss"


def judged(models: Iterable[ModelSummary], findings: Iterable[Finding]) -> tuple[ModelSummary, ...]:
    """Models with what was found about each."""
    models = tuple(models)
    # Findings of workers that train together are about the models of the first of these.
    first = next((each.worker for each in models), "")
    workers = {each.worker for each in models}
    severities: dict[tuple[str, int], list[Severity]] = {}
    for finding in findings:
        worker = finding.worker if finding.worker in workers else first
        severities.setdefault((worker, finding.model), []).append(finding.severity)
    own = [(each, severities.get((each.worker, each.model), [])) for each in models]
    return tuple(
        replace(each, findings=len(found), worst=max(found, key=lambda severity: severity.rank, default=None))
        for each, found in own
    )


@dataclass(frozen=True)
class Verdict:
    """The diagnoses of a run in one statement.

    Attributes:
        run: Path of the run as it was given.
        status: ``"no issues found"``, ``"issues found"``, ``"stopped"``, ``"failed"``, ``"incomplete"``, ``"no data"``,
            ``"not judged"`` (nothing found, but little could be judged), ``"damaged"`` (nothing found, but records are
            missing) or ``"unreadable"``.
        diagnoses: Worst and earliest first.
        findings: All findings, in order of severity, then step.
        statuses: One for each rule.
        metrics: Last value of each metric worth a line, ``{"validation accuracy": 0.98}``.
        train_steps: TRAIN steps seen; of workers that train each by itself, all of theirs.
        planned_train_steps: TRAIN steps the run would have had, None where unknown.
        seconds: Length of the training as recorded.
        steps_saved: TRAIN steps not run because of the stop; None where unknown or not stopped.
        seconds_saved: Estimated seconds saved because of the stop; None where unknown.
        price_per_hour: Price of an hour of the whole training, in any currency; None where nobody told.
        cost_saved: Estimated price of the time saved; None where unknown.
        capture: What the capture cost and dropped, as recorded, for the last line.
        problems: What of the run cannot be read, one line each.
        records_missing: Whether one of the problems means that something was recorded and is not there any longer.
        models: What each model came to, by number, where the run has several; else empty, and ``metrics`` say it.
        script: The training's script as it was given on its command line, "" where there is none.
        failure: Why the run failed; None where it did not.
        ended_early: What ended worker processes of a script that itself ended well.
        bypassed: Updates that were taken past PyTorch's hooks, by worker.
        unjudged: Why nothing found would say little about the run, as a sentence without full stop; "" where enough
            was judged.
        attempt: Number of the newest attempt; what was found in an earlier one is marked as that.
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
    steps_saved: int | None = None
    seconds_saved: float | None = None
    price_per_hour: float | None = None
    cost_saved: float | None = None
    capture: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    records_missing: bool = False
    script: str = ""
    models: tuple[ModelSummary, ...] = ()
    failure: Failure | None = None
    ended_early: tuple[Failure, ...] = ()
    bypassed: tuple[BypassedUpdates, ...] = ()
    unjudged: str = ""
    attempt: int = 0
