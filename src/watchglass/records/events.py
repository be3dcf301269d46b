"""Events for actions: a new finding, a new status of a rule, or the number of events that were dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchglass.records.findings import Finding, RuleStatus, Severity, Status
from watchglass.records.plurals import count


@dataclass(frozen=True)
class Event:
    """Something that an action may subscribe to.

    Attributes:
        kind: ``"finding"``: a rule has found something new; ``"status"``: a rule's status has changed; ``"summary"``:
            events were left out, since there were too many.
        id: The same for the same event whoever tells it: an evaluator that starts again comes by the same ids.
        run: Location of the run.
        run_id: Identifier of the run.
        attempt: Attempt of the run.
        rule: Name of the rule; "" for ``"summary"``.
        time_ns: Wall time at which the evaluator came by it, nanoseconds since 1970.
        finding: The finding, for ``"finding"``.
        status: Where the rule stands now, for ``"status"``.
        previous: Where it stood before, for ``"status"``; None for nowhere.
        left_out: How many events were left out, for ``"summary"``.
    """

    kind: str
    id: str
    run: str
    run_id: str
    attempt: int
    rule: str
    time_ns: int
    finding: Finding | None = None
    status: RuleStatus | None = None
    previous: Status | None = None
    left_out: int = 0

    @property
    def message(self) -> str:
        """One sentence for people, whatever the kind."""
        if self.finding is not None:
            return self.finding.message
        if self.status is not None:
            before = f" (before: {self.previous.value})" if self.previous is not None else ""
            return f"{self.rule} is {self.status.status.value}{before}"
        return f"{count(self.left_out, 'more event')} not reported one by one: too many came within an hour"

    @property
    def severity(self) -> Severity | None:
        """That of the finding; None for a change of status."""
        return self.finding.severity if self.finding is not None else None

    def to_json(self) -> dict[str, Any]:
        """This event as plain JSON types."""
        return {
            "kind": self.kind, "id": self.id, "run": self.run, "run_id": self.run_id, "attempt": self.attempt,
            "rule": self.rule, "time_ns": self.time_ns,
            "finding": self.finding.to_json() if self.finding is not None else None,
            "status": self.status.to_json() if self.status is not None else None,
            "previous": self.previous.value if self.previous is not None else None,
            "left_out": self.left_out,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Event:
        """The event that :meth:`to_json` gave."""
        finding, status, previous = data["finding"], data["status"], data["previous"]
        return cls(
            data["kind"], data["id"], data["run"], data["run_id"], data["attempt"], data["rule"], data["time_ns"],
            Finding.from_json(finding) if finding else None,
            RuleStatus.from_json(status) if status else None,
            Status(previous) if previous else None,
            data["left_out"],
        )  # fmt: skip
