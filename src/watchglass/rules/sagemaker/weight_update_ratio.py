"""WeightUpdateRatio as SageMaker Debugger documents it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class WeightUpdateRatio(Rule):
    """The ratio of an update to its weight is too large or too small.

    Looks at: the root mean square of each update, which the documentation takes between saved steps and which is exact
        here, over that of the weight before it.
    Fires when: the ratio of any weight is above `large_threshold` or below `small_threshold`.
    Usual causes: a learning rate that is too high or too low.
    What to try: a learning rate that brings the ratio near 1e-3.
    Costs: a copy of some parameters at captured steps, within capture_memory_bytes, and statistics of weights.
    Source: SageMaker Debugger documentation.
    """

    needs = (
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), why="to measure each update"),
        Needs(role=Role.WEIGHT, statistics=("rms",), why="to compare the update with the weight"),
    )
    modes = (Mode.TRAIN,)

    large_threshold: float = parameter(10.0, help="ratio above which an update is large", unit="ratio", gt=0)
    small_threshold: float = parameter(1e-8, help="ratio below which an update is small", unit="ratio", ge=0)
    epsilon: float = parameter(1e-9, help="added to the weight, so that it is never zero", ge=0)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most two findings at a TRAIN step with captured updates."""
        updates = view.statistics(Role.UPDATE)
        updates = updates.where(updates.nonfinite == 0)
        weights = view.statistics(Role.WEIGHT)
        size = dict(zip(weights.ids.tolist(), weights.rms.tolist(), strict=True))
        owners = view.catalog.owners(updates.ids).tolist() if len(updates) else []
        known = [(n, size[owner]) for n, owner in enumerate(owners) if owner in size]
        names = [updates.names[n] for n, _ in known]
        with np.errstate(all="ignore"):
            ratios = np.array([updates.rms[n] / (of + self.epsilon) for n, of in known])
        for large, symptom, limit in (
            (True, "update_ratio_extreme", self.large_threshold),
            (False, "update_ratio_small", self.small_threshold),
        ):
            hit = np.flatnonzero(ratios > limit if large else ratios < limit)
            if not len(hit):
                continue
            worst = int(hit[np.argmax(ratios[hit]) if large else np.argmin(ratios[hit])])
            ratio = float(ratios[worst])
            yield self.finding(
                view,
                subject="large" if large else "small",
                tensors=[names[worst]],
                value=ratio,
                limit=limit,
                message=f"the update of {names[worst].rpartition('/')[2]} is {ratio:.3g} times the weight at step "
                f"{view.mode_step}",
                symptoms=(symptom,),
                evidence={**signals.evidence(view), "update_ratio": ratio},
            )

    applicable = staticmethod(signals.without_layers)
