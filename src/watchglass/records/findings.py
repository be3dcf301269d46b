"""Records of an evaluator about a run: findings, statuses of rules, and its observations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from watchglass.records.json_records import record_as_json, record_from_json
from watchglass.records.training import Mode


class Severity(str, Enum):
    """How bad a finding is. ``error``: the run is broken. ``warning``: act now. ``info``: worth knowing."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return ("info", "warning", "error").index(self.value)


#: In the reason of a rule that is not applicable, before what makes it applicable. Verdicts print such reasons.
CURE = "; to evaluate the rule, "


class Status(str, Enum):
    """Status of a rule on a run. The first six words are those of SageMaker Debugger."""

    IN_PROGRESS = "InProgress"
    NO_ISSUES_FOUND = "NoIssuesFound"
    ISSUES_FOUND = "IssuesFound"
    ERROR = "Error"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    NOT_APPLICABLE = "NotApplicable"
    STARVED = "Starved"


@dataclass(frozen=True)
class Finding:
    """One thing a rule found, with evidence. Repeats of one thing fold into one finding.

    Attributes:
        id: 12 hexadecimal digits: hash of run, rule and parameters, subject, worker and first step.
        rule: Name of the rule, ``"DeadRelu"``.
        severity: How bad it is.
        step: Mode step at which it was first seen (steps of ``mode``).
        last_step: Mode step at which it was last seen.
        count: Number of steps at which it was seen.
        mode: Mode of those steps.
        worker: Worker it was seen on, ``"worker_0"``.
        tensors: Names of the tensors or modules that it concerns, the first affected one first; may be empty.
        value: The measured value; None without a number; may be NaN or infinite.
        limit: The limit it crossed, or None.
        message: One sentence for people.
        causes: Identifiers of likely causes, most likely first (see docs/rules-engine.md).
        what_to_try: Sentences, most promising first. ``try`` in JSON.
        attempt: Attempt of the run.
        global_step: The worker's global step at ``step``.
        evidence: Further plain JSON values, for reports and diagnoses.
        model: Number of the model that it concerns, 0 for the first or only one; None if it concerns no model but the
            process or the machine.
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
    model: int | None = 0

    @property
    def symptoms(self) -> tuple[str, ...]:
        """The symptoms that its evidence names, that of its message first."""
        named = self.evidence.get("symptoms")
        return tuple(map(str, named)) if isinstance(named, (list, tuple)) else ()

    @property
    def since(self) -> int:
        """Mode step from which on what it found was so, as its evidence states (``since_step``), else :attr:`step`."""
        stated = self.evidence.get("since_step")
        known = isinstance(stated, int) and not isinstance(stated, bool) and 0 <= stated <= self.step
        return int(stated) if known else self.step  # type: ignore[arg-type]

    @property
    def gain(self) -> float | None:
        """How many times as fast steps are at most without what it found, as its evidence states; None for nothing."""
        return self._stated("gain")

    @property
    def ends_in_s(self) -> float | None:
        """In how many seconds what it found ends the run, as its evidence states, at least 0: 0 where the run stands.

        None for what ends no run, or where that is not known. It counts from the step at which it was last seen.
        """
        stated = self._stated("ends_in_s")
        return stated if stated is not None and stated >= 0 else None

    def _stated(self, name: str) -> float | None:
        stated = self.evidence.get(name)
        if not isinstance(stated, (int, float)) or isinstance(stated, bool) or math.isnan(stated):
            return None
        return float(stated)

    def to_json(self) -> dict[str, Any]:
        """This finding as plain JSON types; numbers that JSON lacks become "NaN", "Infinity" or "-Infinity"."""
        spelled = {
            "mode": self.mode.name, "value": number_to_json(self.value), "limit": number_to_json(self.limit),
            "evidence": self.evidence,
        }  # fmt: skip
        fields = {**record_as_json(self), **spelled}
        return {"try" if name == "what_to_try" else name: value for name, value in fields.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Finding:
        """The finding that :meth:`to_json` gave."""
        spelled = {
            "mode": Mode[data["mode"]].value, "what_to_try": data["try"],
            **{name: number_from_json(data[name]) for name in ("value", "limit")},
        }  # fmt: skip
        return record_from_json(cls, {**data, **spelled})


@dataclass(frozen=True)
class RuleStatus:
    """Status of one rule on a run.

    Attributes:
        rule: Name of the rule.
        status: Its status.
        reason: Why, if the status needs a reason.
        parameters: Its parameters that differ from their defaults, as plain JSON types.
    """

    rule: str
    status: Status
    reason: str = ""
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)

    def to_json(self) -> dict[str, Any]:
        """This status as plain JSON types."""
        return record_as_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RuleStatus:
        """The status that :meth:`to_json` gave."""
        return record_from_json(cls, data)


@dataclass(frozen=True)
class Observation:
    """An event that depended on arrival or time, recorded so that a replay sees it at the same place."""

    kind: str  #: ``"worker_lost"``, ``"tick"`` and others; docs/run-format.md lists them.
    attempt: int  #: Attempt it concerns.
    after: tuple[int, int, int] | None = None  #: :attr:`StepEnd.order` of the step that it concerns; None for none.
    data: dict[str, Any] = field(default_factory=dict)  #: Plain JSON values.
    #: Workers whose moments it belongs to, if it is one of the moments that rules see: ``""`` for the ranks of a run,
    #: else the worker that trains separately.
    group: str = ""
    steps: int = 0  #: How many complete steps of the group the rules saw before it.

    def to_json(self) -> dict[str, Any]:
        """This observation as plain JSON types."""
        return record_as_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        """The observation that :meth:`to_json` gave."""
        return record_from_json(cls, data)


def number_to_json(value: float | None) -> float | str | None:
    """``value`` as JSON can hold it: NaN and infinities become strings."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def number_from_json(value: float | str | None) -> float | None:
    """The number that :func:`number_to_json` wrote."""
    return None if value is None else float(value)
