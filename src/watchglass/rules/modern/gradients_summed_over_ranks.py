"""GradientsSummedOverRanks: ranks sum their gradients without dividing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts
from watchglass.rules.modern.rank_average import Average, average, samples
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import JointStep, StepView

#: Optimizers whose updates hardly depend on the scale of all gradients.
_SCALE_FREE = ("Adam", "Lion", "Rprop", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Muon", "Lamb", "Lars")


class GradientsSummedOverRanks(Rule):
    """Ranks sum their gradients without dividing, so updates grow with the number of ranks.

    Looks at: some elements of a gradient as each rank computes it and as its optimizer uses it; the loss that backward
        starts from and the value of its loss function.
    Fires when: in `patience` captures in a row all ranks use the sum of their gradients, of losses that nothing divides
        by the number of ranks. It is an `info` if the optimizer does not depend on the scale of gradients (Adam).
    Usual causes: a direct call of all_reduce, whose default operation is the sum.
    What to try: divide by the number of ranks after all_reduce, or use DistributedDataParallel.
    Costs: nothing with one process; with several, a copy of 16 elements of a gradient at captured steps.
    Source: exact; documentation of torch.distributed.all_reduce; house: `patience`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("rank_gradients",), optional=True, why="to see how gradients are averaged"),
        Needs(scalars=("loss",), optional=True, why="to see whether the loss is divided by the number of ranks"),
        Needs(facts=("loss_call",), optional=True, why="to know losses that are sums"),
        Needs(facts=("membership",), optional=True, why="to know the optimizer"),
    )

    patience: int = parameter(2, help="captures in a row", unit="captures", ge=1)

    sums: Streaks = state(Streaks)
    known: bool = state(bool)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """At most one finding at a step."""
        if step.mode is not Mode.TRAIN or len(step.views) < 2:
            return
        kind = average(step)
        self.known = self.known or kind is not None
        if kind is None or not all(map(_is_mean, step.views)):
            return
        if self.sums.follow(step.mode_step, kind is Average.SUM) < self.patience:
            return
        ranks = len(step.views)
        yield self.finding(
            step,
            severity=Severity.INFO if all(map(_scale_free, step.views)) else Severity.WARNING,
            subject="gradients",
            tensors=[f"gradient/{samples(step)[0].parameter}"],
            value=float(ranks),
            limit=1.0,
            message=f"all {ranks} ranks use the sum of their gradients, {ranks} times the mean over the samples of all "
            "ranks",
            symptoms=("gradients_summed",),
            evidence={"ranks": ranks},
            since=self.sums.since(),
        )

    def applicable(self, step: JointStep) -> str:
        """A reason where nothing shows how ranks combine gradients."""
        if len(step.views) < 2:
            return "the run has one rank"
        return "" if self.known else "no gradient was captured on all ranks before and after their average"


def _is_mean(view: StepView) -> bool:
    """Whether the loss that backward starts from is what a loss function returned, and that is a mean."""
    loss, call = view.scalar("loss"), view.latest_fact(facts.ComputedLoss)
    if loss is None or (call is not None and call.reduction == "sum"):
        return False
    parts = [value for name, value in view.scalars(Role.LOSS).items() if name.startswith("loss/")]
    return any(math.isclose(loss, value, rel_tol=1e-3) for value in parts)


def _scale_free(view: StepView) -> bool:
    membership = view.latest_fact(facts.Membership)
    names = [held.type for held in membership.optimizers.values()] if membership is not None else []
    return bool(names) and all(any(kind.lower() in name.lower() for kind in _SCALE_FREE) for name in names)
