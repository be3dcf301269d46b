"""The steps among the moments of a run, and steps as moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from watchglass.evaluate.engine.engine import Engine
from watchglass.records import Finding
from watchglass.run import AttemptEnd, JointStep, Moment, StepView


def views_shown(moments: Iterable[Moment]) -> Iterator[tuple[StepView, ...]]:
    """The views of each step."""
    return (moment.views for moment in moments if isinstance(moment, JointStep))


def feed(engine: Engine, *views: StepView) -> list[Finding]:
    """Shows one step to an engine."""
    return engine.show(JointStep(views))


def finish(engine: Engine) -> list[Finding]:
    """Says to an engine that the run has ended."""
    return engine.show(AttemptEnd())
