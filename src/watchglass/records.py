"""What the rooms exchange: plain dataclasses and field tables, with no behaviour beyond conversion.

Rooms meet here and never at each other's classes. Everything is immutable and can be written as JSON or as
fixed-size rows; nothing here imports a framework, Arrow or any other room but :mod:`watchglass.errors`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum, IntEnum
from typing import Any

#: Version of the run format that this release writes: (major, minor). See docs/run-format.md.
FORMAT_VERSION = (1, 2)


class Mode(IntEnum):
    """What the training was doing at a step. ``GLOBAL`` is the view over all, never stored."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4


class Role(str, Enum):
    """What a tensor is to the training; decides which rules look at it."""

    WEIGHT = "weight"
    BIAS = "bias"
    GRADIENT = "gradient"
    UPDATE = "update"
    INPUT = "input"
    OUTPUT = "output"
    OPTIMIZER_STATE = "optimizer_state"
    LOSS = "loss"
    METRIC = "metric"
    LABEL = "label"
    PREDICTION = "prediction"
    CUSTOM = "custom"


class Severity(str, Enum):
    """How bad a finding is. ``error``: this training is broken. ``warning``: look now. ``info``: worth knowing."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return ("info", "warning", "error").index(self.value)


class Status(str, Enum):
    """Where a rule stands. The first six words are those of SageMaker Debugger."""

    IN_PROGRESS = "InProgress"
    NO_ISSUES_FOUND = "NoIssuesFound"
    ISSUES_FOUND = "IssuesFound"
    ERROR = "Error"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    NOT_APPLICABLE = "NotApplicable"
    STARVED = "Starved"


@dataclass(frozen=True)
class TensorInfo:
    """One catalog row: what a tensor id means. A later row with the same id replaces the earlier one (an alias).

    Attributes:
        tensor_id: Number that rows refer to; unique within one worker of one attempt.
        name: ``fc1.weight``, ``gradient/fc1.weight``, ``update/fc1.weight``, ``fc1.input.0``, ``fc1.output``, ``loss``.
        role: What the tensor is.
        module: Dotted path of the module that owns it, wrappers stripped; "" for the root or for none.
        module_type: Class name of that module, for instance ``"ReLU"``; "" for none.
        layer_index: Position of the module in its model, 0 first; -1 for none. Orders "first" and "last" layers.
        shape: Shape when first seen; ``()`` for a scalar.
        dtype: NumPy-style name of the dtype as captured, ``"float32"``, ``"bfloat16"``.
        unit_axis: Axis that counts units (neurons, channels), or None.
        trainable: Whether an optimizer may change it; None where that has no meaning.
        placement: ``local``, ``replicated``, ``shard`` or ``partial``: how ranks' rows relate to the whole tensor.
        collections: Names of user collections it was saved under.
    """

    tensor_id: int
    name: str
    role: Role
    module: str = ""
    module_type: str = ""
    layer_index: int = -1
    shape: tuple[int, ...] = ()
    dtype: str = ""
    unit_axis: int | None = None
    trainable: bool | None = None
    placement: str = "local"
    collections: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """This row as plain JSON types."""
        return {**asdict(self), "role": self.role.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorInfo:
        """The row that :meth:`to_json` gave; unknown keys of newer minor versions are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["role"] = Role(known["role"])
        known["shape"] = tuple(known.get("shape", ()))
        known["collections"] = tuple(known.get("collections", ()))
        return cls(**known)


#: Columns of the statistics matrix (float64), in order. Counts are exact up to 2**53. ``min`` to ``l2`` are over the
#: finite values only; ``min`` and ``max`` are NaN when there is none. ``m2`` is the sum of squared deviations from the
#: mean, ``l2`` the Euclidean norm.
STATISTIC_FIELDS = (
    "count", "nan", "posinf", "neginf", "zero", "min", "max", "sum", "abs_sum", "m2", "l2",
)  # fmt: skip

#: Those of :data:`STATISTIC_FIELDS` that are counts (stored as unsigned 64-bit integers).
COUNT_FIELDS = STATISTIC_FIELDS[:5]

#: Fixed-size little-endian rows, as NumPy structured dtype descriptions. Rows refer to a worker's ``global_step``;
#: the step's row in STEP_END_FIELDS gives its mode and mode step.
SCALAR_FIELDS = (
    ("global_step", "<u8"), ("tensor_id", "<u4"), ("weight", "<f4"), ("value", "<f8"),
)  # fmt: skip
STEP_END_FIELDS = (
    ("global_step", "<u8"), ("mode_step", "<u8"), ("train_step", "<i8"),
    ("start_ns", "<u8"), ("end_ns", "<u8"), ("captures", "<u4"), ("mode", "<u4"),
)  # fmt: skip


REDUCTION_FIELDS = (
    ("global_step", "<u8"), ("tensor_id", "<u4"), ("reduction", "<u4"), ("value", "<f8"),
)  # fmt: skip

#: A histogram counts finite, nonzero elements by sign, binary exponent and so many leading mantissa bits.
HISTOGRAM_MANTISSA_BITS = 1


class Reduction(IntEnum):
    """Exact numbers that the columns of statistics do not give, computed only where a collection asks for them."""

    MEDIAN = 1
    PROD = 2
    ABS_MEDIAN = 3
    ABS_MIN = 4


class Origin(IntEnum):
    """Why a statistics row was written. Rows written because of a finding never feed a rule."""

    PLANNED = 0
    FINDING = 1


class UnitKind(IntEnum):
    """What a bitmap over units says of each unit, over every element of the step."""

    INACTIVE = 1


@dataclass(frozen=True)
class StepEnd:
    """A worker finished a step and wrote all its records.

    Attributes:
        global_step: Counts a worker's steps over all modes from 0, in the order in which they began.
        mode: TRAIN, EVAL or PREDICT.
        mode_step: Counts the steps of that mode from 0.
        train_step: For TRAIN the mode step itself; else the last TRAIN step begun before this one, -1 for none.
            Aligns workers whose evaluation differs (rank 0 alone validates, uneven shards).
        start_ns: Worker's monotonic clock when the step began.
        end_ns: The same when it ended.
        captures: Number of statistics rows of the step.
    """

    global_step: int
    mode: Mode
    mode_step: int
    train_step: int
    start_ns: int
    end_ns: int
    captures: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key that is the same for every worker: a TRAIN step, then the evaluation that follows it."""
        return (self.train_step, 0 if self.mode is Mode.TRAIN else int(self.mode), self.mode_step)


@dataclass(frozen=True)
class Fact:
    """A non-tensor observation of a step or a run.

    Attributes:
        kind: What was observed, ``"step_skipped"``, ``"first_bad_module"``; see docs/run-format.md for all.
        global_step: Worker's step it belongs to, -1 for the run.
        source: What observed it, for instance ``"GradScaler.step"``.
        data: Plain JSON values.
    """

    kind: str
    global_step: int
    source: str
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """This fact as plain JSON types."""
        return {"kind": self.kind, "global_step": self.global_step, "source": self.source, "data": self.data}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fact:
        """The fact that :meth:`to_json` gave."""
        return cls(data["kind"], data["global_step"], data.get("source", ""), data.get("data", {}))


@dataclass(frozen=True)
class Finding:
    """One thing a rule found, with evidence. Repeats of one thing fold into one finding.

    Attributes:
        id: 12 hexadecimal digits: hash of run, rule and parameters, subject, worker and first step.
        rule: Name of the rule, ``"DeadRelu"``.
        severity: How bad.
        step: Mode step at which it was first seen (steps of ``mode``).
        last_step: Mode step at which it was last seen.
        count: Number of steps at which it was seen.
        mode: Mode of those steps.
        worker: Worker it was seen on, ``"worker_0"``.
        tensors: Names of the tensors or modules it is about, the first one first; may be empty.
        value: The measured value; None where there is no number, NaN and infinities where that is the measurement.
        limit: The limit it crossed, or None.
        message: One sentence for people.
        causes: Identifiers of likely causes, most likely first (see watchglass.rules.causes).
        what_to_try: Sentences, most promising first. ``try`` in JSON.
        attempt: Attempt of the run.
        global_step: The worker's global step at ``step``.
        evidence: Further plain JSON values, for reports and diagnoses.
    """

    id: str
    rule: str
    severity: Severity
    step: int
    last_step: int
    count: int
    mode: Mode
    worker: str
    tensors: tuple[str, ...]
    value: float | None
    limit: float | None
    message: str
    causes: tuple[str, ...] = ()
    what_to_try: tuple[str, ...] = ()
    attempt: int = 0
    global_step: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; a number that JSON does not have becomes the string "NaN", "Infinity" or "-Infinity"."""
        return {
            "id": self.id, "rule": self.rule, "severity": self.severity.value,
            "step": self.step, "last_step": self.last_step, "count": self.count,
            "mode": self.mode.name, "worker": self.worker, "tensors": list(self.tensors),
            "value": number_to_json(self.value), "limit": number_to_json(self.limit),
            "message": self.message, "causes": list(self.causes), "try": list(self.what_to_try),
            "attempt": self.attempt, "global_step": self.global_step, "evidence": self.evidence,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        """The finding that :meth:`to_json` gave."""
        return cls(
            id=data["id"], rule=data["rule"], severity=Severity(data["severity"]),
            step=data["step"], last_step=data["last_step"], count=data["count"],
            mode=Mode[data["mode"]], worker=data["worker"], tensors=tuple(data["tensors"]),
            value=number_from_json(data["value"]), limit=number_from_json(data["limit"]),
            message=data["message"], causes=tuple(data["causes"]), what_to_try=tuple(data["try"]),
            attempt=data.get("attempt", 0), global_step=data.get("global_step", 0),
            evidence=data.get("evidence", {}),
        )  # fmt: skip


@dataclass(frozen=True)
class RuleStatus:
    """Where one rule stands on a run, with the reason where the status needs one."""

    rule: str
    status: Status
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """This status as plain JSON types."""
        return {"rule": self.rule, "status": self.status.value, "reason": self.reason}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RuleStatus:
        """The status that :meth:`to_json` gave."""
        return cls(data["rule"], Status(data["status"]), data.get("reason", ""))


@dataclass(frozen=True)
class Observation:
    """Something that depended on arrival or time, written down so that a replay sees it at the same place.

    Attributes:
        kind: ``"worker_lost"``, ``"worker_returned"``, ``"rule_error"``, ``"stop_requested"``, ``"stop_committed"``,
            ``"worker_stopped"``.
        attempt: Attempt it concerns.
        after: Order key of the last step evaluated before it, as :attr:`StepEnd.order`; None before any.
        data: Plain JSON values.
    """

    kind: str
    attempt: int
    after: tuple[int, int, int] | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """This observation as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        """The observation that :meth:`to_json` gave."""
        after = data.get("after")
        return cls(data["kind"], data["attempt"], tuple(after) if after else None, data.get("data", {}))


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
class Diagnosis:
    """Findings of one disease with ranked causes.

    Attributes:
        causes: Up to three, most likely first, each with its score in 0..1.
        findings: Ids of the findings it explains, earliest first: the chain of symptoms.
        severity: The worst of them.
        step: Step of the earliest finding.
        subject: Tensor or module that was hit first, "" where none can be named.
        headline: One sentence: what is wrong, where, since when.
        what_to_try: Concrete sentences, most promising first.
    """

    causes: tuple[tuple[Cause, float], ...]
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


def number_to_json(value: float | None) -> float | str | None:
    """``value`` as JSON can hold it: NaN and infinities become strings."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_from_json(value: float | str | None) -> float | None:
    """The number that :func:`number_to_json` wrote."""
    return None if value is None else float(value)
