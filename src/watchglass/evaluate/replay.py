"""Evaluating stored data: the same follower, the same engine, the same findings as live."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchglass.config import RuleSpec
from watchglass.evaluate.engine import Engine
from watchglass.evaluate.follower import Follower
from watchglass.records import Finding, RuleStatus
from watchglass.rules import default_rules
from watchglass.store import Store, is_alive, open_store, read_claims


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
        UnknownNameError, InvalidValueError, MissingFileError, RuleFileError: See :func:`watchglass.rules.build_rule`.
    """
    engine = Engine(default_rules() if rules is None else rules, calibration=calibration)
    store = open_store(os.fspath(run)) if not isinstance(run, Store) else run
    follower = Follower(store)
    while True:
        before = follower.frames
        for views in follower.poll(full=True):
            engine.feed(views)
        if progress is not None:
            progress(_most_steps(engine))
        if follower.frames == before:
            break
    for views in follower.drain():
        engine.feed(views)
    ended = not _still_runs(store, follower)
    if ended:
        engine.finish(worker.view for worker in follower.workers.values() if worker.view is not None)
    return Evaluation(
        store.location, tuple(engine.findings), engine.statuses(), _most_steps(engine), ended,
        tuple(str(problem) for problem in follower.problems),
    )  # fmt: skip


def _most_steps(engine: Engine) -> int:
    workers = {worker for _, worker in engine.train_steps}
    return max((sum(n for (_, w), n in engine.train_steps.items() if w == worker) for worker in workers), default=0)


def _still_runs(store: Store, follower: Follower) -> bool:
    """Whether a worker of the newest attempt lives, as far as can be seen; one on another machine counts as alive."""
    newest = max((attempt for attempt, _ in follower.workers), default=-1)
    claims = read_claims(store, newest) if newest >= 0 else {}
    return any(
        worker.attempt == newest and worker.worker in claims and is_alive(claims[worker.worker]) is not False
        for worker in follower.active
    )
