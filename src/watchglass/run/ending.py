"""The end of the newest attempt of a run: from reports of launchers and workers, and the silence of dead workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from watchglass.errors import EXIT_STOPPED
from watchglass.records import Failure, Sighting, without_reason
from watchglass.run.run_records import RunRecords
from watchglass.store import LaunchEnd, begun_ns, has_attempt, layout, read_launch_ends

#: As a shell calls it: ended by SIGTERM, which torchrun and schedulers send to ranks because another one failed.
_TERMINATED = 128 + 15


class Ending(NamedTuple):
    """The end of the newest attempt.

    Attributes:
        over: Whether all workers have ended: each has left, has ended with exit status 0, or is dead.
        failure: The reason for its failure; None where it has not failed, or has not ended.
        early: Failures of workers of a script that itself succeeded: it terminated them, or continued without them.
    """

    over: bool
    failure: Failure | None
    early: tuple[Failure, ...] = ()


def ending_of(run: RunRecords) -> Ending:
    """The end of the newest attempt, by what was read and by the processes of this machine now.

    Of several failures the earliest counts, as the reason for the others. A process that was killed, or disappeared,
    failed as well, unless its launcher reports that the script ended with 0.

    Raises:
        StoreError: The store refused.
    """
    attempt = _newest(run)
    launch, ends = _launch(run, attempt)
    failures = [
        replace(end.failure or without_reason(end.exit_status), exit_status=end.exit_status, wall_ns=_when(end))
        for end in ends.values()
        if end.exit_status not in (0, EXIT_STOPPED)
    ]
    for earlier in range(launch, attempt) if failures else ():
        for name in run.workers:
            tables = run.worker(name).attempts.get(earlier)
            failures += _failure_of(name, tables.lifecycle if tables is not None else [])
    early: list[Failure] = []
    waiting = False
    dead = _dead(run, attempt)
    for name in run.workers:
        tables = run.worker(name).attempts.get(attempt)
        events = tables.lifecycle if tables is not None else []
        end = _end_of(name, events, ends)
        if not events or (end is not None and end.exit_status == 0):
            continue
        found = early if any(end.exit_status == 0 for end in _reports_on(name, ends)) else failures
        if events[-1].get("event") in ("left", "harvested") and any(event.get("event") == "left" for event in events):
            found += _failure_of(name, events)
        elif name in dead:
            if end is None:  # else its launcher has reported its end
                found.append(Failure("lost", worker=name))
        else:
            waiting = True
    first = min(failures, key=_precedence, default=None)
    return Ending(not waiting and bool(run.workers or ends), first, tuple(early))


def sighting_of(run: RunRecords) -> Sighting | None:
    """What was seen of frameworks in the newest attempt, where no training step was recorded; None if unknown.

    Raises:
        StoreError: The store refused.
    """
    _, ends = _launch(run, _newest(run))
    return Sighting.of_all(end.sighting for end in ends.values() if end.sighting is not None)


def state_of(run: RunRecords) -> str:
    """How a run ended, in words.

    ``finished``, ``failed``, ``interrupted``, ``stopped``, or ``lost``: its processes are dead, for an unknown reason.
    Where workers left with different states, all of these: ``failed and finished``. Before its end ``not finished`` or
    ``no data``.
    """
    ending = ending_of(run)
    if run.finished:
        early = {failure.worker for failure in ending.early}
        lasts = {worker: run.worker(worker).lifecycle[-1] for worker in run.workers if worker not in early}
        ends = {str(last.get("status", "finished")) for last in lasts.values()} or {"finished"}
        if ending.failure is not None and "stopped" not in ends:
            how = "interrupted" if ending.failure.kind == "interrupt" else "failed"
            # A launcher also sees failures after the last step.
            ends = {how} if ends == {"finished"} else ends - {"failed"} | {how}
        return " and ".join(sorted(ends))
    if ending.failure is not None:
        return {"lost": "lost", "interrupt": "interrupted"}.get(ending.failure.kind, "failed")
    if ending.over:
        return "finished"
    return "not finished" if run.workers else "no data"


def may_go_on(state: str) -> bool:
    """Whether a run in a state of :func:`state_of` may still record something."""
    return state in ("not finished", "no data")


def _newest(run: RunRecords) -> int:
    if run.fixed_attempt is not None:
        return run.fixed_attempt
    attempt = max(run.attempts, default=0)
    while has_attempt(run.store, attempt + 1):  # one that failed before its first step has nothing else to read
        attempt += 1
    return attempt


def _launch(run: RunRecords, attempt: int) -> tuple[int, dict[int, LaunchEnd]]:
    """The attempt in which the launch of an attempt began, and the reports of its launchers since then.

    Processes of one launch that train by themselves, one after the other, may have an attempt each.
    """
    for earlier in range(attempt, -1, -1):
        ends = read_launch_ends(run.store, earlier)
        if ends or run.fixed_attempt is not None:
            begun = begun_ns(run.store, attempt) if earlier < attempt else 0
            later = {rank: end for rank, end in ends.items() if end.wall_ns >= begun}
            return (earlier if later else attempt), later
    return attempt, {}


def _failure_of(worker: str, events: list[dict[str, Any]]) -> list[Failure]:
    """The failure that a worker left with; empty where it did not fail."""
    left = next((event for event in reversed(events) if event.get("event") == "left"), None)
    if left is None or left.get("status") != "failed":
        return []
    reported = Failure.from_json(left.get("failure")) or Failure("exception")
    return [replace(reported, worker=worker, wall_ns=reported.wall_ns or _integer(left.get("wall_ns")))]


def _dead(run: RunRecords, attempt: int) -> set[str]:
    """Workers whose process is dead, as seen from this machine or by an evaluator."""
    dead: set[str] = set()
    for seen in run.journal.observations:
        if seen.attempt == attempt and seen.kind in ("worker_lost", "worker_returned"):
            change = dead.add if seen.kind == "worker_lost" else dead.discard
            change(str(seen.data.get("worker")))
    return dead | set(run.lost if run.attempt == attempt else ())


def _end_of(worker: str, events: list[dict[str, Any]], ends: dict[int, LaunchEnd]) -> LaunchEnd | None:
    """The launcher's report on the process of a worker.

    Such a process may end without a record (``os._exit``, a signal). Where it ended with 0, it did not fail.
    """
    pids = [event.get("pid") for event in events if event.get("event") == "joined"]
    return next((end for end in _reports_on(worker, ends) if end.pid and end.pid in pids), None)


def _reports_on(worker: str, ends: dict[int, LaunchEnd]) -> list[LaunchEnd]:
    """The reports of the launcher of a worker: under torchrun each rank has one, else one started all workers."""
    rank = layout.worker_order(worker)[0]
    return [end for end in ends.values() if end.world_size <= 1 or end.rank == rank]


def _when(end: LaunchEnd) -> int:
    return (end.failure.wall_ns if end.failure is not None else 0) or end.wall_ns


def _precedence(failure: Failure) -> tuple[bool, bool, int]:
    """The order of failures: those that are likelier to be the reason for the others first."""
    return failure.exit_status == _TERMINATED, failure.kind == "lost", failure.wall_ns


def _integer(value: object) -> int:
    return value if type(value) is int else 0
