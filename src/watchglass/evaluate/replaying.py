"""Evaluating stored data: the same follower, the same engine, the same findings as live."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import CompactedError
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.engine.observing import journal_of
from watchglass.evaluate.engine.partial import merge, most_steps
from watchglass.evaluate.engine.rule_status import PartialEvaluation
from watchglass.evaluate.follower import Follower
from watchglass.records import Evaluation, Observation
from watchglass.rules import default_rules
from watchglass.store import Attendance, Store, is_alive, open_store

#: How often a run may be compacted under the reader before the last try.
_MOST_TRIES = 3


def replay(
    run: str | os.PathLike[str] | Store,
    rules: Sequence[RuleSpec] | None = None,
    *,
    calibration: str = "default",
    rule_timeout_s: float = 30.0,
) -> Evaluation:
    """Evaluates rules over everything that was stored of a run, finished or not. Writes nothing.

    Args:
        run: Path of the run, or its store.
        rules: The rules; the default ones if None.
        calibration: Which set of thresholds.
        rule_timeout_s: How long a rule may take over one step.

    Raises:
        MissingFileError, NotARunError, FormatVersionError: There is no run that this release can read.
        UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`watchglass.rules.build_rule`.
    """
    specs = tuple(default_rules() if rules is None else rules)
    store = open_store(os.fspath(run)) if not isinstance(run, Store) else run
    config = EvaluatorConfig(store.location, None, specs, calibration=calibration, rule_timeout_s=rule_timeout_s)
    return merge([replay_part(store, config)], specs)


def replay_part(
    run: str | os.PathLike[str] | Store,
    config: EvaluatorConfig,
    *,
    workers: Collection[str] | None = None,
    rules: Sequence[int] | None = None,
    variants: bool = False,
    progress: Callable[[int], None] | None = None,
) -> PartialEvaluation:
    """Evaluates some rules over some workers of what was stored of a run. Writes nothing.

    Args:
        run: Path of the run, or its store.
        config: All rules, the calibration, the time limit; and the attempt, where it is only about one.
        workers: Names of workers; all if None.
        rules: Positions in ``config.rules``; all if None.
        variants: See :class:`Engine`.
        progress: Called now and then with the number of TRAIN steps evaluated so far.

    Raises:
        MissingFileError, NotARunError, FormatVersionError: There is no run that this release can read.
        UnknownNameError, InvalidValueError, MissingFileError, PluginFileError: See :func:`watchglass.rules.build_rule`.
    """
    numbers = range(len(config.rules)) if rules is None else rules
    specs = [config.rules[number] for number in numbers]
    store = open_store(os.fspath(run)) if not isinstance(run, Store) else run

    def evaluated() -> PartialEvaluation:
        follower, (seen, observed) = Follower(store, attempt=config.attempt, workers=workers), journal_of(store)
        engine = Engine(
            specs, calibration=config.calibration, rule_timeout_s=config.rule_timeout_s, observed=observed,
            variants=variants, run_id=follower.run_id,
        )  # fmt: skip
        _read_all(engine, follower, seen, progress)
        running = _running(store, follower, seen)
        # Whether the run has ended shows when all parts are together, so a part has both: so far, and at the end.
        engine.remember()
        for moment in follower.ends():
            engine.show(moment)
        return replace(
            engine.partial(numbers, run=store.location), running=tuple(running), newest=_newest(follower),
            problems=tuple(str(problem) for problem in follower.problems),
        )  # fmt: skip

    for _ in range(_MOST_TRIES):
        with suppress(CompactedError):  # segments gave way to a generation while they were read
            return evaluated()
    return evaluated()


def _read_all(
    engine: Engine, follower: Follower, seen: Sequence[Observation], progress: Callable[[int], None] | None
) -> None:
    """Evaluates all that is stored."""
    follower.readable = engine.readable
    follower.cut(engine.windows)
    for observation in seen:
        engine.heed(observation)
        if engine.whole:
            follower.observe(observation)
    frames = 0
    for moment in follower.read_all():
        engine.show(moment)
        if progress is not None and follower.frames != frames:
            frames = follower.frames
            progress(most_steps(engine.train_steps))
    if progress is not None:
        progress(most_steps(engine.train_steps))
    engine.close()


def _newest(follower: Follower) -> int:
    """The newest attempt of which a worker has written; -1 for none."""
    return max((attempt for attempt, _ in follower.workers), default=-1)


def _running(store: Store, follower: Follower, observations: Sequence[Observation]) -> list[str]:
    """The workers of the newest attempt that live, as far as can be seen.

    One on another machine counts as alive until its launcher has recorded its end, or an evaluator has noted its loss.
    """
    newest = _newest(follower)
    active = [name for (attempt, name), worker in follower.workers.items() if worker.active and attempt == newest]
    if not active:
        return []
    attendance = Attendance(store)
    attendance.look(newest)
    claims = attendance.claims(newest)
    alive = {worker: is_alive(claims[worker]) for worker in active if worker in claims}
    unseen = [worker for worker, lives in alive.items() if lives is None]
    lost = {worker for worker in unseen if attendance.launch_ended(newest, worker)}
    for seen in observations:
        if seen.attempt == newest and seen.kind == "worker_lost":
            lost.add(str(seen.data.get("worker")))
        elif seen.attempt == newest and seen.kind == "worker_returned":
            lost.discard(str(seen.data.get("worker")))
    return [worker for worker, lives in alive.items() if lives or (lives is None and worker not in lost)]
