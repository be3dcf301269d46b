"""TrainEvalShift: evaluations get other inputs than training steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules import guessing, signals
from watchglass.rules.modern.input_rows import row_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Sketches of each mode that are compared, at least, and kept.
_LEAST, _MOST = 3, 64
#: Largest deviation of the quantiles of one mode from those of the other, scaled and shifted, in standard deviations:
#: a transform that differs keeps their shape, and noise or erasing does not.
_SAME_SHAPE = 0.15


class TrainEvalShift(Rule):
    """The inputs of evaluations have another scale than training inputs, or augmentation destroys the latter.

    Looks at: mean, standard deviation and quantiles of the first float input, in training and in evaluations that have
        a loss; the training loss against a guess.
    Fires when: the standard deviations of the two differ by more than `ratio` or the means by more than `shift`
        standard deviations. If the quantiles have the same shape, one mode lacks a transform. If not, the training
        inputs are augmented: the rule reports this if, at the end, the training loss is still above `learned` times
        that of a guess, and an evaluation loss is lower by a tenth or also no better than a guess.
    Usual causes: a normalisation in only one of two transforms, an augmentation that destroys what labels depend on.
    What to try: use the same normalisation for both; look at some augmented samples: would you know their label?
    Costs: a copy of at most 64 KiB of the inputs at about 80 of 5,000 steps, and at some evaluation steps.
    Source: house: MNIST with and without its usual normalisation differs 3.2-fold in spread, CIFAR-10 4-fold.
    """

    needs = (
        Needs(facts=("input_sketch", "target_sketch"), why="to compare inputs and to know what a guess reaches"),
        Needs(scalars=("loss",), optional=True, why="to see whether the model has learned"),
    )

    ratio: float = parameter(2.3, help="largest ratio of standard deviations", gt=1)
    shift: float = parameter(1.5, help="largest difference of means, in the larger standard deviation", gt=0)
    learned: float = parameter(0.7, help="share of a guess's loss above which little was learned", gt=0, le=1)

    #: By mode: sketches of [mean, standard deviation, quantiles ...].
    seen: dict[str, list[list[float]]] = state(dict)
    pools: dict[str, dict[str, Any]] = state(dict)
    losses: list[float] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Keeps the sketches of a step; a finding about a transform."""
        self._stretches(view)
        if view.mode is Mode.EVAL and not any(name.startswith("loss") for name in view.scalars()):
            return  # samples of a generative model, an agent that acts
        if view.mode not in (Mode.TRAIN, Mode.EVAL) or view.in_turns:
            return
        for target in view.facts(facts.TargetSketch):
            if view.mode is Mode.TRAIN:
                guessing.add_targets(guessing.pool_of(self.pools, target), target)
        for sketch in view.facts(facts.InputSketch):
            if (row := row_of(sketch)) is not None:
                kept = self.seen.setdefault(view.mode.name, [])
                kept[:] = [*kept, row][-_MOST:]
        if view.mode is Mode.EVAL and (found := self._shifted()) and found["same"]:
            yield self._finding(view, "transform", found, "evaluation_inputs_shifted", "")

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding about an augmentation."""
        self._stretches(view)
        found = self._shifted()
        pool = next(iter(self.pools.values())) if len(self.pools) == 1 else None
        limit = guessing.guess(pool) if pool is not None else None
        if not found or found["same"] or limit is None or pool is None or not self.losses:
            return
        last = view.series(f"loss/{pool['function']}", Mode.TRAIN)
        last = last[-max(1, len(last) // 3) :]
        if len(last) < 4 or not last.mean() > self.learned * limit:
            return
        best = min(self.losses)
        if best < 0.9 * last.mean() or best > 0.95 * limit:
            words = (
                f"; the training loss is {last.mean():.3g}, that of a guess {limit:.3g} and of an evaluation {best:.3g}"
            )
            yield self._finding(view, "augmentation", found, "augmentation_hides_inputs", words)

    def _stretches(self, view: StepView) -> None:
        for stretch in view.stretches:
            names = [name for name in stretch.means if name.startswith("loss/")]
            if stretch.mode is Mode.EVAL and len(names) == 1 and math.isfinite(stretch.means[names[0]]):
                self.losses = [*self.losses, stretch.means[names[0]]][-_MOST:]

    def _shifted(self) -> dict[str, Any] | None:
        ours, theirs = (self.seen.get(mode.name, []) for mode in (Mode.TRAIN, Mode.EVAL))
        if len(ours) < _LEAST or len(theirs) < _LEAST or len(ours[0]) != len(theirs[0]):
            return None
        train, evaluation = np.median(np.asarray(ours), axis=0), np.median(np.asarray(theirs), axis=0)
        ratio = float(train[1] / evaluation[1])
        shift = float(abs(train[0] - evaluation[0]) / max(train[1], evaluation[1]))
        if max(ratio, 1 / ratio) <= self.ratio and shift <= self.shift:
            return None
        # The extreme quantiles of two samples differ by chance.
        one, other = ((each[3:-1] - each[0]) / each[1] for each in (train, evaluation))
        return {
            "same": bool(np.abs(one - other).max() < 2 * _SAME_SHAPE and np.abs(one - other).mean() < _SAME_SHAPE),
            "ratio": ratio, "shift": shift, "train": train, "evaluation": evaluation,
        }  # fmt: skip

    def _finding(self, view: StepView, subject: str, found: dict[str, Any], symptom: str, words: str) -> Finding:
        train, evaluation = found["train"], found["evaluation"]
        ratio = max(found["ratio"], 1 / found["ratio"])
        by_spread = ratio > self.ratio
        return self.finding(
            view,
            subject=subject,
            value=ratio if by_spread else found["shift"],
            limit=self.ratio if by_spread else self.shift,
            message=(
                f"the inputs have a mean of {train[0]:.3g} and a standard deviation of {train[1]:.3g} in training, "
                f"{evaluation[0]:.3g} and {evaluation[1]:.3g} in evaluations{words}"
            ),
            symptoms=(symptom,),
            evidence={"training": [*train], "evaluation": [*evaluation], **signals.evidence(view)},
        )
