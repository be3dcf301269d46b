"""The verdict on a run as it is stored: of its evaluator, or by a new evaluation."""

from __future__ import annotations

from watchglass.diagnose import verdict
from watchglass.evaluate.replaying import replay
from watchglass.records import Verdict
from watchglass.run import Run, is_judged


def judge_run(run: Run) -> Verdict:
    """The verdict of the run's evaluator if that has evaluated all of it, else of the default rules. Writes nothing."""
    return verdict(run, None if is_judged(run) else replay(run.location))
