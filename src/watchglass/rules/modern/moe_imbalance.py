"""MoEImbalance: a router sends almost all tokens to few experts."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, count, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import StepView

_LOAD = ".router_load"


class MoEImbalance(Rule):
    """A router sends far more tokens to one expert than to the others.

    Looks at: the load of the experts of each router, as shares of the tokens of a step.
    Fires when: in the median of the last `window` captures, at step `start` or later or at the end, the largest load
        exceeds the mean by more than `severe` times the mean, or one expert has 80 percent of all: `warning`. Beyond
        `large` times it is an `info`. The rule ignores an imbalance that chance explains with so few tokens.
    Usual causes: no loss for the balance of the experts, or a small one; a router that learns much faster than experts.
    What to try: a loss for their balance; noise on the router's logits; a capacity for each expert.
    Costs: nothing without a router; else a softmax and a sum over its logits at captured steps.
    Source: 1 and 4 times the mean: house; Fedus et al., Switch Transformers (2101.03961).
    """

    idle_at_plain_steps = True
    needs = (Needs(collection="router", statistics=("max", "count"), optional=True, why="to see the load of experts"),)
    modes = (Mode.TRAIN,)

    large: float = parameter(1.0, help="largest load minus the mean, divided by the mean", unit="ratio", gt=0)
    severe: float = parameter(4.0, help="excess above which the finding is a warning", unit="ratio", gt=0)
    window: int = parameter(8, help="captures for the median", unit="captures", ge=1)
    start: int = parameter(50, help="first step that is judged", unit="steps", ge=0)

    #: Excess at the last captures, by router.
    excess: dict[str, list[float]] = state(dict)
    experts: dict[str, int] = state(dict)
    chance: dict[str, float] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each router."""
        rows = view.statistics(collection="router", name_regex=r"\.router_(load|logits)$")
        counts = dict(zip(rows.names, rows.count.tolist(), strict=True))
        for name, most in zip(rows.names, rows.max.tolist(), strict=True):
            experts = int(counts[name])
            if not name.endswith(_LOAD) or experts < 2 or not np.isfinite(most):
                continue
            tokens = counts.get(name.replace(_LOAD, ".router_logits"), 0) / experts
            if tokens < experts:
                continue
            # The greatest of fair loads is about this far above their mean.
            self.chance[name] = math.sqrt(2 * math.log(experts) * experts / tokens)
            self.experts[name] = experts
            self.excess[name] = [*self.excess.get(name, [])[1 - self.window :], most * experts - 1]
            if len(self.excess[name]) >= self.window and view.model_step >= self.start:
                yield from self._judged(view, name)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement on runs that were too short."""
        if view.mode is Mode.TRAIN and view.model_step < self.start:
            for name, values in self.excess.items():
                if len(values) >= self.window:
                    yield from self._judged(view, name)

    def applicable(self, view: StepView) -> str:
        """Not for models without routers, nor with too few captures."""
        captures = max(map(len, self.excess.values()), default=0)
        if not captures:
            return "no router of a mixture of experts was captured"
        few = captures < self.window
        return f"routers were captured at {count(captures, 'step')}; {self.window} are needed" if few else ""

    def _judged(self, view: StepView, name: str) -> Iterable[Finding]:
        usual, experts = median(self.excess[name]), self.experts[name]
        if usual <= max(self.large, 2 * self.chance[name]):
            return
        severe = usual > min(self.severe, 0.8 * experts - 1)
        share = 100 * (usual + 1) / experts
        module = name.removesuffix(_LOAD)
        yield self.finding(
            view,
            severity=Severity.WARNING if severe else Severity.INFO,
            tensors=[name],
            value=usual,
            limit=self.large,
            message=f"{module} gives {in_percent(share / 100)} of the load to one of {experts} experts in the median "
            f"of the last "
            f"{self.window} captures up to step {view.mode_step}; a fair share is {100 / experts:.2g} %",
            symptoms=("experts_unbalanced",) if severe else (),
            evidence={"module": module, "experts": experts, "share": share / 100, "fair_share": 1 / experts},
        )
