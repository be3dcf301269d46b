"""Confusion: classes that the model confuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

_MOST_CLASSES = 64


class Confusion(Rule):
    """The model often predicts one class in place of another.

    Looks at: counts of true and predicted classes of the sketched rows, in evaluations where there are any.
    Fires when: over the second half of the run, the model predicts less than a share of `min_diag` of a class
        correctly, or predicts one other class for more than `max_off_diag` of it. Only classes with at least `min_rows`
        rows count. It is an `info`. Calibration `sagemaker` judges each sketch alone, by rows and by columns, as a
        `warning`.
    Usual causes: classes that overlap, labels that mix them up, a rare class.
    What to try: look at samples of both classes; check their labels.
    Costs: a copy of at most 32,768 elements of outputs and targets at about 80 of 5,000 steps.
    Source: `min_diag`, `max_off_diag`: SageMaker Debugger, divided by the sums of rows and columns (the printed formula
        divides by the whole diagonal, which an identity fails). House: the limits of the default calibration.
    """

    needs = (Needs(facts=("output_sketch",), why="to count errors by class"),)
    calibrations: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sagemaker": {"min_diag": 0.9, "max_off_diag": 0.1, "min_rows": 1, "each": True}
    }

    min_diag: float = parameter(0.4, help="smallest share of a class that is predicted correctly", ge=0, le=1)
    max_off_diag: float = parameter(0.4, help="largest share of a class that is predicted as one other", ge=0, le=1)
    min_rows: int = parameter(20, help="fewest rows of a class that is judged", unit="rows", ge=1)
    category_no: int | None = parameter(None, help="number of classes; by default, as many as occur", ge=1)
    each: bool = parameter(False, help="judge each sketch alone")

    #: By mode: step and triples of class, predicted class and rows, of the last sketches.
    sketches: dict[str, list[list[Any]]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Keeps the errors of a step; a finding where each is judged alone."""
        for sketch in view.facts(facts.OutputSketch):
            found = list(map(list, sketch.confusion or ()))
            if not found:
                continue
            kept = self.sketches.setdefault(view.mode.name, [])
            kept[:] = [*kept, [view.train_step, found]][-128:]
            if self.each:
                yield from self._judge(view, found, Severity.WARNING)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding about the second half of the run."""
        if self.each:
            return
        kept = self.sketches.get(Mode.EVAL.name) or self.sketches.get(Mode.TRAIN.name) or []
        late = [row for step, rows in kept if step >= view.train_step // 2 for row in rows]
        yield from self._judge(view, late, Severity.INFO)

    def _judge(self, view: StepView, triples: list[list[int]], severity: Severity) -> Iterable[Finding]:
        classes = self.category_no or 1 + max((max(row[:2]) for row in triples), default=-1)
        if not 1 < classes <= _MOST_CLASSES:
            return
        table = np.zeros((classes, classes))
        for label, chosen, rows in triples:
            if label < classes and chosen < classes:
                table[label, chosen] += rows
        for sums, axis, names in ((table.sum(1), 1, "of class {} are"), (table.sum(0), 0, "predicted as {} are")):
            if axis == 0 and not self.each:
                continue
            enough = sums >= self.min_rows
            shares = table / np.maximum(np.expand_dims(sums, axis), 1)
            right = np.where(enough, shares.diagonal(), 1.0)
            off = np.where(np.expand_dims(enough, axis), shares * (1 - np.eye(classes)), 0.0)
            worst, most = int(right.argmin()), divmod(int(off.argmax()), classes)
            if right[worst] < self.min_diag or off.max() > self.max_off_diag:
                message = (
                    f"{in_percent(right[worst])} {names.format(worst)} right; {in_percent(off.max())} have class "
                    f"{most[0]} and prediction {most[1]}"
                )
                yield self.finding(
                    view, severity=severity, subject=f"axis {axis}", value=float(right[worst]), limit=self.min_diag,
                    message=message, symptoms=("classes_confused",) if severity is Severity.WARNING else (),
                    evidence={"confused": float(off.max()), "classes": [worst, *most]},
                )  # fmt: skip
