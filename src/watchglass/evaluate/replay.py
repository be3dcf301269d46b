"""Evaluating stored data: the same follower, the same engine, the same findings as live."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchglass.config import RuleSpec
from watchglass.errors import CompactedError, DamagedDataError
from watchglass.evaluate.engine import Engine
from watchglass.evaluate.follower import Follower
from watchglass.records import Finding, RuleStatus
from watchglass.rules import default_rules
from watchglass.store import (
    Attendance,
    FrameKind,
    RunReader,
    Store,
    decode_observation,
    is_alive,
    open_store,
)

#: How often a run may be compacted under the reader before the last try.
_MOST_TRIES = 3


@dataclass(frozen=True)
class Evaluation:
    """What rules say of a run.

    Attributes:
        run: Location of the run.
        findings: In the order of attempt, step, rule, worker.
        statuses: One per rule.
        train_steps: TRAIN steps of the worker with the most, over all attempts.
        ended: Whether the training has ended (finished, failed, stopped or died); False while it still runs.
        problems: What of the run could not be read, one line each.
    """

    run: str
    findings: tuple[Finding, ...]
    statuses: tuple[RuleStatus, ...]
    train_steps: int
    ended: bool
    problems: tuple[str, ...] = ()


def replay(
    run: str | os.PathLike[str] | Store,
    rules: Sequence[RuleSpec] | None = None,
    *,
    calibration: str = "default",
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluates rules over everything that was stored of a run, finished or not. Writes nothing.

    Args:
        run: Path of the run, or its store.
        rules: The rules; the default ones if None.
        calibration: Which set of thresholds.
        progress: Called now and then with the number of TRAIN steps evaluated so far.

    Raises:
        MissingFileError, NotARunError, FormatVersionError: There is no run that this release can read.
        UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`watchglass.rules.build_rule`.
    """
    specs = default_rules() if rules is None else rules
    store = open_store(os.fspath(run)) if not isinstance(run, Store) else run
    for _ in range(_MOST_TRIES):
        try:
            return _replayed(Engine(specs, calibration=calibration), store, progress)
        except CompactedError:
            continue  # segments gave way to a generation while they were read
    return _replayed(Engine(specs, calibration=calibration), store, progress)


def most_steps(engine: Engine) -> int:
    """TRAIN steps of the worker with the most, over all attempts."""
    workers = {worker for _, worker in engine.train_steps}
    return max((sum(n for (_, w), n in engine.train_steps.items() if w == worker) for worker in workers), default=0)


def _replayed(engine: Engine, store: Store, progress: Callable[[int], None] | None) -> Evaluation:
    follower = Follower(store)
    while True:
        before = follower.frames
        for views in follower.poll(full=True):
            engine.feed(views)
        if progress is not None:
            progress(most_steps(engine))
        if follower.frames == before:
            break
    for views in follower.drain():
        engine.feed(views)
    ended = not _still_runs(store, follower)
    if ended:
        engine.finish([worker.view for worker in follower.workers.values() if worker.view is not None])
    return Evaluation(
        store.location, tuple(engine.findings), engine.statuses(), most_steps(engine), ended,
        tuple(str(problem) for problem in follower.problems),
    )  # fmt: skip


def _still_runs(store: Store, follower: Follower) -> bool:
    """Whether a worker of the newest attempt lives, as far as can be seen.

    One on another machine counts as alive until its launcher has said that it ended, or an evaluator noted its loss.
    """
    newest = max((attempt for attempt, _ in follower.workers), default=-1)
    active = [worker.worker for worker in follower.active if worker.attempt == newest]
    if not active:
        return False
    attendance = Attendance(store)
    attendance.look(newest)
    claims = attendance.claims(newest)
    alive = {worker: is_alive(claims[worker]) for worker in active if worker in claims}
    if True in alive.values():
        return True
    unseen = [worker for worker, seen in alive.items() if seen is None]
    return bool(unseen and set(unseen) - _lost(store, newest, attendance, unseen))


def _lost(store: Store, attempt: int, attendance: Attendance, workers: Sequence[str]) -> set[str]:
    """Those of ``workers`` of which it is known that they have ended."""
    lost = {worker for worker in workers if attendance.launch_ended(attempt, worker)}
    for frame in RunReader(store).journal():
        if frame.kind != FrameKind.OBSERVATION:
            continue
        try:
            seen = decode_observation(frame.payload)
        except DamagedDataError:
            continue
        if seen.attempt == attempt and seen.kind == "worker_lost":
            lost.add(str(seen.data.get("worker")))
        elif seen.attempt == attempt and seen.kind == "worker_returned":
            lost.discard(str(seen.data.get("worker")))
    return lost
