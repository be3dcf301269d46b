"""OptimizerNeverSteps: backward runs, but an optimizer never updates its parameters."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Severity, facts
from watchglass.rules.modern.call_rounds import rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Parameters of a backward that are remembered.
_MOST_IDLE = 16
#: Readings of the graph that are enough where a run ends: a slow one has few.
_FEWEST = 2


class OptimizerNeverSteps(Rule):
    """Backward computes gradients, and an optimizer that holds their weights never steps.

    Looks at: the number of backwards without an update, which a process reports at its end; the optimizers that the
        script uses; and the weights that backwards reach, with the optimizers that hold them.
    Fires when: at least `min_backwards` backwards ran, and no optimizer stepped in the whole process. It is an error if
        the script calls an optimizer or has one of a model in training mode, and a warning if it only clears gradients
        of such a model. A script that updates parameters itself, or only computes gradients of a model in evaluation
        mode, is not reported. Or some optimizers stepped, and another one has not until half of the planned steps, or
        until the run ends, although `looks` readings of the graph (two, if the run ends) found gradients of weights in
        training mode that only it holds: a warning. Or after the last step came eight times as many backwards as there
        were steps, and as the most for one step: a warning.
    Usual causes: optimizer.step() is missing, is called on another optimizer, or depends on a condition that never
        holds.
    What to try: call optimizer.step() after backward; with a gradient scaler, call scaler.step(optimizer).
    Costs: the fact calls, below a microsecond per call; the fact unheld_parameters; the report at the end costs
        nothing.
    Source: exact; TrainCheck (OSDI 2025); house: `min_backwards`, `looks`, eight times.
    """

    needs = (
        Needs(facts=("calls",), optional=True, why="to know the optimizers of the script"),
        Needs(facts=("training_flags",), optional=True, why="to know whether the model is in training mode"),
        Needs(facts=("unheld_parameters",), optional=True, why="to find one of several optimizers that never steps"),
    )

    min_backwards: int = parameter(8, help="backwards without any update", unit="backwards", ge=1)
    looks: int = parameter(3, help="readings of the graph that find weights of an optimizer that has not stepped", ge=2)

    #: Whether any optimizer has stepped, also one of other tensors.
    stepped: bool = state(bool)
    #: By backward of a step, the weights that it reaches and that optimizers hold that have not stepped.
    idle: dict[int, list[facts.ReachedParameter]] = state(dict)
    #: Names of optimizers of such weights that have stepped later.
    late: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding per optimizer, from half of the planned steps on."""
        self.stepped = self.stepped or any(rounds_of(fact) for fact in view.facts(facts.Calls))
        for reached in view.facts(facts.ReachedParameters):
            self._take(reached)
        planned = view.latest_fact(facts.PlannedSteps)
        steps = planned.steps if planned is not None else None
        if steps is not None and 2 * view.model_step >= steps:
            yield from self._idle_ones(view, self.looks)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement, with the report of the process."""
        yield from self._idle_ones(view, min(self.looks, _FEWEST))
        found = view.latest_fact(facts.UnsteppedBackwards)
        if found is None or found.backwards < self.min_backwards:
            return
        calls, flags = view.latest_fact(facts.Calls), view.latest_fact(facts.TrainingFlags)
        optimizers = list(calls.objects_of("optimizer").values()) if calls is not None else []
        kind = optimizers[0].type if optimizers else found.optimizer or None
        if found.steps:
            yield self._stopped(view, found, kind)
            return
        plain = found.reason == facts.UnsteppedBackwards.reason
        if not plain or view.train_step > 0 or self.stepped or 2 * found.changes > found.backwards:
            return
        modules = calls.objects_of("module") if calls is not None else {}
        trains = flags is not None and flags.training is True
        if not kind and not (trains and modules):
            return
        yield self.finding(
            view,
            severity=Severity.ERROR if kind else Severity.WARNING,
            subject="no update",
            value=float(found.backwards),
            limit=float(self.min_backwards),
            message=f"backward ran {found.backwards:,} times, and {kind or 'an optimizer'} never stepped: no weight "
            "has changed",
            symptoms=("never_stepped",),
            evidence={"backwards": found.backwards, **({"optimizer": kind} if isinstance(kind, str) else {})},
        )

    def _take(self, reached: facts.ReachedParameters) -> None:
        """Take a reading of the graph, or that an optimizer has stepped for the first time."""
        if reached.stepped is not None:
            self.late.append(reached.stepped)
            return
        held = [each for each in reached.parameters if each.optimizer is not None and each.training]
        self.idle[reached.backward] = held[:_MOST_IDLE]

    def _idle_ones(self, view: StepView, looks: int) -> Iterable[Finding]:
        """A finding about each of several optimizers that has not stepped."""
        rows: dict[str, list[facts.ReachedParameter]] = {}
        for row in chain.from_iterable(self.idle.values()):
            if row.looks >= looks and row.optimizer is not None and row.optimizer not in self.late:
                rows.setdefault(row.optimizer, []).append(row)
        for name, held in rows.items():
            first = held[0]
            what = first.full_name
            yield self.finding(
                view,
                subject=name,
                tensors=[what] if first.owner else [],
                value=float(first.looks),
                limit=float(looks),
                message=f"{name} ({first.optimizer_type}) has never stepped, up to step {view.mode_step}, while "
                f"another optimizer has: backward computes gradients of {what} of shape {[*first.shape]}, which it "
                "holds and which has not changed",
                symptoms=("one_never_stepped",),
                evidence={"optimizer": first.optimizer_type, "optimizer_name": name, "shape": [*first.shape]},
            )

    def _stopped(self, view: StepView, found: facts.UnsteppedBackwards, kind: Any) -> Finding:
        steps = "one step" if found.steps == 1 else f"{found.steps:,} steps"
        return self.finding(
            view,
            subject="no further update",
            value=float(found.backwards),
            limit=float(found.steps),
            message=f"backward ran {found.backwards:,} times after the last of {steps} of {kind or 'the optimizer'}, "
            "and no weight was updated any more",
            symptoms=("never_stepped",),
            evidence={"backwards": found.backwards, **({"optimizer": kind} if isinstance(kind, str) else {})},
        )
