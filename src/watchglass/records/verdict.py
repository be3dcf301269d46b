"""The conclusion from all findings of a run: diagnoses with ranked causes, in one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from watchglass.lazy_imports import named
from watchglass.records.facts.calls import BypassedUpdates
from watchglass.records.facts.process import SavedCheckpoint
from watchglass.records.failure import Failure
from watchglass.records.findings import Finding, RuleStatus, Severity
from watchglass.records.plurals import in_percent


@dataclass(frozen=True)
class Cause:
    """A disease: a possible fault of a training run, as data that users can read and extend.

    Attributes:
        id: Short identifier, ``"learning_rate_too_high"``.
        title: Half a sentence for headlines, ``"the learning rate is too high"``.
        explanation: Two or three sentences: how it leads to the symptoms.
        what_to_try: Sentences, most promising first.
        source: Source of the knowledge.
    """

    id: str
    title: str
    explanation: str
    what_to_try: tuple[str, ...]
    source: str = ""


@dataclass(frozen=True)
class RankedCause:
    """A cause of a diagnosis, with its evidence.

    Attributes:
        cause: The cause.
        score: How likely it is, from 0 to 1.
        step: Mode step from which on the findings that support it show it, also where they were first seen later.
        evidence: Sentences that support it, earliest first, each with its step and rule.
        against: Sentences that contradict it, in the same form.
        what_to_try: Advice if this is the cause, most promising first.
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
        step: Mode step from which on its findings show the fault, also where they were first seen later.
        subject: Tensor or module that was affected first, "" if unknown.
        headline: One sentence: the fault, its place, the step from which it was seen.
        what_to_try: Concrete sentences, most promising first.
        workers: Workers on which it was seen.
        models: Numbers of the models that it concerns.
        checkpoint: The last weights that the script saved before a fault of training began; None if it saved none, and
            for what is about time, memory or the machine.
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
    checkpoint: SavedCheckpoint | None = None


@dataclass(frozen=True)
class CauseCourse:
    """How likely a cause was at which step."""

    title: str  #: Title of the cause.
    steps: tuple[int, ...]  #: Training steps from which on the scores hold, ascending.
    scores: tuple[float, ...]  #: From 0 to 1 each; 0 while it was not among the likely causes.


@dataclass(frozen=True)
class SymptomReading:
    """A symptom of a finding, and the causes that it supports or contradicts."""

    symptom: str  #: Its identifier, ``"gradient_growth"``.
    means: str  #: One sentence; "" if the knowledge lacks the symptom.
    #: Causes with weights, highest first: a weight above 0 supports the cause, one below 0 contradicts it.
    links: tuple[tuple[Cause, float], ...]


@dataclass(frozen=True)
class ExplainedFinding:
    """All that is known about one finding."""

    finding: Finding  #: The finding.
    looks_at: str  #: The data that its rule looks at, "" if the rule is not available.
    fires_when: str  #: The condition of the rule.
    source: str  #: Sources of the rule and of its thresholds.
    diagnosis: int | None  #: Index of its diagnosis in the verdict, None for none.
    symptoms: tuple[SymptomReading, ...]  #: Its symptoms with their causes.
    what_to_try: tuple[str, ...]  #: Sentences, most promising first.


#: Steps at which the tensors of a model must have been examined, for what rules about tensors did not find in it to say
#: something; of a model with fewer training steps all of them.
FEWEST_EXAMINED = 8


@dataclass(frozen=True)
class ExaminedSteps:
    """The TRAIN steps at which tensors were examined; losses and learning rates are of every step."""

    steps: int  #: Their number, summed over workers that train separately.
    first: int = 0  #: The first of them.
    end: int = 0  #: End (exclusive) of the row without gaps that it begins.


@dataclass(frozen=True)
class ModelSummary:
    """The results of one model of a run.

    Attributes:
        model: Its number, in the order in which models were first trained or evaluated.
        name: Prefix of its tensors and series: ``"model"``, ``"model_2"``.
        type: Class name, "" if unknown.
        train_steps: TRAIN steps that trained it.
        training_loss: The last one; None for none.
        validation_loss: Mean loss of its last evaluation.
        best_validation_loss: The smallest mean loss of its evaluations.
        accuracy: Mean accuracy of its last evaluation.
        findings: How many findings concern it.
        worst: The worst severity among them, None for none.
        validation_of: Loss function of the validation loss, if the training loss has more terms or another scale; "" if
            they are alike.
        variable: Name by which the script has it, ``"D"`` or ``"agent.critic"``; "" if unknown.
        worker: Worker that trained it, if the workers of the run train separately and number models separately; "" if
            one worker, or all together, trained everything.
        examined_steps: Those of its TRAIN steps at which tensors were examined; None if unknown.
        first_step: Number of its first TRAIN step in the numbering of its worker; None if unknown.
        accuracy_share: Share of the steps of its last evaluation whose accuracy was recorded, 0 to 1.
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
    variable: str = ""
    examined_steps: int | None = None
    first_step: int | None = None
    accuracy_share: float = 1.0

    @property
    def hardly_examined(self) -> bool:
        """Whether its tensors were examined at too few steps for the absence of findings to say something."""
        return self.examined_steps is not None and self.examined_steps < min(FEWEST_EXAMINED, self.train_steps)

    @property
    def validation_name(self) -> str:
        """Name of the validation loss next to the training loss."""
        return f"validation loss ({self.validation_of})" if self.validation_of else "validation loss"

    @property
    def accuracy_name(self) -> str:
        """Name of the accuracy, with the share of the evaluation that it is about unless that is all of it."""
        whole = self.accuracy_share >= 1
        return "validation accuracy" if whole else f"validation accuracy ({in_percent(self.accuracy_share)} of batches)"


def judged(models: Iterable[ModelSummary], findings: Iterable[Finding]) -> tuple[ModelSummary, ...]:
    """Models with the number and the worst severity of their findings."""
    models = tuple(models)
    # Findings of workers that train together concern the models of the first of these workers.
    first = next((each.worker for each in models), "")
    workers = {each.worker for each in models}
    severities: dict[tuple[str, int | None], list[Severity]] = {}
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
        status: ``"no issues found"``, ``"issues found"``, ``"stopped"``, ``"failed"``, ``"interrupted"`` (by Ctrl-C),
            ``"incomplete"``, ``"no data"``, ``"not judged"`` (no findings, but little could be judged), ``"damaged"``
            (no findings, but records are missing) or ``"unreadable"``.
        diagnoses: Worst first, see :func:`watchglass.diagnose.diagnose`.
        findings: All findings, worst first, in the same order.
        statuses: One for each rule.
        metrics: Last value of each metric worth a line, ``{"validation accuracy": 0.98}``.
        train_steps: TRAIN steps seen, summed over workers that train separately.
        examined: The TRAIN steps at which tensors were examined; None if unknown.
        planned_train_steps: TRAIN steps that the run would have had, None if unknown.
        seconds: Duration of the run as recorded.
        stop_reason: Why a person or a program stopped it; "" for a stop by a finding, or none.
        steps_saved: TRAIN steps not run because of the stop; None if unknown or not stopped.
        seconds_saved: Estimated seconds saved because of the stop; None if unknown.
        price_per_hour: Price of an hour of the run, in any currency; None if the user gave none.
        cost_saved: Estimated price of the time saved; None if unknown.
        capture: Cost of the capture, its dropped records, and what else limits a clean verdict, for the last lines.
        problems: Parts of the run that cannot be read, one line each.
        records_missing: Whether one of the problems means that records were written and are missing now.
        models: Results of each model, by number, if the run has several; else empty, see ``metrics``.
        script: The training script as given on the command line, "" for none.
        failure: Why the run failed; None if it did not.
        ended_early: Why worker processes ended early although the script succeeded.
        bypassed: Updates that bypassed PyTorch's hooks, by worker.
        unjudged: Why a run without findings is not known to be healthy, as a sentence without full stop; "" if enough
            was judged.
        attempt: Number of the newest attempt; findings of earlier ones are marked as such.
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
    stop_reason: str = ""
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
    examined: ExaminedSteps | None = None

    def __str__(self) -> str:
        """The text of ``watchglass check``."""
        return str(named("watchglass.view:verdict_text")(self))

    def _repr_html_(self) -> str:
        """The same with all causes, their evidence and the findings, for a notebook."""
        return str(named("watchglass.view:verdict_html")(self))
