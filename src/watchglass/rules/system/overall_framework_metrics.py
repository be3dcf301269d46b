"""OverallFrameworkMetrics: where the time of steps went."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import PHASE_NAMES, Finding, Mode, Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class OverallFrameworkMetrics(Rule):
    """A summary of the phases of steps.

    Looks at: the phases of the steps of each mode, over the whole run.
    Fires when: never for a fault. At the end it gives an `info`: the mean duration of steps, the share of each phase,
        and the share of evaluations in the time of all steps.
    Usual causes: none, because it reports no fault.
    What to try: begin with the longest phase.
    Costs: nothing in addition to the phases of steps, which are recorded under a launcher.
    Source: SageMaker Debugger documentation.
    """

    needs = (Needs(phases=True, why="to summarise them"),)

    least: int = parameter(1, help="training steps of a summary", unit="steps", ge=1)

    #: By mode: number of steps, and seconds by phase.
    steps: dict[str, int] = state(dict)
    seconds: dict[str, list[float]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """No findings: adds up phases."""
        if view.phases is not None:
            mode = view.mode.name
            before = self.seconds.get(mode, [0.0] * len(PHASE_NAMES))
            self.steps[mode] = self.steps.get(mode, 0) + 1
            self.seconds[mode] = [a + b for a, b in zip(before, view.phases.values(), strict=True)]
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The summary."""
        train = Mode.TRAIN.name
        if self.steps.get(train, 0) < self.least or not sum(self.seconds[train]):
            return
        spent, whole = self.seconds[train], sum(map(sum, self.seconds.values()))
        shares = {name: 100 * each / sum(spent) for name, each in zip(PHASE_NAMES, spent, strict=True)}
        mean_ms = 1000 * sum(spent) / self.steps[train]
        words = ", ".join(f"{name} {share:.0f} %" for name, share in shares.items())
        others = 100 * (1 - sum(spent) / whole)
        also = f"; evaluations took {others:.0f} % of the time of all steps" if others >= 1 else ""
        yield self.finding(
            view,
            severity=Severity.INFO,
            subject="phases",
            message=f"training steps took {mean_ms:.3g} ms on average: {words}{also}",
            evidence={"shares": shares, "steps": self.steps, "seconds": self.seconds},
        )
