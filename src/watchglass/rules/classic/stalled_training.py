"""StalledTraining: no step for a long time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.silences import note_step, silence_at
from watchglass.tables import JointStep, Tick


class StalledTraining(Rule):
    """No step has been completed for a long time, although the processes have not ended.

    Looks at: ticks (calls of the rule while no step is completed), and the time between earlier steps.
    Fires when: no worker that the run waits for has completed a step for `threshold` seconds. This time must also be
        `factor` times the median time between steps, and `pauses` times the longest pause so far. A run before its
        first step is not judged, and in the first 64 steps of a compiled model all limits are ten times as long: graphs
        are compiled when they are first needed. A long evaluation or checkpoint sets the longest pause, so the next one
        is not reported.
    Usual causes: a data loader that returns nothing, a collective that waits for a rank that has failed, a full disk.
    What to try: look at the stacks of the processes with py-spy; --stop-on warning ends such a run.
    Costs: ticks in the journal, a few hundred bytes each, at intervals that double up to 60 s.
    Source: 1800 seconds: SageMaker Debugger documentation; 10 times the median, at least 60 s: house.
    """

    needs = (Needs(observations=("tick",), why="to see that no step is completed"),)
    calibrations: ClassVar = {"sagemaker": {"threshold": 1800.0, "factor": 0.0, "pauses": 0.0}}

    threshold: float = parameter(60.0, help="shortest time without a step", unit="s", gt=0)
    factor: float = parameter(10.0, help="how many times the median time between steps", ge=0)
    pauses: float = parameter(2.0, help="how many times the longest pause before", ge=0)

    #: The time between earlier steps, see :func:`note_step`.
    gaps: dict[str, Any] = state(dict)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """No findings: notes the time since the step before."""
        note_step(self.gaps, step)
        return ()

    def tick(self, tick: Tick) -> Iterable[Finding]:
        """A finding where the silence is longer than all limits."""
        silence = silence_at(self.gaps, tick, threshold=self.threshold, factor=self.factor, pauses=self.pauses)
        if silence is None:
            return
        late = silence.late
        gone = [worker for worker in late if worker not in tick.living]
        alive = "its process lives" if len(late) == 1 else "the processes live"
        unseen = f"{len(gone)} of {len(late)} processes cannot be seen from here"
        steps = f"; steps took {silence.usual_s:.2g} s before" if silence.usual_s else ""
        yield self.finding(
            tick,
            subject="no step",
            value=tick.silent_s,
            limit=silence.limit_s,
            message=f"{silence.message}{steps}; {unseen if gone else alive}",
            symptoms=("no_step_completed",),
            evidence={"ends_in_s": 0.0, **({"usual_s": silence.usual_s} if silence.usual_s else {})},
        )
