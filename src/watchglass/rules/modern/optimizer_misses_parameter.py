"""OptimizerMissesParameter: parameters with a gradient that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class OptimizerMissesParameter(Rule):
    """Trainable parameters that get gradients, and that no optimizer holds.

    Looks at: the parameters of the optimizers, and statistics of weights.
    Fires when: an optimizer holds other parameters of the same model, and a parameter that has a gradient and that no
        optimizer holds did not change in `patience` captures, as far as it is captured. Frozen parameters, models that
        only pass gradients on (a discriminator, a perceptual loss), and weights that the script updates itself are not
        reported.
    Usual causes: layers added after the optimizer was made, a plain list of modules instead of a ModuleList, a wrong
        filter.
    What to try: build the optimizer from model.parameters(), after the last change of the model; with
        requires_grad=False, freeze parameters that should not change.
    Costs: the fact membership, a microsecond per parameter at a handful of steps; statistics of weights.
    Source: exact; TrainCheck (OSDI 2025); house: `patience`.
    """

    default = True
    needs = (
        Needs(facts=("membership",), why="to see which parameters the optimizers hold"),
        Needs(role=Role.WEIGHT, statistics=("l2", "sum"), why="to see that they do not change"),
    )

    patience: int = parameter(4, help="captures in which such a weight is the same", unit="captures", ge=1)

    #: Of the latest record: names, and how many there are.
    names: list[str] = state(list)
    total: int = state(int)
    #: By name the last norm and sum of the weight, and captures with these.
    seen: dict[str, list[Any]] = state(dict)
    #: Weights that have changed although no optimizer holds them.
    moved: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        for fact in view.facts("membership"):
            self._take(fact.data.get("left_out_beside"))
        if view.mode is not Mode.TRAIN or not self.names or not view.captured:
            return
        weights = view.statistics(Role.WEIGHT)
        columns = zip(weights.names, weights.l2.tolist(), weights.sum.tolist(), strict=True)
        values = {name: [norm, total] for name, norm, total in columns}
        trained = {name.rpartition(".")[0] for name in values}
        for name in self.names:
            # Biases are not captured by default: that no optimizer holds one is exact where its module is trained.
            if name in self.moved or (name not in values and name.rpartition(".")[0] not in trained):
                continue
            value = values.get(name)
            before = self.seen.get(name)
            if before is not None and None not in (before[0], value) and before[0] != value:
                self.moved.append(name)
                self.seen.pop(name)
                continue
            self.seen[name] = [value, before[1] + 1 if before is not None else 1]
        known = {name: seen for name, seen in self.seen.items() if seen[0] is not None or not self.moved}
        missed = [name for name in self.names if name in known and known[name][1] >= self.patience]
        if not missed:
            return
        total = self.total - len(self.moved)
        value, captures = self.seen[missed[0]]
        unchanged = "" if value is None else f": unchanged in {captures} captures up to step {view.mode_step}"
        others = f" and {total - 1} more" if total > 1 else ""
        yield self.finding(
            view,
            severity=Severity.WARNING,
            subject="not in any optimizer",
            tensors=missed[:16],
            value=float(total),
            limit=0.0,
            message=f"no optimizer holds {missed[0]}{others}, although backward computes gradients of "
            f"{'them' if total > 1 else 'it'}{unchanged}",
            symptoms=("parameter_without_optimizer",),
        )

    def _take(self, left_out: Any) -> None:
        if isinstance(left_out, dict):
            self.names, self.total = list(left_out["names"]), left_out["count"]
            self.seen = {name: seen for name, seen in self.seen.items() if name in self.names}
            self.moved = [name for name in self.moved if name in self.names]
