"""A verdict on a run, from what its evaluator wrote or by evaluating it again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from watchglass.cli.terminal import working
from watchglass.records import Status

if TYPE_CHECKING:
    from watchglass.config import EvaluatorConfig
    from watchglass.records import Verdict
    from watchglass.run import Run


def judged(path: str) -> tuple[Run, Verdict]:
    """The run and what its evaluator found; evaluated now with the default rules where none came to its end.

    Raises:
        WatchglassError: It is no run, or not readable.
    """
    from watchglass.evaluate import verdict
    from watchglass.run import open_run

    with working("reading the run"):
        run = open_run(path)
        statuses = run.journal.statuses
        # An evaluator that was killed, or is still at it, has not said its last word.
        if statuses and not any(status.status is Status.IN_PROGRESS for status in statuses):
            return run, replace(verdict(run), run=path)
    from watchglass.config import EvaluatorConfig
    from watchglass.rules import default_rules

    return replayed(EvaluatorConfig(path, None, default_rules()))


def replayed(config: EvaluatorConfig) -> tuple[Run, Verdict]:
    """The run and what the rules of a configuration find in it now. Nothing is written.

    Raises:
        WatchglassError: It is no run, or not readable.
    """
    from watchglass.evaluate import replay, verdict
    from watchglass.run import open_run

    with working("evaluating the run"):
        run = open_run(config.run)
        found = replay(config.run, config.rules, calibration=config.calibration)
        return run, replace(verdict(run, found), run=config.run)
