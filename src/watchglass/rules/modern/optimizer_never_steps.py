"""OptimizerNeverSteps: backward runs, and nothing is ever updated."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Severity, UnsteppedBackwards
from watchglass.rules.modern.call_rounds import SHARED, objects_of, rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class OptimizerNeverSteps(Rule):
    """Backward runs, and neither an optimizer nor the script ever changes a weight.

    Looks at: the number of backwards without an update, which a process reports at its end, and the optimizers that
        the script uses.
    Fires when: at least `min_backwards` backwards ran, and no optimizer stepped in the whole process. It is an error
        if the script has an optimizer, and a warning if it clears gradients of a model in training mode. A script that
        updates parameters itself, or only computes gradients of a model in evaluation mode, is no finding. A warning
        also where one of several optimizers clears gradients in each round and never steps in the whole run.
    Usual causes: optimizer.step() was left out, or is behind a condition that never holds.
    What to try: call optimizer.step() after backward; with a gradient scaler scaler.step(optimizer).
    Costs: the fact calls, below a microsecond per call; the report at the end costs nothing.
    Source: exact; RULES.md, Modern; house: `min_backwards`.
    """

    default = True
    needs = (
        Needs(facts=("calls",), optional=True, why="to know the optimizers of the script"),
        Needs(facts=("membership",), optional=True, why="to see whether optimizers share parameters"),
        Needs(facts=("training_flags",), optional=True, why="to know whether the model is in training mode"),
    )

    min_backwards: int = parameter(8, help="backwards without any update", unit="backwards", ge=1)

    #: Names of the optimizers that have stepped, also those of other tensors.
    stepped: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Nothing: the report comes with the last steps."""
        rounds = [each for fact in view.facts("calls") for each in rounds_of(fact)]
        self.stepped = list(dict.fromkeys([*self.stepped, *(name for each in rounds for name in each.stepped())]))
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """Findings at the end of the process: of all optimizers, or of one of several."""
        yield from self._idle(view)
        yield from self._none(view)

    def _idle(self, view: StepView) -> Iterable[Finding]:
        """An optimizer that clears gradients between the updates of another one, and never steps."""
        calls, membership = view.latest_fact("calls"), view.latest_fact("membership")
        if calls is None or not self.stepped or view.train_step < self.min_backwards:
            return
        # A wrapper (SAM, Lookahead) has the parameters of the optimizer that steps for it.
        if membership is None or membership.data.get("twice", {}).get("count") != 0:
            return
        rounds = rounds_of(calls)
        # Another model may have steps that this one's view has not seen.
        stepped = {*self.stepped, *(name for each in rounds for name in each.stepped())}
        for name, row in objects_of(calls, "optimizer").items():
            clears = bool(rounds) and all(f"{name}.zero_grad" in each.calls for each in rounds)
            if name in stepped or name.endswith(SHARED) or not clears:
                continue
            yield self.finding(
                view,
                severity=Severity.WARNING,
                subject=name,
                value=float(view.train_step),
                limit=float(self.min_backwards),
                message=f"{name} ({row.get('type')}) clears gradients in each round and never stepped in "
                f"{view.train_step + 1:,} steps of {self.stepped[0]}",
                symptoms=("never_stepped",),
                evidence={"optimizer": str(row.get("type"))},
            )

    def _none(self, view: StepView) -> Iterable[Finding]:
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
