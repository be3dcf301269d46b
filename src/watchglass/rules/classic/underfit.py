"""Underfit: a model that is too small has learned what it can."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, Severity
from watchglass.rules import course, levels, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import Selection, StepView


class Underfit(Rule):
    """Training and validation loss have both stopped falling at a high level, in a model of few units.

    Looks at: the training loss in windows that widen with the length of the run, the last validation loss, and the
        widths of the layers between inputs and outputs.
    Fires when: over the second half of at least `windows` windows the training loss has not fallen by `fall` with any
        certainty; it is below `learned` times its start, so that the model learns, and above `high` times it; the last
        validation loss is at most `gap` above it; and no hidden layer has more than `units` units, or more than there
        are classes. A model without hidden layers is a choice and not reported.
    Usual causes: layers that are too narrow, a bottleneck between them.
    What to try: wider layers, or more of them.
    Costs: nothing in addition to losses and the shapes of weights.
    Source: Goodfellow et al., Deep Learning, 5.2; house: the limits, from runs of narrow and of wide networks.
    """

    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(role=Role.WEIGHT, statistics=("count",), why="to know the widths of layers"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), optional=True, why="to compare it with the validation loss"),
    )

    windows: int = parameter(8, help="windows before a plateau counts", unit="windows", ge=4)
    fall: float = parameter(0.03, help="decrease over the second half, as a share of the start", unit="ratio", ge=0)
    learned: float = parameter(0.95, help="training loss over its start below which it learns", unit="ratio", gt=0)
    high: float = parameter(0.3, help="training loss over its start above which it is high", unit="ratio", gt=0)
    gap: float = parameter(0.15, help="validation loss above the training loss", unit="ratio", ge=0)
    units: int = parameter(4, help="units of the widest hidden layer", unit="units", ge=1)

    start: list[float] = state(list)
    lowest: float = state(lambda: math.inf)
    course: dict[str, Any] = state(course.empty)
    validation: list[float] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the end of a window."""
        yield from self._evaluations(view)
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN or loss is None or not math.isfinite(loss):
            return
        self.lowest = min(self.lowest, loss)
        signals.remember_start(self.start, loss)
        if course.follow(self.course, loss):
            yield from self._judge(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement."""
        yield from self._evaluations(view)
        yield from self._judge(view)

    def applicable(self, view: StepView) -> str:
        """Not for models without hidden layers."""
        return signals.without_layers(view)

    def _evaluations(self, view: StepView) -> Iterable[Finding]:
        for phase in view.phases:
            loss = phase.means.get("loss", math.nan)
            if phase.mode is Mode.EVAL and math.isfinite(loss):
                self.validation = [loss]
        return ()

    def _judge(self, view: StepView) -> Iterable[Finding]:
        found = course.windows(self.course)
        if len(found) < self.windows or self.lowest <= 0 or view.several or signals.resumed(view):
            return
        widest = _widest(view)
        if not 0 < widest <= max(self.units, (signals.classes(view) or 0) - 1):
            return
        start, now, half = levels.level(self.start, lowest=self.lowest), found[-1], found[len(found) // 2]
        flat = half.value - now.value < self.fall * start and half.above(now) < 4
        near = all(loss <= (1 + self.gap) * now.value + 2 * now.error for loss in self.validation)
        if not (flat and near and self.high * start < now.value < self.learned * start):
            return
        fact = view.latest_fact("model")
        parameters = fact.data.get("parameters") if fact is not None else None
        validation = f" and the validation loss {self.validation[0]:.3g}" if self.validation else ""
        yield self.finding(
            view,
            severity=Severity.WARNING,
            subject="plateau",
            tensors=[signals.loss_name(view) or "loss"],
            value=now.value,
            limit=self.high * start,
            message=f"the training loss stays at {now.value:.3g}{validation} since half of the run, after {start:.3g} "
            f"at the start, and the widest hidden layer has {widest} unit{'s' if widest > 1 else ''}",
            symptoms=("plateau_without_gap", "few_units"),
            evidence={"widest": widest, **({"parameters": parameters} if isinstance(parameters, int) else {})},
        )


def _widest(view: StepView) -> int:
    """Units of the widest layer before the last one; 0 if there is none."""
    weights = sorted(view.catalog.select(Selection(Role.WEIGHT, min_dims=2)), key=lambda info: info.layer_index)
    # A table has a row for each of its words, and a recurrent layer its gates below each other.
    axis = {ModuleKind.EMBEDDING: 1, ModuleKind.RECURRENT: 1}
    last = weights[-1].layer_index if weights else 0
    return max((info.shape[axis.get(info.module_kind, 0)] for info in weights if info.layer_index < last), default=0)
