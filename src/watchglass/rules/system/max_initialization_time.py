"""MaxInitializationTime: no training step for long after the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules.needs import Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep, Window


class MaxInitializationTime(Rule):
    """The first training step comes long after the start of the script.

    Looks at: the time from the first sample of a machine, which the launcher takes when it starts the script, to the
        first step.
    Fires when: no step has ended `threshold` minutes after the first sample. It needs the launcher: `watch` takes no
        sample before the first step.
    Usual causes: data that is copied or prepared at the start; a download; ranks that wait for each other; compilation.
    What to try: prepare the data once and store it; look at the stacks of the processes with py-spy.
    Costs: nothing in addition to the samples of the machine, which are recorded under a launcher.
    Source: 20 minutes: SageMaker Debugger documentation.
    """

    streams = Windows(kinds=("samples",), length_s=1)
    calibrations: ClassVar = {"sagemaker": {"threshold": 20.0}}

    threshold: float = parameter(20.0, help="time to the first step", unit="minutes", gt=0)

    #: Time of the first window of each stream; whether a window came before the first step.
    began_ns: dict[str, int] = state(dict)
    ahead: bool = state(bool)

    def check_window(self, window: Window) -> Iterable[Finding]:
        """A finding before the first step."""
        if window.last is not None:
            return
        self.ahead = True
        began_ns = self.began_ns.setdefault(f"{window.stream}/{window.clock}", window.start_ns)
        minutes = (window.end_ns - began_ns) / 60e9
        if minutes <= self.threshold:
            return
        yield self.finding(
            window,
            subject="first step",
            value=minutes,
            limit=self.threshold,
            message=f"no training step has ended {minutes:.3g} minutes after the start",
            symptoms=("first_step_late",),
        )

    def applicable(self, step: JointStep) -> str:
        """Not for runs without samples from before the first step."""
        return "" if self.ahead else "there are no samples from before the first step"
