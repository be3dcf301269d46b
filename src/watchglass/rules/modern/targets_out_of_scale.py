"""TargetsOutOfScale: regression targets far larger than what the model gives."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts
from watchglass.rules import guessing, learning_rates, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Share of the planned steps after which a model that could reach its targets has come nearer.
_EARLY = 0.1
_LEAST_STEPS = 16
#: Squared error at the end over that of a constant, from which on the model has learned almost nothing.
_LEARNED_NOTHING = 0.9


class TargetsOutOfScale(Rule):
    """The targets of a regression are on a scale far above that of the model's outputs.

    Looks at: the root mean square of targets and of outputs at the first sketched step, and later the squared error of
        the model, compared with that of the mean of the targets.
    Fires when: the targets were `ratio` times as large as the outputs and larger than `least`, and after a tenth of the
        planned steps (64 if these are unknown) the squared error is still above `worse` times that of the mean of the
        targets, or at the end above nine tenths of it. If the loss overflows before, the latest error counts,
        unless the learning rate is far above usual ones or has jumped.
    Usual causes: targets in their physical units; a scaler that was fitted and not applied.
    What to try: subtract the mean of the training targets and divide by their standard deviation.
    Costs: a copy of at most 32,768 elements of outputs and targets at about 80 of 5,000 steps.
    Source: LeCun et al., Efficient BackProp, 1998, 4.3; house: outputs of a freshly initialised network are of order
        0.1 to 1, so `ratio` 30 and `least` 10 lie far above targets of unit variance.
    """

    needs = (
        Needs(facts=("target_sketch", "output_sketch"), why="to compare the scales of both"),
        Needs(scalars=("loss",), optional=True, why="to see a loss that overflows"),
    )
    modes = (Mode.TRAIN,)

    ratio: float = parameter(30.0, help="root mean square of the targets over that of the outputs", gt=1)
    least: float = parameter(10.0, help="root mean square of the targets from which it counts", gt=0)
    worse: float = parameter(2.0, help="squared error over that of a constant prediction, during the run", ge=1)

    #: Root mean squares of targets and outputs at the first sketch.
    start: list[float] = state(list)
    #: Squared error and that of a constant at the last one.
    last: list[float] = state(list)
    step: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding after a tenth of the planned steps."""
        loss = signals.loss(view)
        if loss is not None and not math.isfinite(loss):
            yield from self._overflowed(view)
        targets = [sketch for sketch in view.facts(facts.TargetSketch) if sketch.kind == "values"]
        outputs = [sketch for sketch in view.facts(facts.OutputSketch) if sketch.squared_error is not None]
        if not targets or not outputs or len(targets) != len(outputs):
            return
        # Of several losses the one with the largest targets.
        scales = [(_size(target), _size(output), output) for target, output in zip(targets, outputs, strict=True)]
        size, given, output = max(scales, key=lambda each: each[0])
        self.start = self.start or [size, given]
        self.last = [output.squared_error or 0.0, output.constant_error or 0.0]
        self.step = view.model_step
        planned = guessing.planned(view)
        early = _LEAST_STEPS * 4 if planned is None else max(_LEAST_STEPS, _EARLY * planned)
        if self.step >= early:
            yield from self._judge(view, self.worse)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding about the last sketch."""
        if self.step >= _LEAST_STEPS:
            yield from self._judge(view, _LEARNED_NOTHING)

    def _overflowed(self, view: StepView) -> Iterable[Finding]:
        """The judgement of a run that has diverged: errors of large targets make large updates."""
        if learning_rates.beyond_usual(view) != "above" and learning_rates.jump(view) is None:
            yield from self._judge(view, self.worse)

    def _judge(self, view: StepView, worse: float) -> Iterable[Finding]:
        if not self.start:
            return
        size, given = self.start
        error, constant = self.last
        if size < self.least or size < self.ratio * given or error < worse * constant or constant <= 0:
            return
        yield self.finding(
            view,
            subject="targets",
            value=size / max(given, 1e-12),
            limit=self.ratio,
            message=(
                f"the targets have a root mean square of {size:.3g}, the outputs had one of {given:.2g} at the start; "
                f"at step {self.step} the squared error is {error / constant:.3g} times that of a constant"
            ),
            symptoms=("targets_off_scale",),
            evidence={"target_scale": size, "output_scale": given, "error_over_constant": error / constant},
        )


def _size(sketch: facts.TargetSketch | facts.OutputSketch) -> float:
    """Root mean square of sketched values."""
    variance = (sketch.std or 0.0) ** 2 if isinstance(sketch, facts.OutputSketch) else sketch.variance or 0.0
    return math.sqrt(max(0.0, (sketch.mean or 0.0) ** 2 + variance))
