"""UnusedParameter: an optimizer holds trainable parameters that never get a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import Statistics, StepView


class UnusedParameter(Rule):
    """An optimizer holds trainable parameters that never get a gradient.

    Looks at: the parameters without a gradient of the optimizer that has just stepped, and captured gradients.
    Fires when: a parameter has no gradient in `patience` captures with gradients: an `info`. At the end of the run, or
        after half of the planned steps, it is a `warning` if these are the first layers of the model: the graph is cut
        after them. Other unused parameters (a head that another task trains, a pooler) stay `info`. Frozen parameters,
        and those that got a gradient at any capture, are not reported.
    Usual causes: detach(), no_grad(), .data or NumPy between these layers and the loss; a branch that is not used.
    What to try: look for these calls after the first layers; set requires_grad=False where it is intended.
    Costs: the fact membership, a microsecond per parameter at a handful of steps; statistics of gradients.
    Source: exact; TrainCheck (OSDI 2025); house: `patience`, and the first layers.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("membership",), why="to see which parameters have no gradient"),
        Needs(role=Role.GRADIENT, statistics=("l2",), why="to see that others have"),
        Needs(role=Role.WEIGHT, statistics=("l2",), optional=True, why="to know the order of the layers"),
    )

    patience: int = parameter(8, help="captures with gradients of other parameters", unit="captures", ge=1)

    unused: list[str] = state(list)
    #: Unused parameters that are not among the named ones.
    unnamed: int = state(int)
    #: Parameters that had a gradient.
    used: dict[str, bool] = state(dict)
    #: Trainable weights, first layer first.
    layers: list[str] = state(list)
    captures: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        for membership in view.facts(facts.Membership):
            if (without := membership.without_gradient) is not None:
                self.unused, self.unnamed = list(without.names), without.count - len(without.names)
        if view.mode is not Mode.TRAIN or not view.captured:
            return
        gradients = view.statistics(Role.GRADIENT)
        if not len(gradients):
            return
        self.captures += 1
        self.used.update(gradients.group.answers.get("used", lambda: _used(gradients)))
        weights = view.statistics(Role.WEIGHT).in_layer_order()
        if len(weights) > len(self.layers):
            self.layers = [info.name for info in weights.tensors if info.trainable and info.layer_index >= 0]
        if self.captures >= self.patience:
            planned = view.latest_fact(facts.PlannedSteps)
            steps = planned.steps if planned is not None else None
            yield from self._judge(view, late=steps is not None and 2 * view.model_step >= steps)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement."""
        if self.captures >= self.patience:
            yield from self._judge(view, late=True)

    def _judge(self, view: StepView, *, late: bool) -> Iterable[Finding]:
        unused = [name for name in self.unused if name not in self.used]
        if not unused:
            return
        first = list(takewhile(set(unused).__contains__, self.layers))
        names, total = first or unused, len(unused) + self.unnamed
        others = f" and {total - 1} more" if total > 1 else ""
        where = "; they are the first layers, so the graph is cut after them" if first else ""
        yield self.finding(
            view,
            severity=Severity.WARNING if first and late else Severity.INFO,
            subject="no gradient",
            tensors=names[:16],
            value=float(total),
            limit=0.0,
            message=f"{names[0]}{others} never got a gradient in {self.captures} captures up to step "
            f"{view.mode_step}{where}",
            symptoms=("first_layers_cut_off",) if first else ("no_gradient",),
        )


def _used(gradients: Statistics) -> dict[str, bool]:
    """The parameters of these gradients, as :attr:`UnusedParameter.used` has them."""
    return {name.removeprefix("gradient/"): True for name in gradients.names}
