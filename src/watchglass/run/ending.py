"""How the newest attempt of a run ended: what its launchers and its workers say, and the silence of those that died."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from watchglass.errors import EXIT_STOPPED
from watchglass.records import Failure
from watchglass.store import LaunchEnd, begun_ns, has_attempt, layout, read_launch_ends

if TYPE_CHECKING:
    from watchglass.run.run import Run

#: As a shell calls it: ended by SIGTERM, which torchrun and schedulers send to ranks because another one failed.
_TERMINATED = 128 + 15


class Ending(NamedTuple):
    """The end of the newest attempt.

    Attributes:
        over: Nothing more comes of it: every worker has left, ended with an exit status of 0, or is gone.
        failure: Why it failed; None where it has not, or has not ended.
        early: What ended workers of a script that itself ended well: it terminated them, or went on without them.
    """

    over: bool
    failure: Failure | None
    early: tuple[Failure, ...] = ()


def ending_of(run: Run) -> Ending:
    """How the newest attempt ended, as far as was read and as the processes of this machine show now.

    Of several failures the earliest counts: it is the reason for the others. A process that was killed, or that went
    without a word, failed as well, unless a launcher says that the script which started it ended with 0.

    Raises:
        StoreError: The store refused.
    """
    attempt = _newest(run)
    launch, ends = _launch(run, attempt)
    failures = [
        replace(end.failure or _unexplained(end), exit_status=end.exit_status, wall_ns=_when(end))
        for end in ends.values()
        if end.exit_status not in (0, EXIT_STOPPED)
    ]
    for earlier in range(launch, attempt) if failures else ():
        for name in run.workers:
            tables = run.worker(name).attempts.get(earlier)
            failures += _told(name, tables.lifecycle if tables is not None else [])
    early: list[Failure] = []
    waiting = False
    gone = _gone(run, attempt)
    for name in run.workers:
        tables = run.worker(name).attempts.get(attempt)
        events = tables.lifecycle if tables is not None else []
        end = _end_of(name, events, ends)
        if not events or (end is not None and end.exit_status == 0):
            continue
        found = early if any(end.exit_status == 0 for end in _launches_of(name, ends)) else failures
        if events[-1].get("event") in ("left", "harvested") and any(event.get("event") == "left" for event in events):
            found += _told(name, events)
        elif name in gone:
            if end is None:  # else its launcher has said how it ended
                found.append(Failure("lost", worker=name))
        else:
            waiting = True
    first = min(failures, key=_rank_of, default=None)
    return Ending(not waiting and bool(run.workers or ends), first, tuple(early))


def state_of(run: Run) -> str:
    """How a run ended: ``finished``, ``failed``, ``stopped``, or ``lost`` (its processes are gone, and nothing says
    why); else ``not finished`` or ``no data``.

    Where workers left differently, all of it: ``failed and finished``.
    """  # noqa: D205
    ending = ending_of(run)
    if run.finished:
        early = {failure.worker for failure in ending.early}
        lasts = {worker: run.worker(worker).lifecycle[-1] for worker in run.workers if worker not in early}
        ends = {str(last.get("status", "finished")) for last in lasts.values()} or {"finished"}
        if ending.failure is not None and "stopped" not in ends:
            # Not only what failed while it trained: a launcher also sees what came after the last step.
            ends = {"failed"} if ends == {"finished"} else ends | {"failed"}
        return " and ".join(sorted(ends))
    if ending.failure is not None:
        return "lost" if ending.failure.kind == "lost" else "failed"
    if ending.over:
        return "finished"
    return "not finished" if run.workers else "no data"


def _newest(run: Run) -> int:
    if run.fixed_attempt is not None:
        return run.fixed_attempt
    attempt = max(run.attempts, default=0)
    while has_attempt(run.store, attempt + 1):  # of one that failed before its first step nothing else was read
        attempt += 1
    return attempt


def _launch(run: Run, attempt: int) -> tuple[int, dict[int, LaunchEnd]]:
    """The attempt in which the launch began that an attempt belongs to, and what its launchers have said since.

    Processes of one launch that train by themselves, one after the other, may have an attempt each.
    """
    for earlier in range(attempt, -1, -1):
        ends = read_launch_ends(run.store, earlier)
        if ends or run.fixed_attempt is not None:
            begun = begun_ns(run.store, attempt) if earlier < attempt else 0
            later = {rank: end for rank, end in ends.items() if end.wall_ns >= begun}
            return (earlier if later else attempt), later
    return attempt, {}


def _told(worker: str, events: list[dict[str, Any]]) -> list[Failure]:
    """The failure with which a worker left; none where it did not."""
    left = next((event for event in reversed(events) if event.get("event") == "left"), None)
    if left is None or left.get("status") != "failed":
        return []
    told = Failure.from_json(left.get("failure")) or Failure("exception")
    return [replace(told, worker=worker, wall_ns=told.wall_ns or _integer(left.get("wall_ns")))]


def _gone(run: Run, attempt: int) -> set[str]:
    """Workers whose process is gone, as seen from here, or as an evaluator has seen it."""
    gone: set[str] = set()
    for seen in run.journal.observations:
        if seen.attempt == attempt and seen.kind in ("worker_lost", "worker_returned"):
            change = gone.add if seen.kind == "worker_lost" else gone.discard
            change(str(seen.data.get("worker")))
    return gone | set(run.lost if run.attempt == attempt else ())


def _end_of(worker: str, events: list[dict[str, Any]], ends: dict[int, LaunchEnd]) -> LaunchEnd | None:
    """What a launcher has said of the very process of a worker.

    Such a process may leave without a word (``os._exit``, a signal); where it ended with 0, what was printed on its way
    is no failure.
    """
    pids = [event.get("pid") for event in events if event.get("event") == "joined"]
    return next((end for end in _launches_of(worker, ends) if end.pid and end.pid in pids), None)


def _launches_of(worker: str, ends: dict[int, LaunchEnd]) -> list[LaunchEnd]:
    """What the launcher of a worker has said, if it has."""
    rank = layout.worker_order(worker)[0]
    return [end for end in ends.values() if end.world_size <= 1 or end.rank == rank]


def _unexplained(end: LaunchEnd) -> Failure:
    return Failure("signal" if end.exit_status > 128 else "exit")


def _when(end: LaunchEnd) -> int:
    return (end.failure.wall_ns if end.failure is not None else 0) or end.wall_ns


def _rank_of(failure: Failure) -> tuple[bool, bool, int]:
    """What is likelier to be the reason for the others comes first."""
    return failure.exit_status == _TERMINATED, failure.kind == "lost", failure.wall_ns


def _integer(value: object) -> int:
    return value if type(value) is int else 0
