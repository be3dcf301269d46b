"""OptimizerForeignParameter: an optimizer updates parameters of no model that is called."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.records import Finding, Severity, facts
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView


class OptimizerForeignParameter(Rule):
    """An optimizer steps, and its parameters belong to no model that is called.

    Looks at: the parameters of the optimizer that has just stepped, and whether these have gradients.
    Fires when: some of its parameters belong to no model that was called, and none of these has a gradient: an `info`.
        It is an `error` if this holds for all of its parameters, and parameters with gradients are in no optimizer at
        the same time. Free tensors with gradients (an image, a prompt, weights of losses) are not reported.
    Usual causes: the model was copied, loaded or created again after the optimizer; the optimizer belongs to another
        model.
    What to try: make the optimizer after the model has its final form.
    Costs: the fact membership, a microsecond per parameter at a handful of steps and when an optimizer or what is
        frozen changes.
    Source: exact: an update without gradients changes nothing; TrainCheck (OSDI 2025).
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("membership",), optional=True, why="to see whose parameters the optimizers hold"),)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a step with a new record."""
        for fact in view.facts(facts.Membership):
            held = fact.of_stepped
            if held is not None and held.foreign and not held.foreign_with_gradient:
                yield self._foreign(view, fact.stepped, held, fact.left_out_with_gradient)

    def _foreign(self, view: StepView, name: str, held: facts.HeldParameters, left_out: int) -> Finding:
        foreign, every = held.foreign, held.parameters
        stale = foreign == every and left_out > 0
        which = f"all {every}" if foreign == every else f"{foreign} of {every}"
        other = f", while {left_out} parameters of the model have gradients and no optimizer" if stale else ""
        return self.finding(
            view,
            severity=Severity.ERROR if stale else Severity.INFO,
            subject=name,
            value=float(foreign),
            limit=0.0,
            message=f"{which} parameters of {name} ({held.type}) belong to no model that is called, and have no "
            f"gradients{other}",
            symptoms=("foreign_parameters_stepped",),
            evidence={"optimizer": held.type, "shapes": [list(shape) for shape in held.foreign_shapes[:8]]},
        )
