"""Stops of a run, committed as an evaluator commits them."""

from __future__ import annotations

import json
from pathlib import Path

from waiting import until
from watchglass.capture import Hook
from watchglass.store import LocalStore, layout, read_claims


def commit_stop(run: Path, at_step: int, hook: Hook) -> None:
    """Commit a stop of the first attempt, and wait until its hook has read it."""
    store = LocalStore(run)
    until(lambda: (run / layout.MANIFEST).exists() and bool(read_claims(store, 0)))
    store.write(layout.control_request("stop", 0), b"{}")
    reason = {"at_step": at_step, "reason": "requested by a test"}
    store.write(layout.control_commit("stop", 0), json.dumps(reason).encode())
    until(lambda: hook.port.changes.stopping)
