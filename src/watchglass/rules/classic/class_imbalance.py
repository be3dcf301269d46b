"""ClassImbalance: some classes are much rarer than others, and the model neglects them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, in_percent, loss_kind
from watchglass.rules import guessing
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

_KINDS = ("classes", "one_hot", "labels")
#: Sketches of each mode whose errors are kept.
_MOST_SKETCHES = 256
#: Rows of one class in a batch, and their share, that a rare class never has in random batches.
_TOGETHER, _MAJORITY = 8, 0.5


class ClassImbalance(Rule):
    """One class outnumbers another by far, and the rare one is not predicted.

    Looks at: counts of classes over the sketched training steps, and how many rows of each class are predicted right,
        in evaluations where there are any.
    Fires when: the most frequent class has more than `threshold_imbalance` times as many labels as the rarest, of at
        least `samples` labels. The model must also mispredict a share of more than `threshold_misprediction` of the
        rarest class in the second half of the run, and `harm` more than of the most frequent class. Imbalance alone is
        an `info`. With `harm` below 0, as in calibration `sagemaker`, imbalance alone or misprediction alone is a
        finding. The rule skips losses with weights by class, sequences and images with a class for each position, more
        than 64 classes, and batches that are sorted, because their counts depend on which steps are sketched.
    Usual causes: classes that are rare by nature (faults, fraud, diseases); a filter that removes one class.
    What to try: weight the loss by class, or sample classes equally often; judge by balanced accuracy.
    Costs: a copy of at most 32,768 elements of outputs and targets at about 80 of 5,000 steps.
    Source: `threshold_imbalance`, `threshold_misprediction`, `samples`: SageMaker Debugger; He and Garcia, Learning
        from Imbalanced Data, 2009. House: `harm`, `threshold_misprediction` 0.3 in the default calibration.
    """

    needs = (Needs(facts=("target_sketch", "output_sketch"), why="to count classes and errors"),)
    calibrations: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sagemaker": {"threshold_misprediction": 0.7, "samples": 500, "harm": -1.0}
    }

    threshold_imbalance: float = parameter(10.0, help="largest over smallest count of a class", ge=1)
    threshold_misprediction: float = parameter(0.3, help="share of a class that is mispredicted", ge=0, le=1)
    samples: int = parameter(200, help="labels before classes are compared", unit="labels", ge=1)
    harm: float = parameter(0.2, help="mispredicted share of the rare class minus that of the frequent")
    min_rows: int = parameter(10, help="rows of a class whose errors count", unit="rows", ge=1)

    pools: dict[str, dict[str, Any]] = state(dict)
    #: Classes that had the most rows of some batch of several rows.
    together: list[int] = state(list)
    #: By mode: model step and errors of sketches, triples of class, predicted class and rows.
    errors: dict[str, list[list[Any]]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of the calibration that does not wait for the end."""
        for output in view.facts(facts.OutputSketch):
            if output.confusion is not None and len(output.shape) <= 2:
                kept = self.errors.setdefault(view.mode.name, [])
                kept[:] = [*kept, [view.train_step, list(map(list, output.confusion))]][-_MOST_SKETCHES:]
        if view.mode is not Mode.TRAIN:
            return
        for sketch in view.facts(facts.TargetSketch):
            if sketch.kind in _KINDS and len(sketch.shape) <= 2 and sketch.columns <= 64:
                guessing.add_targets(guessing.pool_of(self.pools, sketch), sketch)
                for label, rows in sketch.counts or ():
                    many = rows >= max(_TOGETHER, _MAJORITY * sketch.rows)
                    if many and int(label) not in self.together:
                        self.together.append(int(label))
        if self.harm < 0:
            yield from self._judge(view, 0)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """Findings about the second half of the run."""
        yield from self._judge(view, view.train_step // 2)

    def _judge(self, view: StepView, since: int) -> Iterable[Finding]:
        if len(self.pools) != 1:
            return
        pool = next(iter(self.pools.values()))
        counts = {int(label): number for label, number in pool["counts"].items()}
        if sum(counts.values()) < self.samples or len(counts) < 2 or pool.get("weighted"):
            return
        if loss_kind(pool["function"]).of_labels and (pool.get("columns", 1) > 1 or "positive_weight" in pool):
            return
        rare, common = min(counts, key=lambda each: counts[each]), max(counts, key=lambda each: counts[each])
        ratio = counts[common] / counts[rare]
        if rare in self.together:
            return
        if self.harm < 0:
            missed = self._missed(since)
            worst = max(missed, key=lambda each: missed[each], default=rare)
            if ratio > self.threshold_imbalance or missed.get(worst, 0.0) > self.threshold_misprediction:
                yield self._finding(view, Severity.WARNING, rare, common, ratio, missed.get(worst), worst)
            return
        if ratio <= self.threshold_imbalance:
            return
        missed = self._missed(since)
        wrong, usual = missed.get(rare, 0.0), missed.get(common, 1.0)
        harmed = wrong > self.threshold_misprediction and wrong > usual + self.harm
        severity = Severity.WARNING if harmed else Severity.INFO
        yield self._finding(view, severity, rare, common, ratio, missed.get(rare), rare)

    def _missed(self, since: int) -> dict[int, float]:
        """Share of mispredicted rows by class, in evaluations where there are any."""
        found: dict[int, list[int]] = {}
        for step, confusion in self.errors.get(Mode.EVAL.name) or self.errors.get(Mode.TRAIN.name) or ():
            for label, chosen, rows in confusion if step >= since else ():
                of = found.setdefault(int(label), [0, 0])
                of[0] += rows
                of[1] += rows * (label != chosen)
        return {label: wrong / rows for label, (rows, wrong) in found.items() if rows >= self.min_rows}

    def _finding(
        self, view: StepView, severity: Severity, rare: int, common: int, ratio: float, missed: float | None, of: int
    ) -> Finding:
        errors = f", and {in_percent(missed)} of class {of} are mispredicted" if missed is not None else ""
        return self.finding(
            view,
            severity=severity,
            subject="classes",
            value=ratio,
            limit=self.threshold_imbalance,
            message=f"class {common} is {ratio:.3g} times as frequent as class {rare}{errors}",
            symptoms=() if severity is Severity.INFO else ("classes_unbalanced",),
            evidence={"rare_class": str(rare), "imbalance": ratio},
        )
