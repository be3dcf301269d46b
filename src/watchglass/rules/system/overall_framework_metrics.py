"""OverallFrameworkMetrics: where the time of steps went."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import PHASE_NAMES, PHASES, Finding, Mode, Severity, count, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import duration_class, last_typical_class
from watchglass.tables import StepView


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

    needs = (Needs(rows=(PHASES,), why="to summarise them"),)

    least: int = parameter(1, help="training steps of a summary", unit="steps", ge=1)

    #: By mode, and by the class of a step's duration: number of steps, and seconds by phase.
    seconds: dict[str, dict[str, list[float]]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """No findings: adds up phases."""
        for spent in view.rows(PHASES):
            alike = str(duration_class(sum(spent)))
            before = self.seconds.setdefault(view.mode.name, {}).get(alike, [0.0] * (1 + len(spent)))
            self.seconds[view.mode.name][alike] = [a + b for a, b in zip(before, (1, *spent), strict=True)]
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The summary."""
        by_class = {int(each): row for each, row in self.seconds.get(Mode.TRAIN.name, {}).items()}
        steps, *all_spent = map(sum, zip(*by_class.values(), strict=True)) if by_class else (0,)
        if steps < self.least or not sum(all_spent):
            return
        last = last_typical_class({each: row[0] for each, row in by_class.items()})
        typical = (row for each, row in by_class.items() if each <= last)
        number, *spent = map(sum, zip(*typical, strict=True))
        if not sum(spent):
            number, spent = steps, all_spent
        shares = {name: 100 * each / sum(spent) for name, each in zip(PHASE_NAMES, spent, strict=True)}
        words = ", ".join(f"{name} {in_percent(share / 100)}" for name, share in shares.items() if share)
        longer = sum(all_spent) - sum(spent)
        if number < steps:
            words += f"; {count(int(steps - number), 'far longer step')} took {longer:.3g} s of {sum(all_spent):.3g} s"
        whole = sum(sum(row[1:]) for rows in self.seconds.values() for row in rows.values())
        others = 100 * (1 - sum(all_spent) / whole)
        if others >= 1:
            words += f"; evaluations took {in_percent(others / 100)} of the time of all steps"
        yield self.finding(
            view,
            severity=Severity.INFO,
            subject="phases",
            message=f"training steps took {1000 * sum(spent) / number:.3g} ms on average: {words}",
            evidence={"shares": shares, "steps": number, "far_longer_steps": steps - number, "far_longer_s": longer},
        )
