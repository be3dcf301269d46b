"""Whether an evaluator has evaluated all of a run."""

from __future__ import annotations

import json

from watchglass.errors import MissingFileError
from watchglass.records import Status
from watchglass.run.run_records import RunRecords
from watchglass.store import Store, layout, read_small


def judged_attempt(store: Store) -> int | None:
    """The newest attempt of a run that has ended and was evaluated, None where there is none; one request.

    Raises:
        StoreError: The store refused.
    """
    try:
        value = json.loads(read_small(store, layout.JUDGED))
    except (MissingFileError, ValueError, RecursionError):  # a DamagedDataError is a ValueError
        return None
    attempt = value.get("attempt") if isinstance(value, dict) else None
    return attempt if type(attempt) is int and attempt >= 0 else None


def is_judged(run: RunRecords) -> bool:
    """Whether an evaluator has evaluated all of a run, its newest attempt included, and written final statuses."""
    statuses = run.journal.statuses
    # An evaluator that continues, or was killed, leaves a rule in progress.
    if not statuses or any(status.status is Status.IN_PROGRESS for status in statuses):
        return False
    if run.attempt == 0:
        return True
    judged = judged_attempt(run.store)
    return judged is not None and judged >= run.attempt
