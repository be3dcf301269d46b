"""Events for actions: a new finding, a new status of a rule, or the number of events that were dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchglass.records.findings import Finding, RuleStatus, Severity, Status
from watchglass.records.json_records import record_as_json, record_from_json
from watchglass.records.plurals import count


@dataclass(frozen=True)
class Event:
    """An event that an action may subscribe to.

    Attributes:
        kind: ``"finding"``: a rule has a new finding; ``"status"``: a rule's status has changed; ``"summary"``: too
            many events occurred, so some were omitted.
        id: Identifier; an evaluator that restarts gives the same event the same id.
        run: Location of the run.
        run_id: Identifier of the run.
        attempt: Attempt of the run.
        rule: Name of the rule; "" for ``"summary"``.
        time_ns: Wall time at which the evaluator made it, nanoseconds since 1970.
        finding: The finding, for ``"finding"``.
        status: The new status of the rule, for ``"status"``.
        previous: Its status before, for ``"status"``; None for the first status.
        left_out: How many events were omitted, for ``"summary"``.
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
        """One sentence for people, for any kind."""
        if self.finding is not None:
            return self.finding.message
        if self.status is not None:
            before = f" (before: {self.previous.value})" if self.previous is not None else ""
            return f"{self.rule} is {self.status.status.value}{before}"
        return f"{count(self.left_out, 'more event')} not reported one by one: too many came within an hour"

    @property
    def severity(self) -> Severity | None:
        """Severity of the finding; None for other events."""
        return self.finding.severity if self.finding is not None else None

    def to_json(self) -> dict[str, Any]:
        """This event as plain JSON types."""
        return record_as_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """The event that :meth:`to_json` gave."""
        return record_from_json(cls, data)
