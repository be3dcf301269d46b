"""StalledTraining: no step for a long time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import JointStep, StepView, Tick

_LAST = 64


class StalledTraining(Rule):
    """No step has been completed for a long time, although the processes have not ended.

    Looks at: ticks (calls of the rule while no step is completed), and the time between earlier steps.
    Fires when: no worker that the run waits for has completed a step for `threshold` seconds. This time must also be
        `factor` times the median time between steps, and `pauses` times the longest pause so far. A run before its
        first step is not judged. A long evaluation or checkpoint sets the longest pause, so the next one is not
        reported.
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

    #: Seconds between the ends of the last steps, the longest of all, and the end of the last step.
    between: list[float] = state(list)
    longest: float = state(float)
    ended_ns: int = state(int)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """No findings: notes the time since the step before."""
        first = step.first
        if self.ended_ns:
            seconds = max(0.0, (first.end_ns - self.ended_ns) / 1e9)
            self.between = [*self.between[1 - _LAST :], seconds]
            self.longest = max(self.longest, seconds)
        self.ended_ns = first.end_ns
        return ()

    def tick(self, tick: Tick) -> Iterable[Finding]:
        """A finding where the silence is longer than all limits."""
        if tick.last is None:
            return
        usual = median(self.between) if self.between else 0.0
        limit = max(self.threshold, self.factor * usual, self.pauses * self.longest)
        late = sorted(worker for worker, seconds in tick.seconds.items() if seconds >= limit)
        if not late:
            return
        step = tick.last.first if isinstance(tick.last, JointStep) else tick.last
        assert isinstance(step, StepView)
        gone = [worker for worker in late if worker not in tick.living]
        alive = "its process lives" if len(late) == 1 else "the processes live"
        unseen = f"{len(gone)} of {len(late)} processes cannot be seen from here"
        steps = f"; steps took {usual:.2g} s before" if usual else ""
        yield self.finding(
            tick,
            severity=Severity.WARNING,
            subject="no step",
            value=tick.silent_s,
            limit=limit,
            message=f"{', '.join(late[:4])} {'has' if len(late) == 1 else 'have'} completed no step for "
            f"{tick.silent_s:.0f} s after step {step.mode_step}{steps}; {unseen if gone else alive}",
            symptoms=("no_step_completed",),
        )
