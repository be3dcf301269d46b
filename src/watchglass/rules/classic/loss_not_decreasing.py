"""LossNotDecreasing: the training loss does not fall."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, facts
from watchglass.rules import course, learning_rates, neighbours, signals
from watchglass.rules.graph.terms import remember_summed, without_level
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import loss_not_decreasing
from watchglass.stats import median
from watchglass.tables import StepView

#: Calls without gradients before an update whose inputs are kept.
_CALLS = 16
#: A model that predicts this much better than by guessing has learned what it can, or was trained before.
_ACCURATE = 0.15
#: Largest difference of any two losses, as a share of them, of a loss that stands still: none in the fourth digit. And
#: the median ratio of updates to weights above which these move (house).
_STILL, _MOVE = 1e-4, 1e-6
#: Share of the loss of guessing evenly from which on a classifier has learned almost nothing.
_GUESSING = 0.8


class LossNotDecreasing(Rule):
    """The training loss does not fall.

    Looks at: the training loss at every step, in windows that widen with the length of the run; the training accuracy,
        the learning rate, and the ratio of updates to weights.
    Fires when: the last third of the windows lies less than `diff_percent` below the start of the loss, and the noise
        of the windows rules out twice that decrease. The windows must also have stopped falling. The rule judges after
        `patience` windows, or at the end of the run after at least `least` steps. Steps of a warm-up do not count. It
        is silent for a loss that changes its sign or ends at zero from below (policy gradients, critics), for a sum
        over a number of elements that grows at some steps (episodes), for several models (a teacher, a target network),
        for a model that acts between its updates (reinforcement learning), and in a resumed attempt. It is also silent
        if the accuracy is above guessing by more than 15 points from the beginning, because such a model was trained
        before. None of these but a resumed attempt silences it if no two losses since the start differ in the fourth
        digit while updates move the weights: then the value of the loss does not depend on the weights.
    Usual causes: labels that do not belong to the inputs, a learning rate that is too high or too low, no gradient in
        the first layers.
    What to try: try to overfit a single batch; change the learning rate by a factor of 10 either way.
    Costs: nothing in addition to the loss, which is recorded at every step.
    Source: 0.1 percent every 10 steps: SageMaker Debugger documentation; house: windows compared with regard to noise.
    """

    starts_with = "task"
    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), optional=True, why="to see whether updates move it"),
        Needs(role=Role.WEIGHT, statistics=("rms",), optional=True, why="to compare updates with weights"),
        Needs(facts=("output_sketch",), optional=True, why="to see whether similar inputs have similar targets"),
        Needs(facts=("loss_graph",), optional=True, why="to see over how many elements the loss is summed"),
        Needs(facts=("batch",), modes=(Mode.TRAIN, Mode.EVAL), optional=True, why="to see calls with the same inputs"),
    )
    calibrations: ClassVar = {"sagemaker": loss_not_decreasing.LossNotDecreasing}

    patience: int = parameter(20, help="windows before a flat loss counts", unit="windows", ge=2)
    least: int = parameter(80, help="steps before a flat loss counts at the end", unit="steps", ge=2)
    diff_percent: float = parameter(3.0, help="smallest decrease since the start", unit="percent", ge=0, le=100)

    start: list[float] = state(list)
    #: The least and the highest loss so far, and the number of steps.
    lowest: float = state(lambda: math.inf)
    highest: float = state(lambda: -math.inf)
    seen: int = state(int)
    course: dict[str, Any] = state(course.empty)
    ratios: list[float] = state(list)
    #: Losses during a warm-up; evaluations of the model without a loss.
    waited: int = state(int)
    acted: int = state(int)
    #: Training accuracy above guessing in the first steps.
    accuracy: list[float] = state(list)
    #: See :mod:`watchglass.rules.neighbours`.
    compared: list[list[float]] = state(list)
    #: Hashes of the inputs of calls without gradients since the last update; updates whose inputs are among them.
    without: list[str] = state(list)
    compared_with_itself: int = state(int)
    #: See :func:`watchglass.rules.graph.terms.remember_summed`.
    summed: list[int] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the end of a window."""
        loss = signals.loss(view)
        neighbours.remember(self.compared, view)
        self._remember_calls(view)
        # Of steps too short to record each, the others had a loss, too.
        self.seen += view.covers - 1
        if view.mode is not Mode.TRAIN:
            self.acted += loss is None
        elif loss is not None and math.isfinite(loss):
            self.seen += 1
            self.waited += view.covers * signals.warming_up(view)
            self.lowest, self.highest = min(self.lowest, loss), max(self.highest, loss)
            signals.remember_start(self.start, loss, 3)
            if len(self.accuracy) < 8:
                signals.remember_start(self.accuracy, signals.above_guessing(view), 8)
            learning_rates.remember_ratio(self.ratios, view)
            remember_summed(self.summed, view)
            if course.follow(self.course, loss) and self.seen - self.waited >= 16 * self.patience:
                yield from self._judge(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement, on a run of any length."""
        if self.seen - self.waited >= self.least:
            yield from self._judge(view)

    def _remember_calls(self, view: StepView) -> None:
        """Whether the model is called without gradients for the inputs of the same update."""
        hashes = [name for batch in view.facts(facts.BatchInputs) for name in batch.hashes]
        if view.mode is not Mode.TRAIN:
            self.without = [*self.without, *hashes][-_CALLS:]
        else:
            self.compared_with_itself += not set(hashes).isdisjoint(self.without)
            self.without = []

    def _stands_still(self, view: StepView) -> Iterable[Finding]:
        """A finding about a loss that weights do not change."""
        moves = bool(self.ratios) and median(self.ratios) > _MOVE
        level = max(abs(self.lowest), abs(self.highest))
        if not moves or self.highest - self.lowest > _STILL * level or level == 0 or signals.resumed(view):
            return
        itself = self.compared_with_itself > 0
        beside = ", and it is called without gradients for the same inputs" if itself else ""
        yield self.finding(
            view,
            subject="flat",
            tensors=[signals.loss_name(view) or "loss"],
            value=self.highest - self.lowest,
            limit=_STILL * level,
            message=f"the loss stands still: {self.highest:.4g} over {self.seen} steps up to step "
            f"{view.mode_step}, although updates move the weights of the model{beside}",
            symptoms=("loss_stands_still", *(("compared_with_itself",) if itself else ())),
            evidence={**signals.evidence(view), "highest": self.highest, "steps": self.seen},
        )

    def _judge(self, view: StepView) -> Iterable[Finding]:
        still = list(self._stands_still(view))
        if still:
            yield from still
            return
        found = course.windows(self.course)
        if len(found) < 2 or self._cannot_tell(view):
            return
        first = found[0]
        early, last = course.thirds(found)
        guessed = signals.classes(view)
        # The first losses matter too: a run can converge within its first window, but not where it is still guessing.
        guesses = guessed is not None and last.value > _GUESSING * math.log(guessed)
        start, scale = float(np.median(self.start)), abs(first.value)
        began = start if not guesses and start > first.value + 10 * first.error else first.value
        decrease = began - last.value
        error = math.hypot(early.error, last.error)
        smallest = scale * self.diff_percent / 100
        if decrease >= smallest or decrease + 2 * error >= 2 * smallest or course.falls(found[1:]):
            return
        yield self.finding(
            view,
            subject="flat",
            tensors=[signals.loss_name(view) or "loss"],
            value=last.value,
            limit=began - scale * self.diff_percent / 100,
            message=f"the loss does not fall: {last.value:.4g} at step {view.mode_step}, after {began:.4g} at the "
            f"start of {self.seen} steps",
            symptoms=(
                "loss_flat",
                *learning_rates.symptoms(view, self.ratios),
                *neighbours.symptoms(self.compared),
            ),
            evidence={
                **signals.evidence(view),
                "began": began,
                "steps": self.seen,
                **learning_rates.evidence(self.ratios),
            },
        )

    def _cannot_tell(self, view: StepView) -> bool:
        """Whether a loss that stays may be as intended."""
        trained = len(self.accuracy) > 0 and float(np.median(self.accuracy)) > _ACCURATE
        acts = 2 * self.acted >= self.seen
        no_level = self.lowest < 0 <= self.highest or without_level(self.summed)
        return trained or acts or no_level or view.several or signals.resumed(view)
