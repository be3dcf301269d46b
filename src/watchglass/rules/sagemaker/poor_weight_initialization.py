"""PoorWeightInitialization as SageMaker Debugger documents it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import Statistics, StepView

_ACTIVATIONS = (ModuleKind.RECTIFIER, ModuleKind.SATURATING, ModuleKind.ACTIVATION)


class PoorWeightInitialization(Rule):
    """In the first steps variances differ between layers, gradients have no spread, or the loss does not fall.

    Looks at: the first `steps` steps: the variance of the inputs of activations and of weights, the distribution of
        gradients, the loss.
    Fires when: the largest variance of a layer exceeds `threshold` times the smallest one. Or the range from the 5th to
        the 95th percentile of some gradient is below `distribution_range`. Or the loss does not fall below its lowest
        value in `patience` steps in a row.
    Usual causes: weights filled with a constant, an initialisation written for another layer size.
    What to try: Kaiming initialisation for ReLU, Xavier for tanh; only biases with a constant.
    Costs: statistics of weights and of inputs of activations, histograms of gradients.
    Source: SageMaker Debugger documentation. It names the variance of activation inputs in one place and that of
        weights in another: both are compared.
    """

    needs = (
        Needs(role=Role.WEIGHT, statistics=("std", "nonfinite"), why="to compare the variances of layers"),
        Needs(
            role=Role.INPUT, module_kinds=_ACTIVATIONS, statistics=("std", "nonfinite"), optional=True,
            why="to compare the variances of layers",
        ),
        Needs(role=Role.GRADIENT, statistics=("histogram", "nonfinite"), optional=True, why="to see their range"),
        Needs(scalars=("loss",), optional=True, why="to see whether it falls"),
    )  # fmt: skip

    threshold: float = parameter(10.0, help="largest over smallest variance of layers", unit="ratio", gt=0)
    distribution_range: float = parameter(0.001, help="smallest range from the 5th to the 95th percentile", ge=0)
    patience: int = parameter(5, help="steps in a row without a lower loss", unit="steps", ge=1)
    steps: int = parameter(10, help="number of first steps that count", unit="steps", ge=1)

    lowest: float = state(lambda: math.inf)
    without: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of the first steps."""
        if view.mode is not Mode.TRAIN or view.model_step >= self.steps:
            return
        for what, rows in (
            ("weights", view.statistics(Role.WEIGHT, min_dims=2)),
            ("inputs of activations", view.statistics(Role.INPUT, module_kinds=_ACTIVATIONS)),
        ):
            yield from self._variances(view, what, rows.where(rows.nonfinite == 0))
        gradients = view.statistics(Role.GRADIENT)
        yield from self._ranges(view, gradients.where(gradients.nonfinite == 0))
        yield from self._loss(view)

    def _variances(self, view: StepView, what: str, rows: Statistics) -> Iterable[Finding]:
        if len(rows) < 2:
            return
        variance = rows.std**2
        least, most = int(np.argmin(variance)), int(np.argmax(variance))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = float(np.nan_to_num(variance[most] / variance[least], nan=1.0, posinf=1e300))
        if ratio > self.threshold:
            yield self.finding(
                view, subject=what, tensors=[rows.names[most], rows.names[least]],
                value=ratio, limit=self.threshold,
                message=f"the variances of {what} differ {ratio:.3g}-fold between {rows.names[least]} and "
                f"{rows.names[most]} at step {view.mode_step}",
                symptoms=("activations_over_depth",),
            )  # fmt: skip

    def _ranges(self, view: StepView, gradients: Statistics) -> Iterable[Finding]:
        if not len(gradients):
            return
        ranges = gradients.quantile(0.95) - gradients.quantile(0.05)
        least = int(np.argmin(np.nan_to_num(ranges, nan=np.inf)))
        if ranges[least] < self.distribution_range:
            yield self.finding(
                view, subject="gradients", tensors=[gradients.names[least]],
                value=float(ranges[least]), limit=self.distribution_range,
                message=f"90 % of {gradients.names[least]} lie within {ranges[least]:.2g} at step {view.mode_step}",
                symptoms=("vanishing_everywhere",),
            )  # fmt: skip

    def _loss(self, view: StepView) -> Iterable[Finding]:
        loss = signals.loss(view)
        if loss is None or not math.isfinite(loss):
            return
        self.without = 0 if loss < self.lowest else self.without + view.covers
        self.lowest = min(self.lowest, loss)
        if self.without >= self.patience:
            yield self.finding(
                view, subject="loss", tensors=[signals.loss_name(view) or "loss"],
                value=float(self.without), limit=float(self.patience),
                message=f"the loss has not fallen below {self.lowest:.4g} in {self.without} steps up to step "
                f"{view.mode_step}",
                symptoms=("loss_flat",), evidence=signals.evidence(view),
            )  # fmt: skip
