"""ConstantOutput: the output is the same for every input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, facts, loss_kind
from watchglass.rules import guessing, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: Rows of a sketch over which a spread counts, and targets that differ by less are constant themselves.
_ROWS, _TINY = 8, 1e-9
#: Standard deviation of targets far above that of the outputs of a fresh network, which is of order 0.1 to 1 (house).
_LARGE_TARGETS = 10.0


class ConstantOutput(Rule):
    """The final output of the model hardly depends on its input.

    Looks at: the spread of the output over the batch, by unit, against its largest spread so far and that of the
        targets.
    Fires when: in `patience` sketches in a row, after `start` steps and no warm-up, the spread of logits is below
        `logits` while labels differ, or the spread of other outputs is below `share` of that of their targets. Deep
        models may begin like this, so the rule waits for half of the planned steps, or for the end of the run. It does
        not wait if either spread has fallen to `share` of its largest value. The rule skips models that are trained in
        turns (GANs).
    Usual causes: a layer of dead units, initial weights that are too small, weight decay that outweighs the loss,
        inputs that are blank.
    What to try: compare the spread of each layer's output, first layer first, and find the layer that loses it.
    Costs: a copy of at most 32,768 elements of the output at about 80 of 5,000 steps.
    Source: house: logits that differ by 0.001 change a probability by at most 0.1 %.
    """

    idle_at_plain_steps = True
    needs = (Needs(facts=("output_sketch", "target_sketch"), why="to see how outputs and targets vary"),)

    patience: int = parameter(6, help="sketches in a row", unit="sketches", ge=1)
    start: int = parameter(24, help="steps before it counts", unit="steps", ge=0)
    logits: float = parameter(1e-3, help="standard deviation of logits over the batch", ge=0)
    share: float = parameter(1e-3, help="share of the spread of targets, or of the largest one of the output", ge=0)

    #: By loss: sketches in a row, and the largest spread.
    flat: Streaks = state(Streaks)
    largest: dict[str, float] = state(dict)
    #: By loss, what the latest sketch shows if it is flat: step, spread, limit, what it is compared with, whether that
    #: is large targets.
    latest: dict[str, list[Any]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a sketched step."""
        if view.mode is not Mode.TRAIN or view.in_turns:
            return
        targets = {sketch.number: sketch for sketch in view.facts(facts.TargetSketch)}
        for sketch in view.facts(facts.OutputSketch):
            spread, target = sketch.spread, targets.get(sketch.number)
            if spread is None or sketch.rows < _ROWS or (target is None and sketch.function):
                continue
            key = f"{sketch.function}/{sketch.number}"
            self.largest[key] = max(self.largest.get(key, 0.0), spread)
            limit, of, large = self._limit(key, target)
            counts = view.model_step >= self.start and not signals.warming_up(view)
            times = self.flat.follow(view.mode_step, counts and spread < limit, key)
            self.latest.pop(key, None)
            if times >= self.patience:
                self.latest[key] = [view.mode_step, spread, limit, of, large]
                planned = guessing.planned(view)
                fallen = spread < self.share * self.largest[key]
                if fallen or (planned is not None and 2 * view.model_step >= planned):
                    yield self._finding(view, key)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """Findings about outputs that are still constant."""
        for key in self.latest:
            yield self._finding(view, key)

    def _limit(self, key: str, target: facts.TargetSketch | None) -> tuple[float, str, bool]:
        """The spread below which an output is constant, what it is compared with, and whether that is large targets."""
        fallen = self.share * self.largest[key], f"it had been {self.largest[key]:.2g}", False
        if target is None:
            return fallen
        loss = loss_kind(target.function)
        by_class = loss.of_classes or loss.of_labels
        if by_class:
            differ = (target.distinct or 0) > 1 or (target.spread or 0.0) > _TINY
            return max((self.logits if differ else 0.0, "the labels differ", False), fallen)
        spread = target.spread or 0.0
        limit = self.share * spread if spread > _TINY else 0.0
        return max((limit, f"that of the targets is {spread:.2g}", spread > _LARGE_TARGETS), fallen)

    def _finding(self, view: StepView, key: str) -> Finding:
        step, spread, limit, of, large = self.latest[key]
        return self.finding(
            view,
            subject=key,
            value=spread,
            limit=limit,
            message=(
                f"the output hardly depends on the input: over the batch of step {step} it has a standard "
                f"deviation of {spread:.2g}, and {of}"
            ),
            symptoms=("output_constant", "targets_off_scale") if large else ("output_constant",),
            evidence=signals.evidence(view),
            since=self.flat.since(key),
        )
