"""RouterLogits: the logits of a router grow beyond what its softmax resolves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

_MARK = ".router_logits"


class RouterLogits(Rule):
    """The logits of a router in a mixture of experts grow beyond what half precision resolves.

    Looks at: the logits of each router at captured steps.
    Fires when: in `window` captures in a row the largest absolute logit is above `limit` and above `growth` times its
        value at the first capture: `warning`.
    Usual causes: no z-loss on the router, a learning rate that is too high for it.
    What to try: a z-loss on the router, 1e-3 times the mean of its squared log-sum-exp; compute the router in float32.
    Costs: nothing without a router; else one read of its logits at captured steps.
    Source: Zoph et al., ST-MoE (2202.08906), 3.2 and appendix C, on rounding of large router logits; house: `limit`
        (from 64 on, neighbouring numbers of bfloat16 are 0.5 apart), `growth`, `window`.
    """

    needs = (
        Needs(collection="router", statistics=("min", "max"), optional=True, why="to see the logits of routers"),
        Needs(scalars=("loss",), optional=True, why="to report the loss"),
    )
    modes = (Mode.TRAIN,)

    limit: float = parameter(64.0, help="largest absolute logit that is fine", gt=0)
    growth: float = parameter(2.0, help="growth since the first capture", unit="ratio", ge=1)
    window: int = parameter(3, help="captures in a row", unit="captures", ge=1)

    #: By tensor: largest absolute logit at the first capture, and captures in a row above the limit.
    first: dict[str, float] = state(dict)
    above: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each router."""
        rows = view.statistics(collection="router", name_regex=r"\.router_logits$")
        largest = np.maximum(np.abs(rows.min), np.abs(rows.max))
        for name, value in zip(rows.names, largest.tolist(), strict=True):
            if not np.isfinite(value):
                continue
            limit = max(self.limit, self.growth * self.first.setdefault(name, value))
            if self.above.follow(view.mode_step, value > limit, name) >= self.window:
                yield self.finding(
                    view,
                    tensors=[name],
                    value=value,
                    limit=limit,
                    message=f"the largest logit of router {name.removesuffix(_MARK)} is {value:.4g} at step "
                    f"{view.mode_step}, after {self.first[name]:.3g} at the first capture",
                    symptoms=("router_logits_large",),
                    evidence={"module": name.removesuffix(_MARK), **signals.evidence(view)},
                    since=self.above.since(name),
                )

    def applicable(self, view: StepView) -> str:
        """Not for models without routers."""
        return "" if self.first else "no router of a mixture of experts was captured"
