"""OptimizerNeverSteps: backward runs, but no parameter is ever updated."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Severity, UnsteppedBackwards
from watchglass.rules.modern.call_rounds import objects_of, rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class OptimizerNeverSteps(Rule):
    """Backward runs, and neither an optimizer nor the script ever changes a weight.

    Looks at: the number of backwards without an update, which a process reports at its end, and the optimizers that
        the script uses.
    Fires when: at least `min_backwards` backwards ran, and no optimizer stepped in the whole process. It is an error if
        the script has an optimizer, and a warning if it clears gradients of a model in training mode. A script that
        updates parameters itself, or only computes gradients of a model in evaluation mode, is not reported.
    Usual causes: optimizer.step() is missing, or depends on a condition that never holds.
    What to try: call optimizer.step() after backward; with a gradient scaler, call scaler.step(optimizer).
    Costs: the fact calls, below a microsecond per call; the report at the end costs nothing.
    Source: exact; TrainCheck (OSDI 2025); house: `min_backwards`.
    """

    default = True
    needs = (
        Needs(facts=("calls",), optional=True, why="to know the optimizers of the script"),
        Needs(facts=("training_flags",), optional=True, why="to know whether the model is in training mode"),
    )

    min_backwards: int = parameter(8, help="backwards without any update", unit="backwards", ge=1)

    #: Whether any optimizer has stepped, also one of other tensors.
    stepped: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Nothing: the report comes with the last steps."""
        self.stepped = self.stepped or any(rounds_of(fact) for fact in view.facts("calls"))
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """At most one finding, at the end of the process."""
        fact = view.latest_fact(UnsteppedBackwards.KIND)
        found = UnsteppedBackwards.from_fact(fact) if fact is not None else None
        plain = found is not None and found.reason == UnsteppedBackwards.reason
        if found is None or not plain or found.backwards < self.min_backwards:
            return
        if view.train_step > 0 or self.stepped or 2 * found.changes > found.backwards:
            return
        calls, flags = view.latest_fact("calls"), view.latest_fact("training_flags")
        optimizers = list(objects_of(calls, "optimizer").values()) if calls is not None else []
        modules = objects_of(calls, "module") if calls is not None else {}
        if not optimizers and not (modules and flags is not None and flags.data.get("training") is True):
            return
        kind = optimizers[0].get("type") if optimizers else None
        yield self.finding(
            view,
            severity=Severity.ERROR if optimizers else Severity.WARNING,
            subject="no update",
            value=float(found.backwards),
            limit=float(self.min_backwards),
            message=f"backward ran {found.backwards:,} times, and {kind or 'an optimizer'} never stepped: no weight "
            "has changed",
            symptoms=("never_stepped",),
            evidence={"backwards": found.backwards, **({"optimizer": kind} if isinstance(kind, str) else {})},
        )
