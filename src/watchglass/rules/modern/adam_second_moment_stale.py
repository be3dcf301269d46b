"""AdamSecondMomentStale: the gradient has outgrown the second moment that divides it, and the loss jumps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import levels, signals
from watchglass.rules.modern.sampled_updates import SampledUpdates, sampled_updates
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView

#: Losses before a sample that a later loss is compared with, and the fewest of them.
_WINDOW, _FEWEST = 32, 16
#: Tensors that a finding names.
_MOST = 8


class AdamSecondMomentStale(Rule):
    """The gradient has outgrown the second moment of Adam: updates are too large, and the loss jumps.

    Looks at: sampled gradients over the square root of their second moment, by tensor; the training loss.
    Fires when: the root mean square of the ratio exceeds `limit` in a weight with two or more axes: `info`. It is a
        `warning` if the loss then jumps, within `within` steps: its logarithm lies `deviations` robust deviations above
        the median of the losses before, and it is at least `jump` times that median. The rule skips tensors that got no
        gradient at an earlier sample: the second moment of an expert, for example, falls while it is not used. Models
        that are trained in turns with others get an `info` at most. A ratio that is large for a few steps only is
        missed if none of them is sampled.
    Usual causes: a beta2 so close to 1 that the second moment still reflects much smaller gradients of earlier steps.
    What to try: a lower beta2, 0.95 to 0.99; clip updates by this ratio (StableAdamW); a longer warm-up.
    Costs: the fact update_sample, 0.05 ms for each of at most 32 parameters at steps 8 to 64 apart.
    Source: ratio, and jumps 1 to 8 steps later: Wortsman et al. (2304.13013); 6 deviations: a public run monitor;
        house: `limit` of 2.3, `jump`.
    """

    starts_with = "stage"
    needs = (
        Needs(facts=("update_sample",), why="to compare gradients with second moments"),
        Needs(scalars=("loss",), optional=True, why="to see whether the loss jumps"),
    )

    limit: float = parameter(2.3, help="root mean square of gradient over root of second moment", gt=1)
    within: int = parameter(8, help="steps after a sample in which a jump counts", unit="steps", ge=1)
    deviations: float = parameter(6.0, help="robust deviations above the median", gt=0)
    jump: float = parameter(1.1, help="loss over the median of those before", unit="ratio", gt=1)

    recent: list[float] = state(list)
    lowest: float = state(lambda: math.inf)
    #: Tensors that got no gradient at some sample.
    idle: list[str] = state(list)
    #: The latest stale sample: ``step``, ``names``, ``value``, ``loss_limit``; empty for none.
    stale: dict[str, Any] = state(dict)
    judged: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding of each severity at a TRAIN step."""
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN or (loss is not None and not math.isfinite(loss)):
            return
        if self.stale and view.model_step - self.stale["step"] > self.within:
            self.stale = {}
        if self.stale and loss is not None and loss > self.stale["loss_limit"] and not view.in_turns:
            yield self._jumped(view, loss)
            self.stale = {}
        for sample in sampled_updates(view) if not signals.skipped(view) else ():
            yield from self._compare(view, sample, loss)
        if loss is not None:
            self.lowest = min(self.lowest, loss)
            self.recent = [*self.recent[1 - _WINDOW :], loss]

    def applicable(self, view: StepView) -> str:
        """Not where no optimizer divides by a second moment."""
        return "" if self.judged else "no optimizer was sampled that divides by a second moment"

    def _compare(self, view: StepView, sample: SampledUpdates, loss: float | None) -> Iterable[Finding]:
        ratios, empty = sample["gradient_over_moment"], sample["zero_gradient"] == 1
        self.judged |= bool(np.isfinite(ratios).any())
        self.idle += [name for name, none in zip(sample.names, empty.tolist(), strict=True) if none]
        known = ~np.isin(sample.names, self.idle)
        above = np.flatnonzero(known & (ratios > self.limit))
        if not len(above):
            return
        worst = above[np.argsort(-ratios[above])][:_MOST].tolist()
        names, value = [sample.names[row] for row in worst], float(ratios[worst[0]])
        limit = math.inf
        if len(self.recent) >= _FEWEST:
            limit = levels.highest(self.recent, self.lowest, self.deviations, self.jump)
        self.stale = {
            "step": view.model_step, "mode_step": view.mode_step, "names": names, "value": value,
            # A loss that has jumped already has another cause.
            "loss_limit": math.inf if loss is None or loss > limit else limit,
        }  # fmt: skip
        yield self._finding(
            view, Severity.INFO, "",
            f"the gradient of {names[0]} is {value:.3g} times the root of its second moment at step {view.mode_step}: "
            "its updates are larger than the optimizer intends",
        )  # fmt: skip

    def _jumped(self, view: StepView, loss: float) -> Finding:
        found = self.stale
        return self._finding(
            view, Severity.WARNING, "second_moment_lags",
            f"the gradient of {found['names'][0]} was {found['value']:.3g} times the root of its second moment at step "
            f"{found['mode_step']}; the loss then jumped to {loss:.3g} at step {view.mode_step}, after "
            f"{median(self.recent):.3g} in the median of the {len(self.recent)} losses before",
            stale_step=found["mode_step"], loss=loss, usual=median(self.recent), losses_before=len(self.recent),
        )  # fmt: skip

    def _finding(self, view: StepView, severity: Severity, symptom: str, message: str, **measured: float) -> Finding:
        return self.finding(
            view,
            severity=severity,
            subject="second moment",
            tensors=self.stale["names"],
            value=self.stale["value"],
            limit=self.limit,
            message=message,
            symptoms=(symptom,) if symptom else (),
            evidence={**signals.evidence(view), **measured},
        )
