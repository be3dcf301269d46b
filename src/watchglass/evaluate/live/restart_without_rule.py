"""Restarting this process without a rule that is stuck in code which nothing interrupts.

A thread that is stuck in code that is not Python cannot be ended. But the process can execute its command line again
and stays the same process: same id, same start time, same standard streams. So its starter notices nothing, and the
process keeps its lease of the journal. Its configuration, and the rules to leave out, are handed over in memory, in an
open descriptor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from watchglass.actions import in_memory
from watchglass.evaluate.live import deliveries
from watchglass.evaluate.live.journal import is_ours
from watchglass.records import Observation
from watchglass.store import Claim, Store, lease_holder

#: Environment variable with the number of the descriptor, for the moment between two starts.
_VARIABLE = "WATCHGLASS_RESTARTED"


@dataclass
class _Process:
    """What this process knows of its starts."""

    allowed: bool = False  #: Whether it may restart.
    configuration: str = ""  #: The text that it got when it began.
    #: The rules that earlier starts of it left out, by identifier of the run.
    left_out: list[tuple[str, Observation]] = field(default_factory=list)


_process = _Process()


def handed_over() -> str | None:
    """The configuration of an earlier start of this process; None in the first one. Leaves out the same rules."""
    number = os.environ.pop(_VARIABLE, "")
    if not number.isdigit():
        return None
    try:
        with os.fdopen(int(number), "rb") as file:
            data = json.loads(file.read())
        configuration = str(data["configuration"])
        _process.left_out = [(str(run_id), Observation.from_json(seen)) for run_id, seen in data["left_out"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return configuration


def allow(configuration: str = "") -> None:
    """From now on this process may restart: it does nothing but evaluate.

    Args:
        configuration: The text on its standard input, in addition to its command line.
    """
    _process.allowed, _process.configuration = True, configuration


@contextmanager
def may_restart() -> Iterator[None]:
    """While this lasts, this process may restart, by the command line with which it was started.

    It leaves out the rules that an earlier start of it left out.
    """
    handed_over()
    _process.allowed = True
    try:
        yield
    finally:
        _process.allowed, _process.left_out = False, []


def left_out(run_id: str) -> list[Observation]:
    """The rules that earlier starts of this process left out of the evaluation of a run, and where."""
    return [seen for run, seen in _process.left_out if run == run_id]


def start_without(run_id: str, seen: Observation) -> None:
    """Restarts this process without the rule, where that is allowed; else reports the reason. For any thread."""
    what = f"{seen.data.get('rule')} is stuck on {seen.data.get('worker')} in code that cannot be interrupted"
    then = "the evaluator starts again without it" if _process.allowed else "nothing continues until it returns"
    with suppress(OSError):
        os.write(2, f"watchglass: {what}; {then}\n".encode())
    if not _process.allowed:
        return
    deliveries.end_all()  # else they would go on unattended, and be made a second time
    rows = [(run, left.to_json()) for run, left in [*_process.left_out, (run_id, seen)]]
    held = in_memory(json.dumps({"configuration": _process.configuration, "left_out": rows}).encode())
    os.set_inheritable(held.fileno(), True)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: str(held.fileno())})


def own_lease(store: Store) -> Claim | None:
    """The lease of the journal that an earlier start of this process took, None where there is none."""
    if not _process.left_out:
        return None
    holder = lease_holder(store)
    return holder if is_ours(holder) else None
