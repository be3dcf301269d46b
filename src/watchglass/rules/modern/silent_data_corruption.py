"""SilentDataCorruption: the loss or the gradient of one rank alone jumps repeatedly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode
from watchglass.rules import levels
from watchglass.rules.modern.rank_average import samples
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import JointStep

#: Values of each rank from which on its usual one is known, and how many are kept.
_FEWEST, _KEPT = 16, 64
#: Least spread of the logarithms: batches of very even data would make every one a jump.
_QUIET = 0.1


class SilentDataCorruption(Rule):
    """One rank alone repeatedly computes values far above its usual ones.

    Looks at: the training loss of each rank at every step, and the size of the gradient that the rank computes, before
        ranks average gradients, at captured steps.
    Fires when: `often` times within `within` steps, a value of the same rank is `deviations` robust deviations and
        `factor` times above its usual value, and the values of all other ranks are not. Deviations are of logarithms,
        from the median of the rank and against the change of the other ranks at that step.
    Usual causes: a device or a memory that computes wrong values, a damaged part of the data that this rank reads.
    What to try: exchange the data of two ranks, and see whether the jumps follow the data or the device.
    Costs: nothing with one process; with several, a copy of 16 elements of a gradient at captured steps.
    Source: robust z of logarithms: Iglewicz and Hoaglin, 1993; house: `deviations`, `factor`, `often`, `within`.
    """

    needs = (
        Needs(scalars=("loss",), why="to compare the losses of ranks"),
        Needs(facts=("rank_gradients",), optional=True, why="to compare their gradients"),
    )

    deviations: float = parameter(8.0, help="robust deviations above the usual logarithm", gt=0)
    factor: float = parameter(4.0, help="value over the usual one", unit="ratio", gt=1)
    often: int = parameter(3, help="jumps of one rank that are too many", ge=1)
    within: int = parameter(100, help="steps in which they are counted", unit="steps", ge=1)

    #: Logarithms of the latest values, by series and worker.
    recent: dict[str, list[float]] = state(dict)
    #: Steps at which each worker jumped alone.
    jumps: dict[str, list[int]] = state(dict)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """At most one finding at a step."""
        if step.mode is not Mode.TRAIN or len(step.views) < 2:
            return
        losses = {view.worker: view.scalar("loss") or 0.0 for view in step.views}
        gradients = {
            view.worker: float(np.linalg.norm(np.asarray(fact.own, np.float64)))
            for view, fact in zip(step.views, samples(step), strict=False)
            if fact.own is not None
        }
        for series, values in (("loss", losses), ("gradient", gradients)):
            worker = self._alone(series, values) if len(values) == len(step.views) else ""
            if not worker:
                continue
            steps = [n for n in self.jumps.get(worker, []) if step.mode_step - n < self.within]
            self.jumps[worker] = list(dict.fromkeys([*steps, step.mode_step]))
            if len(self.jumps[worker]) >= self.often:
                yield self._finding(step, series, worker, values[worker])
                return

    def _alone(self, series: str, values: Mapping[str, float]) -> str:
        """The only worker whose value jumps, "" if none or several do; remembers the values of all."""
        if any(not 0 < value < math.inf for value in values.values()):
            return ""
        known = {worker: self.recent.get(f"{series} {worker}", []) for worker in values}
        logs = {worker: math.log(value) for worker, value in values.items()}
        for worker, log in logs.items():
            self.recent[f"{series} {worker}"] = [*known[worker], log][-_KEPT:]
        if min(map(len, known.values())) < _FEWEST:
            return ""
        beyond = {worker: log - median(known[worker]) for worker, log in logs.items()}
        jumped = []
        for worker, own in beyond.items():
            others = median([far for other, far in beyond.items() if other != worker])
            if own - max(others, 0.0) > self._furthest(known[worker]):
                jumped.append(worker)
        return jumped[0] if len(jumped) == 1 else ""

    def _furthest(self, logs: list[float]) -> float:
        """How far a logarithm may lie above the median of these."""
        return max(self.deviations * max(levels.spread(logs), _QUIET), math.log(self.factor))

    def _finding(self, step: JointStep, series: str, worker: str, value: float) -> Finding:
        logs = self.recent[f"{series} {worker}"][:-1]
        usual = math.exp(median(logs))
        what = "loss" if series == "loss" else "gradient, before ranks average it,"
        return self.finding(
            step,
            subject=worker,
            tensors=["loss"] if series == "loss" else [],
            value=value,
            limit=usual * math.exp(self._furthest(logs)),
            message=f"the {what} of {worker} jumped alone {len(self.jumps[worker])} times in {self.within} steps: "
            f"it is {value:.3g} at step {step.mode_step}, and usually {usual:.3g}",
            symptoms=("one_rank_jumps",),
            evidence={"worker": worker, "steps": self.jumps[worker], "usual": usual},
        )

    def applicable(self, step: JointStep) -> str:
        """A reason where there are no ranks to compare."""
        return "" if len(step.views) > 1 else "the run has one rank"
