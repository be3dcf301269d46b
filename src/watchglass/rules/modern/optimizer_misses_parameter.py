"""OptimizerMissesParameter: parameters with a gradient that no optimizer holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, facts
from watchglass.rules.fresh_weights import initialization_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import Statistics, StepView

#: Captures with the same values that are enough where a run ends.
_FEWEST = 2


class OptimizerMissesParameter(Rule):
    """Trainable parameters get gradients, but no optimizer holds them.

    Looks at: the parameters of the optimizers, statistics of weights, and the parameters that backwards reach.
    Fires when: an optimizer holds other parameters of the same model, and a parameter that has a gradient and that no
        optimizer holds did not change in `patience` captures, or in two and the run ends, as far as it is captured.
        Where it was frozen before, at the end of the run no capture need show it since then. One capture is enough if
        nothing that the optimizer holds can change. In other modules in
        training mode: a parameter with the same values in `looks` readings of the graph, if most weights of its module
        look freshly initialised. Frozen parameters, pretrained modules, models that only pass gradients on (a
        discriminator, a perceptual loss), and weights that the script updates itself are not reported.
    Usual causes: layers added after the optimizer was made, a plain list of modules instead of a ModuleList, a wrong
        filter, a second module or parameters of the loss that were forgotten.
    What to try: build the optimizer from model.parameters(), after the last change of the model; with
        requires_grad=False, freeze parameters that should not change.
    Costs: the fact membership, a microsecond per parameter at captured steps; statistics of weights.
    Source: exact; TrainCheck (OSDI 2025); house: `patience`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("membership",), why="to see which parameters the optimizers hold"),
        Needs(role=Role.WEIGHT, statistics=("l2", "sum"), why="to see that they do not change"),
        Needs(facts=("unheld_parameters",), optional=True, why="to see parameters that are no part of a trained model"),
    )

    patience: int = parameter(4, help="captures in which such a weight is the same", unit="captures", ge=1)
    looks: int = parameter(3, help="readings of the graph that find such parameters with the same values", ge=2)

    #: Of the latest record: names, and how many there are.
    names: list[str] = state(list)
    total: int = state(int)
    #: By name the last norm and sum of the weight, and captures with these.
    seen: dict[str, list[Any]] = state(dict)
    #: The latest of these captures.
    last: int = state(int)
    #: Norm and sum of frozen weights, at their latest capture.
    frozen: dict[str, list[float]] = state(dict)
    #: Whether all that the optimizer holds is frozen, or of no model and without gradients.
    idle: bool = state(bool)
    #: Weights that have changed although no optimizer holds them.
    moved: list[str] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a captured TRAIN step."""
        for reached in view.facts(facts.ReachedParameters):
            yield from self._beyond(view, reached.parameters, reached.count)
        for membership in view.facts(facts.Membership):
            self._take(membership.left_out_beside)
            self.idle = _changes_nothing(membership.of_stepped)
        if view.mode is not Mode.TRAIN or not view.captured:
            return
        weights = view.statistics(Role.WEIGHT)
        if self.names:
            self._compare(weights, view.mode_step)
            yield from self._judge(view, 1 if self.idle else self.patience)
        rows = weights.group.answers.get("frozen weights", lambda: _frozen(weights))
        if rows:  # not captured each time, so those of before stay
            values = zip(weights.l2[rows].tolist(), weights.sum[rows].tolist(), strict=True)
            self.frozen.update((weights.names[row], list(pair)) for row, pair in zip(rows, values, strict=True))

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement; a short or slow run has few captures."""
        yield from self._judge(view, 1 if self.idle else min(self.patience, _FEWEST))

    def _compare(self, weights: Statistics, step: int) -> None:
        """Count the captures in which the weights are the same."""
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
            self.last = step

    def _judge(self, view: StepView, patience: int) -> Iterable[Finding]:
        """A finding about parameters that did not change in so many captures."""
        known = {name: seen for name, seen in self.seen.items() if seen[0] is not None or not self.moved}
        missed = [name for name in self.names if name in known and known[name][1] >= patience]
        if not missed:
            return
        total = self.total - len(self.moved)
        value, captures = self.seen[missed[0]]
        seen = value is not None and captures > 1 and (captures > _FEWEST or missed[0] not in self.frozen)
        unchanged = f": unchanged in {captures} captures up to step {self.last}" if seen else ""
        others = f" and {total - 1} more" if total > 1 else ""
        yield self.finding(
            view,
            subject="not in any optimizer",
            tensors=missed[:16],
            value=float(total),
            limit=0.0,
            message=f"no optimizer holds {missed[0]}{others}, although backward computes gradients of "
            f"{'them' if total > 1 else 'it'}{unchanged}"
            + ("; all that the optimizer holds is frozen, or part of no model" if self.idle else ""),
            symptoms=("parameter_without_optimizer",),
        )

    def _beyond(self, view: StepView, rows: Sequence[facts.ReachedParameter], count: int) -> Iterable[Finding]:
        """A finding about parameters of modules of which no optimizer holds anything."""
        still = [row for row in rows if row.optimizer is None and row.training and row.looks >= self.looks]
        # The layers of a plain list are modules of one class each.
        fresh = [row for row in still if _is_fresh([each for each in still if each.owner == row.owner])]
        if not fresh:
            return
        first, total = fresh[0], count if len(fresh) == len(rows) else len(fresh)
        what = first.full_name
        others = f" and {total - 1} more" if total > 1 else ""
        yield self.finding(
            view,
            subject="in no trained model",
            tensors=[what] if first.owner else [],
            value=float(total),
            limit=0.0,
            message=f"no optimizer holds {what} of shape {[*first.shape]}{others}, although backward computes "
            f"gradients of {'them' if total > 1 else 'it'}: the same values in {first.looks} readings of the graph "
            f"up to step {view.mode_step}",
            symptoms=("parameter_without_optimizer",),
            evidence={"shape": [*first.shape], "readings": first.looks},
        )

    def _take(self, left_out: facts.NamedParameters | None) -> None:
        if left_out is not None:
            self.names, self.total = list(left_out.names), left_out.count
            before = {name: [value, _FEWEST] for name, value in self.frozen.items() if name not in self.moved}
            self.seen = {name: seen for name, seen in {**before, **self.seen}.items() if name in self.names}
            self.moved = [name for name in self.moved if name in self.names]


def _changes_nothing(held: facts.HeldParameters | None) -> bool:
    """Whether no parameter of an optimizer of the fact ``membership`` can get a gradient."""
    if held is None or not held.parameters or held.foreign_with_gradient:
        return False
    return held.trainable == held.foreign


def _frozen(weights: Statistics) -> list[int]:
    """Rows of the weights that are not trainable."""
    return [row for row, info in enumerate(weights.tensors) if info.trainable is False]


def _is_fresh(rows: list[facts.ReachedParameter]) -> bool:
    """Whether most weights of a module look freshly initialised; a parameter of no module always does."""
    large = [row for row in rows if len(row.shape) > 1 and row.sampled >= 64]
    if not large or (len(rows) == 1 and not rows[0].owner):
        return not rows[0].owner or all(row.std == 0 for row in rows)
    looks = [
        initialization_of(
            row.shape, _kind(row), row.sampled, row.min, row.max, row.std, tolerance=0.02
        ) or row.std == 0
        for row in large
    ]  # fmt: skip
    return 2 * sum(map(bool, looks)) >= len(large)


def _kind(row: facts.ReachedParameter) -> ModuleKind:
    """The kind of the module of a parameter; a table of vectors that a loss holds is like an embedding."""
    kind = ModuleKind(row.kind)
    return ModuleKind.EMBEDDING if kind is ModuleKind.OTHER else kind
