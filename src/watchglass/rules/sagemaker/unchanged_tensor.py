"""UnchangedTensor as SageMaker Debugger documents it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: Statistics that are compared in place of the elements.
_COMPARED = ("zero", "min", "max", "sum", "abs_sum", "m2", "l2")


class UnchangedTensor(Rule):
    """A weight has not changed over the last captures.

    Looks at: the statistics of trainable weights, in place of their elements.
    Fires when: those of a weight are equal within `rtol` and `atol`, as by numpy.allclose, in `num_steps` captures in a
        row.
    Usual causes: the optimizer does not hold it, no gradient reaches it, dead units before it.
    What to try: build the optimizer from model.parameters(); look for detach() or no_grad().
    Costs: statistics of weights at captured steps.
    Source: SageMaker Debugger documentation.
    """

    needs = (Needs(role=Role.WEIGHT, statistics=("nonfinite", *_COMPARED), why="to see whether weights change"),)
    modes = (Mode.TRAIN,)

    num_steps: int = parameter(3, help="captures in a row without a change", unit="captures", ge=2)
    rtol: float = parameter(1e-5, help="relative difference that does not count as a change", ge=0)
    atol: float = parameter(1e-8, help="absolute difference that does not count as a change", ge=0)
    equal_nan: bool = parameter(False, help="whether tensors with NaN or infinite values are compared")

    #: By weight, its last statistics, and for how many captures it has been equal.
    before: dict[str, list[float]] = state(dict)
    same: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with captured weights."""
        weights = view.statistics(Role.WEIGHT)
        table = np.stack([getattr(weights, name) for name in _COMPARED], axis=1) if len(weights) else np.zeros((0, 7))
        stuck = []
        for info, row, bad in zip(weights.tensors, table.tolist(), (weights.nonfinite > 0).tolist(), strict=True):
            if info.trainable is not True:
                continue
            old = self.before.get(info.name)
            equal = old is not None and np.allclose(row, old, self.rtol, self.atol) and (self.equal_nan or not bad)
            self.before[info.name] = row
            # The first capture of equal ones has nothing to be equal to.
            if not equal:
                self.same.follow(view.mode_step, False, info.name)
            if self.same.follow(view.mode_step, True, info.name) >= self.num_steps:
                stuck.append(info.name)
        if stuck:
            others = f" and {len(stuck) - 1} more have" if len(stuck) > 1 else " has"
            yield self.finding(
                view,
                subject="weights",
                tensors=stuck[:16],
                value=float(len(stuck)),
                message=f"{stuck[0]}{others} not changed in {self.num_steps} captures up to step {view.mode_step}",
                symptoms=("parameter_unchanged",),
                since=self.same.since(*stuck),
            )

    applicable = staticmethod(signals.without_layers)
