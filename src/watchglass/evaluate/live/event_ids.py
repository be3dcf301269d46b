"""Ids of events: the same for the same event, whichever evaluator reports it."""

from __future__ import annotations

import hashlib
import json
import re

from watchglass.records import Event

_ID = re.compile(r"[0-9a-f]{16}\Z")
_KINDS = ("finding", "status", "summary")


def event_id(run_id: str, kind: str, *parts: object) -> str:
    """Identifier of an event, from what distinguishes it from all others of its kind.

    That is of a finding its identifier. Of a change of status attempt, rule, both statuses and the reason: a rule may
    starve twice, for different reasons. Of a summary the action, the last event that it left out, and how many it did.
    """
    return hashlib.sha256(json.dumps((run_id, kind, *parts)).encode()).hexdigest()[:16]


def is_event(event: Event) -> bool:
    """Whether an event that was read is such as an evaluator makes: its identifier becomes part of a path."""
    return (
        event.kind in _KINDS
        and (event.kind == "finding") == (event.finding is not None)
        and (event.kind == "status") == (event.status is not None)
        and _ID.match(event.id) is not None
    )
