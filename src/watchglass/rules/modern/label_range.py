"""LabelRange: labels of one class, labels outside the output's classes, class numbers that are used as values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, loss_kind, rounded
from watchglass.rules import guessing
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Sketches before a class counts as missing, and rows for each class.
_SKETCHES, _ROWS_PER_CLASS = 8, 100
#: Distance from 0 and 1 beyond which a target is no probability: rounding, and noise that a script adds, stay below.
_BEYOND = 0.2
#: Classes that are numbered up to which, and rows for each of them, before the numbers count as such; relative error of
#: moments of equally frequent ones.
_MOST_NUMBERS, _ROWS_PER_NUMBER, _EVEN = 20, 20, 0.1
#: Classes of an output up to which each should occur.
_MOST_CLASSES = 64


class LabelRange(Rule):
    """The labels are all of one class, never use one of the output's classes, or are outside them.

    Looks at: counts of classes, over the sketched training steps.
    Fires when: a label lies outside the classes of the output (an `error`), all of at least `rows` labels of a
        classification by a linear layer are the same, targets of a binary cross-entropy lie outside 0 to 1, or all of
        at least `rows` of these are 1 while nothing else is in the loss of the only model. Or the targets of a squared
        or absolute error are whole numbers from 0 on, three to twenty of them and all equally frequent, as the numbers
        of classes are. It is an `info` if all labels are 0, as in contrastive losses, or if one class at an end of up
        to 64 is missing.
    Usual causes: labels read from the wrong column, numbered from 1, or filtered to one class; a padding label that
        `ignore_index` does not name.
    What to try: count the classes of the data set; number them from 0 to the number of outputs minus 1.
    Costs: a copy of at most 32,768 elements of outputs and targets at about 80 of 5,000 steps.
    Source: exact; house: `rows`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("target_sketch",), why="to count classes"),
        Needs(facts=("loss_call",), why="to know what makes the predictions", optional=True),
        Needs(facts=("loss_graph",), why="to know what else is in the loss", optional=True),
    )
    modes = (Mode.TRAIN,)

    rows: int = parameter(256, help="labels that are all the same", unit="labels", ge=2)

    pools: dict[str, dict[str, Any]] = state(dict)
    #: Of single values that losses of differences compare: rows; sums of values, squares, zeros, ones; the greatest.
    values: dict[str, list[float]] = state(dict)
    #: Operation that made the predictions of each loss function.
    operations: dict[str, str] = state(dict)
    #: By function of binary labels: their rows, and those of batches of ones.
    binary: dict[str, list[int]] = state(dict)
    #: Most terms that the loss of a step had.
    terms: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of a sketched step."""
        for call in view.facts(facts.ComputedLoss):
            self.operations[call.function] = str(call.operation)
        for graph in view.facts(facts.TermsOfLoss):
            self.terms = max(self.terms, graph.terms_count or 0)
        for sketch in view.facts(facts.TargetSketch):
            loss = loss_kind(sketch.function)
            if loss.of_labels:
                if sketch.kind == "values":
                    yield from self._shares(view, sketch)
                yield from self._all_one(view, sketch)
            if loss.of_differences and sketch.kind in ("values", "labels"):
                yield from self._class_numbers(view, sketch)
            if not loss.of_classes or sketch.kind != "classes":
                continue
            pool = guessing.pool_of(self.pools, sketch)
            guessing.add_targets(pool, sketch)
            if sketch.outside:
                yield self._finding(view, Severity.ERROR, "outside", "label_out_of_range", sketch.outside, (
                    f"labels go from {sketch.min} to {sketch.max}, but the output has classes 0 to "
                    f"{sketch.columns - 1}: {sketch.outside} of {sketch.rows} labels have another one"
                ), least=sketch.min or 0, most=sketch.max or 0, last=sketch.columns - 1,
                    labels=sketch.rows)  # fmt: skip
            yield from self._one_class(view, pool)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A class that never occurred."""
        for pool in self.pools.values():
            classes = pool["columns"]
            known = {int(label) for label in pool["counts"]}
            missing = set(range(classes)) - known if classes <= _MOST_CLASSES else set()
            enough = pool["sketches"] >= _SKETCHES and pool["rows"] >= _ROWS_PER_CLASS * classes
            if enough and len(missing) == 1 and missing <= {0, classes - 1}:
                label = missing.pop()
                what = f"class {label} of {classes} does not occur in {pool['rows']} labels"
                yield self._finding(
                    view, Severity.INFO, f"class {label}", "", label, what, classes=classes, labels=pool["rows"]
                )

    def _one_class(self, view: StepView, pool: dict[str, Any]) -> Iterable[Finding]:
        of_layer = self.operations.get(pool["function"]) == "weighted_sum"
        if len(pool["counts"]) == 1 and pool["rows"] >= self.rows and pool["columns"] > 1 and of_layer:
            label = next(iter(pool["counts"]))
            what = f"all of {pool['rows']} labels are {label}, and the output has {pool['columns']} classes"
            # The first logit of a contrastive loss is that of the pair that belongs together.
            severity, symptom = (Severity.INFO, "") if label == "0" else (Severity.WARNING, "labels_constant")
            yield self._finding(view, severity, "one class", symptom, pool["rows"], what, **{"class": int(label)})

    def _all_one(self, view: StepView, sketch: facts.TargetSketch) -> Iterable[Finding]:
        counts = self.binary.setdefault(sketch.function, [0, 0])
        rows = sketch.rows
        counts[0] += rows
        counts[1] += rows if sketch.min == sketch.max == 1 else 0
        # Where two models oppose each other, or two terms do, one of them may well have targets of one value.
        if counts[0] == counts[1] >= self.rows and self.terms == 1 and not view.several:
            what = f"all of {counts[0]} targets of {sketch.function} are 1, and nothing else is in the loss"
            yield self._finding(view, Severity.WARNING, "all one", "targets_all_one", counts[0], what)

    def _class_numbers(self, view: StepView, sketch: facts.TargetSketch) -> Iterable[Finding]:
        """Whole numbers from 0 on, all equally frequent, beside each of which the output has one unit."""
        key = f"{sketch.function}/{sketch.number}"
        whole = (
            sketch.columns == 1
            and (-1 if sketch.min is None else sketch.min) >= 0
            and (sketch.kind == "labels" if sketch.whole is None else sketch.whole)
        )
        known = self.values.setdefault(key, [0.0] * 6)
        if not whole or sketch.variance is None:
            known[5] = 1e9  # one batch proves that they are none
        mean, variance = sketch.mean or 0.0, sketch.variance or 0.0
        shares = 1.0, mean, variance + mean**2, sketch.zeros or 0.0, sketch.ones or 0.0
        sums = [sketch.rows * share for share in shares]
        known[:] = [
            *(before + more for before, more in zip(known, sums, strict=False)),
            max(known[5], sketch.max or 0.0),
        ]
        rows, classes = known[0], known[5] + 1
        if not 3 <= classes <= _MOST_NUMBERS or rows < max(self.rows, _ROWS_PER_NUMBER * classes):
            return
        mean, variance = known[1] / rows, known[2] / rows - (known[1] / rows) ** 2
        even = abs(mean / ((classes - 1) / 2) - 1) < _EVEN and abs(variance / ((classes**2 - 1) / 12) - 1) < _EVEN
        if even and all(abs(number / rows * classes - 1) < 4 * _EVEN for number in known[3:5]):
            what = (
                f"the targets of {sketch.function} are whole numbers from 0 to {rounded(classes - 1)}, all about "
                f"equally "
                f"frequent, as the numbers of classes are: their differences say nothing about how wrong a class is"
            )
            yield self._finding(view, Severity.WARNING, "class numbers", "classes_as_values", classes, what)

    def _shares(self, view: StepView, sketch: facts.TargetSketch) -> Iterable[Finding]:
        low, high = 0.0 if sketch.min is None else sketch.min, 1.0 if sketch.max is None else sketch.max
        if low < -_BEYOND or high > 1 + _BEYOND:
            what = f"{sketch.function} expects targets of 0 to 1, and they go from {low:.3g} to {high:.3g}"
            beyond = low if low < -_BEYOND else high
            yield self._finding(
                view, Severity.WARNING, "shares", "targets_no_probabilities", beyond, what, least=low, most=high
            )

    def _finding(
        self, view: StepView, severity: Severity, subject: str, symptom: str, value: float, message: str,
        **measured: float,
    ) -> Finding:  # fmt: skip
        symptoms = (symptom,) if symptom else ()
        return self.finding(
            view,
            severity=severity,
            subject=subject,
            value=float(value),
            message=message,
            symptoms=symptoms,
            evidence=measured,
        )
