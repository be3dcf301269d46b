"""OverallFrameworkMetrics: where the time of steps went."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import PHASE_NAMES, Finding, Mode, Severity, count
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Powers of two above the median at which a step is far longer: 8 to 16 times.
_OCTAVES = 3
#: Largest share of such steps: what is more frequent is typical, too.
_RARE = 0.1


class OverallFrameworkMetrics(Rule):
    """A summary of the phases of steps.

    Looks at: the phases of the steps of each mode, over the whole run.
    Fires when: never for a fault. At the end it gives an `info`: the mean duration of steps, the share of each phase,
        and the share of evaluations in the time of all steps. Steps that took about ten times the median or more, as
        those in which code is compiled, are counted separately if they are a tenth of all at most.
    Usual causes: none, because it reports no fault.
    What to try: begin with the longest phase. Where that is `prepare` or `other`, `--python-profile` shows the
        functions in which the script spends it.
    Costs: nothing in addition to the phases of steps, which are recorded under a launcher.
    Source: SageMaker Debugger documentation.
    """

    needs = (Needs(phases=True, why="to summarise them"),)

    least: int = parameter(1, help="training steps of a summary", unit="steps", ge=1)

    #: By mode, and by the power of two at most the milliseconds of a step: number of steps, and seconds by phase.
    seconds: dict[str, dict[str, list[float]]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """No findings: adds up phases."""
        if view.phases is not None:
            spent = [*view.phases.values()]
            octave = str(math.frexp(1000 * sum(spent))[1] - 1)
            before = self.seconds.setdefault(view.mode.name, {}).get(octave, [0.0] * (1 + len(spent)))
            self.seconds[view.mode.name][octave] = [a + b for a, b in zip(before, (1, *spent), strict=True)]
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The summary."""
        by_octave = self.seconds.get(Mode.TRAIN.name, {})
        steps, *all_spent = map(sum, zip(*by_octave.values(), strict=True)) if by_octave else (0,)
        if steps < self.least or not sum(all_spent):
            return
        number, *spent = map(sum, zip(*_typical(by_octave), strict=True))
        if not sum(spent) or number < (1 - _RARE) * steps:
            number, spent = steps, all_spent
        shares = {name: 100 * each / sum(spent) for name, each in zip(PHASE_NAMES, spent, strict=True)}
        words = ", ".join(f"{name} {share:.0f} %" for name, share in shares.items())
        longer = sum(all_spent) - sum(spent)
        if number < steps:
            words += f"; {count(int(steps - number), 'far longer step')} took {longer:.3g} s of {sum(all_spent):.3g} s"
        whole = sum(sum(row[1:]) for rows in self.seconds.values() for row in rows.values())
        others = 100 * (1 - sum(all_spent) / whole)
        if others >= 1:
            words += f"; evaluations took {others:.0f} % of the time of all steps"
        yield self.finding(
            view,
            severity=Severity.INFO,
            subject="phases",
            message=f"training steps took {1000 * sum(spent) / number:.3g} ms on average: {words}",
            evidence={"shares": shares, "steps": number, "far_longer_steps": steps - number, "far_longer_s": longer},
        )


def _typical(by_octave: dict[str, list[float]]) -> list[list[float]]:
    """The rows of steps that took less than about ten times the median."""
    octaves = sorted(by_octave, key=int)
    until, half = 0.0, sum(row[0] for row in by_octave.values()) / 2
    for octave in octaves:
        until += by_octave[octave][0]
        if until >= half:
            return [by_octave[each] for each in octaves if int(each) <= int(octave) + _OCTAVES]
    return []
