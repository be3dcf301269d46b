"""By what the same event is known again, whoever tells it, and what is none."""

from __future__ import annotations

import hashlib
import json
import re

from watchglass.records import Event

_ID = re.compile(r"[0-9a-f]{16}\Z")
_KINDS = ("finding", "status", "summary")


def finding_event_id(run_id: str, finding_id: str) -> str:
    """Identifier of the event that tells of a finding."""
    return _digest(run_id, "finding", finding_id)


def status_event_id(run_id: str, attempt: int, rule: str, previous: str, status: str, reason: str) -> str:
    """Identifier of the event that tells of a change of status; a rule may starve twice, for different reasons."""
    return _digest(run_id, "status", attempt, rule, previous, status, reason)


def summary_event_id(run_id: str, action: str, last_id: str, left_out: int) -> str:
    """Identifier of the event that tells an action how many others it was not told of, up to the last of them."""
    return _digest(run_id, "summary", action, last_id, left_out)


def is_event(event: Event) -> bool:
    """Whether an event that was read is such as an evaluator makes: its identifier becomes part of a path."""
    texts = (event.id, event.kind, event.run, event.run_id, event.rule)
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(number) is int for number in (event.attempt, event.time_ns, event.left_out))
        and event.kind in _KINDS
        and (event.kind == "finding") == (event.finding is not None)
        and (event.kind == "status") == (event.status is not None)
        and _ID.match(event.id) is not None
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
