"""VanishingGradient as SageMaker Debugger documents it."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class VanishingGradient(Rule):
    """The mean absolute value of a gradient is almost zero.

    Looks at: gradients.
    Fires when: the mean absolute value of any gradient is below `threshold` at a captured step.
    Usual causes: many sigmoid or tanh layers, poor initialisation without normalisation, dead ReLU layers.
    What to try: ReLU-like activations, normalisation, residual connections.
    Costs: statistics of gradients at captured steps.
    Source: SageMaker Debugger documentation.
    """

    needs = (Needs(role=Role.GRADIENT, statistics=("abs_mean", "nonfinite"), why="to see their means"),)
    modes = (Mode.TRAIN,)

    threshold: float = parameter(1e-7, help="mean absolute value below which a gradient vanishes", ge=0)

    def check(self, view: StepView) -> Iterable[Finding]:
        """One finding at a step with vanishing gradients."""
        gradients = view.statistics(Role.GRADIENT)
        small = gradients.where((gradients.nonfinite == 0) & (gradients.abs_mean < self.threshold))
        if not len(small):
            return
        least = float(small.abs_mean.min())
        whose = "the gradient is" if len(gradients) == 1 else f"{len(small)} of {len(gradients)} gradients are"
        yield self.finding(
            view,
            subject="gradients",
            tensors=small.names[:16],
            value=least,
            limit=self.threshold,
            message=f"{whose} almost zero at step {view.mode_step}: {small.names[0]} is "
            f"{float(small.abs_mean[0]):.2g} in mean absolute value",
            symptoms=("vanishing_everywhere" if least > 0 else "gradients_exactly_zero",),
        )

    applicable = staticmethod(signals.without_layers)
