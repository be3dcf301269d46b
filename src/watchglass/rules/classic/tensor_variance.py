"""TensorVariance: the variance of a tensor is outside given limits, or that of a normalised signal is far from 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import Statistics, StepView


class TensorVariance(Rule):
    """The variance of a tensor is above or below given limits.

    Looks at: the variance of each captured tensor of training.
    Fires when: the variance is above `max_threshold` or below `min_threshold`; neither is set by default. Without both,
        the rule reports a normalisation layer whose output has a standard deviation outside `low` to `high`, as an
        `info`, because a layer may learn such a scale.
    Usual causes: a learning rate that is too high, initial weights of the wrong scale, inputs that are not normalised.
    What to try: a lower learning rate, an initialisation that fits the layer, normalised inputs.
    Costs: nothing beyond the statistics that are captured by default.
    Source: both thresholds: SageMaker Debugger documentation; 0.5 to 2 for normalised activations: TheDeepChecker.
    """

    needs = (Needs(statistics=("variance", "std", "count"), why="to see variances"),)
    calibrations: ClassVar = {"sagemaker": {"max_threshold": None, "min_threshold": None, "low": 0.0, "high": None}}

    max_threshold: float | None = parameter(None, help="largest variance", ge=0)
    min_threshold: float | None = parameter(None, help="smallest variance", ge=0)
    name_regex: str | None = parameter(None, help="only tensors whose name contains a match of this")
    low: float = parameter(0.5, help="smallest standard deviation of a normalised output", ge=0)
    high: float | None = parameter(2.0, help="largest standard deviation of a normalised output", gt=0)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding for each limit."""
        if view.mode is not Mode.TRAIN or not view.captured:
            return
        if self.max_threshold is not None or self.min_threshold is not None:
            rows = view.statistics(name_regex=self.name_regex)
            if self.max_threshold is not None:
                yield from self._beyond(
                    view, rows.where(rows.variance > self.max_threshold), self.max_threshold, "above"
                )
            if self.min_threshold is not None:
                low = (rows.variance < self.min_threshold) & (rows.count > 1)
                yield from self._beyond(view, rows.where(low), self.min_threshold, "below")
            return
        rows = view.statistics(Role.OUTPUT, module_kinds=(ModuleKind.NORMALIZATION,), name_regex=self.name_regex)
        off = rows.where(((rows.std < self.low) | (rows.std > (self.high or np.inf))) & (rows.count > 1))
        if len(off):
            yield self.finding(
                view,
                severity=Severity.INFO,
                subject="normalised outputs",
                tensors=off.names[:16],
                value=float(off.std[0]),
                limit=self.low if off.std[0] < self.low else self.high,
                message=f"the standard deviation of {off.names[0]} is {off.std[0]:.3g} at step {view.mode_step}, "
                "although a normalisation made it",
            )

    applicable = staticmethod(signals.without_layers)

    def _beyond(self, view: StepView, rows: Statistics, limit: float, side: str) -> Iterable[Finding]:
        if not len(rows):
            return
        worst = int(np.argmax(rows.variance) if side == "above" else np.argmin(rows.variance))
        name, variance = rows.names[worst], float(rows.variance[worst])
        more = f", and that of {len(rows) - 1} more" if len(rows) > 1 else ""
        yield self.finding(
            view,
            subject=side,
            tensors=[name, *(other for other in rows.names if other != name)][:16],
            value=variance,
            limit=limit,
            message=f"the variance of {name} is {variance:.3g} at step {view.mode_step}, {side} {limit:.3g}{more}",
            symptoms=("variance_above_limit" if side == "above" else "variance_below_limit",),
            evidence=signals.optimizer_evidence(view),
        )
