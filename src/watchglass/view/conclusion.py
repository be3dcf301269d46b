"""The outcome of a verdict, for callers that only ask whether a run is healthy: findings, clean, or no answer."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records import Finding, Severity, Status, Verdict
from watchglass.view.failure import ended_how

#: Values of ``fail_on``.
FAIL_ON = ("warning", "error", "never")

#: Statuses of verdicts for which the absence of findings proves nothing, with the reason and the cure.
_NO_ANSWER = {
    "incomplete": "the run has not ended, or its end cannot be seen from this machine, and it has no findings so far; "
    "wait, or accept the recorded part with --allow-unfinished",
    "unreadable": "it cannot be read",
}
_MISSING = (
    "records are missing, so the absence of findings proves nothing; restore the damaged files, or accept the recorded "
    "part with --allow-unfinished"
)


@dataclass(frozen=True)
class Terms:
    """When a run counts as failed."""

    fail_on: str = "warning"  #: Lowest severity of a finding that counts: ``"warning"``, ``"error"``, or ``"never"``.
    allow_unfinished: bool = False  #: Whether a run that failed, has not ended or misses records may be clean.


def counted(verdict: Verdict, terms: Terms) -> tuple[Finding, ...]:
    """The findings that count."""
    return tuple(finding for finding in verdict.findings if enough(finding, terms))


def enough(finding: Finding, terms: Terms) -> bool:
    """Whether a finding is severe enough to count."""
    return terms.fail_on != "never" and finding.severity.rank >= Severity(terms.fail_on).rank


def failed_rules(verdict: Verdict) -> tuple[str, ...]:
    """One sentence for each rule that raised or took too long."""
    return tuple(
        f"rule {status.rule} failed: {status.reason}" for status in verdict.statuses if status.status is Status.ERROR
    )


def not_answered(verdict: Verdict, terms: Terms) -> str:
    """Why the absence of findings is not a clean answer, if the run is the reason; "" if it is one."""
    excused = terms.allow_unfinished
    if verdict.status in ("no data", "not judged"):
        return _with_problem(verdict.unjudged or "no training step was recorded", verdict)
    if verdict.status in ("failed", "interrupted") and not excused:
        how = ended_how(verdict.failure) if verdict.failure is not None else verdict.status
        verb = "was " if verdict.status == "interrupted" else ""
        return f"the run {verb}{how}; accept the recorded part with --allow-unfinished"
    if verdict.status in _NO_ANSWER and not (excused and verdict.status == "incomplete"):
        return _with_problem(_NO_ANSWER[verdict.status], verdict)
    if verdict.records_missing and not excused:
        return f"{_MISSING} ({_first(verdict)})"
    return verdict.unjudged if verdict.status in ("failed", "interrupted") else ""


def outcome(verdict: Verdict, terms: Terms) -> str:
    """``"findings"`` if some count, else ``"no answer"`` if something prevented one, else ``"clean"``."""
    if counted(verdict, terms):
        return "findings"
    return "no answer" if not_answered(verdict, terms) or failed_rules(verdict) else "clean"


def _with_problem(reason: str, verdict: Verdict) -> str:
    return f"{reason} ({_first(verdict)})" if verdict.problems else reason


def _first(verdict: Verdict) -> str:
    more = len(verdict.problems) - 1
    return verdict.problems[0] + (f", and {more} more" if more > 0 else "") if verdict.problems else ""
