"""LossShape: predictions and targets broadcast against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.records import Finding, Mode, Severity, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class LossShape(Rule):
    """The predictions and targets of a loss broadcast to a shape that is larger than either.

    Looks at: the shapes of both, in the loss functions that compare element by element.
    Fires when: their common shape has more elements than each of them, and they differ in the number of axes. It is an
        `error` where the shapes differ only in axes of size 1, as (64, 1) and (64): each prediction is compared with
        every target. With equal numbers of axes, as (64, 1, 51) and (64, 51, 1), the script has arranged the pairs on
        purpose: an `info`.
    Usual causes: a last axis of size 1 that the targets lack, a forgotten squeeze or unsqueeze.
    What to try: give both the same shape.
    Costs: a few microseconds per loss function that is called at a captured step.
    Source: exact; the warning of torch.nn.functional.mse_loss about unequal sizes.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("loss_call",), why="to compare shapes"),)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a step at which a loss was first called in this way."""
        if view.mode is Mode.TRAIN:
            for call in view.facts(facts.ComputedLoss):
                yield from self._judged(view, call)

    def _judged(self, view: StepView, call: facts.ComputedLoss) -> Iterable[Finding]:
        predictions, target, together = call.predictions, call.target, call.broadcast
        if not (together and predictions and target):
            return
        on_purpose = len(predictions) == len(target)
        pairs = [size for size in predictions if size != 1] == [size for size in target if size != 1]
        severity = Severity.INFO if on_purpose else Severity.ERROR if pairs else Severity.WARNING
        each = "each prediction is compared with every target" if pairs else "values are compared with several others"
        yield self.finding(
            view,
            severity=severity,
            subject=call.function,
            value=float(math.prod(together)),
            limit=float(max(math.prod(predictions), math.prod(target))),
            message=f"{call.function} compares predictions of shape {predictions} with targets of shape {target} as "
            f"{together} at step {view.mode_step}: {each}",
            symptoms=() if on_purpose else ("loss_shapes_broadcast",),
            evidence={
                "function": call.function,
                "prediction_shape": str(predictions),
                "target_shape": str(target),
            },
        )
