"""LossGraph: mistakes in the operations from the model's output to the loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts
from watchglass.rules import signals
from watchglass.rules.graph.mistake import Mistake
from watchglass.rules.graph.mistakes import mistakes
from watchglass.rules.graph.terms import LossTerm, data_terms
from watchglass.rules.modern.call_rounds import rounds_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Ratio of a loss to its start from which on it has diverged, and decrease from which on it falls as it should.
_RISEN, _FALLEN = 2.0, 0.5
#: Backwards of a step from which on they are micro-batches: a pair may be the real and the made samples of a GAN.
_MICRO = 3
#: Steps after which a loss has fallen by this share, where the run learns anything.
_LONG, _LEARNED = 64, 0.1


class LossGraph(Rule):
    """A loss that the script computes with tensor operations contains a mistake.

    Looks at: the operations from the last layers to the loss, in autograd's graph; the updates of a summed loss.
    Fires when: one of these holds in training.

        * A softmax or log-softmax (or exponentials over their sum) normalises over the samples of the batch, and not
          over the classes: an `error` if nll_loss picks classes from it. Or it normalises over another axis than the
          one from which nll_loss picks, over positions of a sequence, or over results of several positions that a
          reshape has combined. Or outputs are divided by their length over the batch, for a similarity.
        * Raw outputs are taken for probabilities: all paths from a layer lead into a logarithm, or into a loss on
          probabilities, without a softmax or sigmoid between them; or they are clamped just inside of 0 and 1 before
          a logarithm (a focal loss); or the loss is a ratio of sums of them (Dice), or their mean for the classes of
          the targets.
        * A softmax takes the only unit of the last layer: an `error`.
        * A softmax is applied to the result of a softmax, or a sigmoid to that of a sigmoid.
        * A clamp limits logits so far that no sample can get a loss below `floor`.
        * Predictions of shape (n, 1) minus targets of shape (n) give differences of shape (n, n): an `error`.
        * Outputs are averaged over the batch before they meet the targets of its samples: an `error`.
        * The loss is summed over the batch, or the gradients of three or more micro-batches are added without division
          by their number. The optimizer is SGD, and the loss diverged. Or in `patience` captures
          after `hold` steps the update was more than `large` of the weight, and the loss had not fallen to half of its
          start. Or at the end of a run of 64 steps or more the loss has fallen by less than a tenth; the rule skips
          GANs and resumed runs. A sum that does no harm is an `info`. Adaptive optimizers do not depend on the scale of
          the loss.
    Usual causes: dim=0 in place of dim=1, a forgotten softmax or squeeze, reduction="sum" with a rate for means,
        gradient accumulation without loss / accumulation_steps.
    What to try: use cross_entropy on raw outputs; give predictions and targets the same shape; average over the batch.
    Costs: the fact loss_graph, read at a few captured steps.
    Source: exact for operations; house: `floor`, `large`, `hold`, `patience`.
    """

    needs = (
        Needs(facts=("loss_graph",), why="to see how the loss is made"),
        Needs(facts=("calls",), optional=True, why="to count the micro-batches of an update"),
        Needs(facts=("loss_call",), optional=True, why="to omit what a loss function does itself"),
        Needs(scalars=("loss",), optional=True, why="to see whether a summed loss does harm"),
        Needs(role=Role.WEIGHT, statistics=("rms",), optional=True, why="to compare updates with weights"),
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), optional=True, why="to compare updates with weights"),
    )
    modes = (Mode.TRAIN,)

    floor: float = parameter(0.05, help="lowest loss of a sample that clamped logits allow", gt=0)
    large: float = parameter(0.1, help="median over layers of update over weight that is too large", gt=0)
    hold: int = parameter(16, help="first steps, in which large updates are the start", unit="steps", ge=0)
    patience: int = parameter(3, help="captures with such updates", unit="captures", ge=1)

    #: Samples that the loss is summed over; 0 for a mean.
    summed: int = state(int)
    #: Micro-batches of a step whose gradients are added, each of a mean; 0 where they are divided. Of most steps only
    #: the graphs of the first few are read, so that there may be more.
    added: int = state(int)
    #: How many backwards most updates have; 0 where that is not known.
    backwards: int = state(int)
    #: Captures with large updates, and the first losses.
    jumps: int = state(int)
    start: list[float] = state(list)
    harmed: bool = state(bool)
    #: Training steps so far: the last view may be one of an evaluation.
    steps: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of a step."""
        self.steps = view.model_step
        self._count(view)
        calls = view.facts(facts.ComputedLoss)
        by_backward = [data_terms(fact) for fact in view.facts(facts.TermsOfLoss)]
        if len(by_backward) >= _MICRO:
            self.added = _added(by_backward)
        for fact, terms in zip(view.facts(facts.TermsOfLoss), by_backward, strict=True):
            self.summed = max((_summed(term) for term in terms), default=0)
            for found in mistakes(terms, calls, fact.batch, self.floor, view.model):
                yield self._finding(view, found)
        if self.summed or self.added:
            yield from self._of_sum(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A sum whose updates were not too large: with a loss that has not fallen, or without harm."""
        if not (self.summed or self.added) or self.harmed or not self._depends_on_scale(view):
            return
        unclear = view.in_turns or signals.resumed(view) or self.steps < _LONG
        if not unclear and signals.progress(self.start, signals.losses(view, 16)) < _LEARNED:
            yield self._harm(view, "the loss has not fallen")
            return
        grows = "their number" if self.added else "the size of the batch"
        message = f"{self._what()}: {'the sum' if self.added else 'its gradient'} grows with {grows}"
        yield self._finding(view, Mistake("", message, severity=Severity.INFO))

    def _of_sum(self, view: StepView) -> Iterable[Finding]:
        loss = signals.loss(view)
        signals.remember_start(self.start, loss)
        if self.harmed or not self._depends_on_scale(view):
            return
        ratio = 0.0
        if view.captured:
            _, _, ratios = signals.update_ratios(view)
            ratio = float(np.median(ratios)) if len(ratios) else 0.0
            late = view.model_step >= self.hold
            self.jumps += (
                late and ratio > self.large and signals.progress(self.start, signals.losses(view, 16)) < _FALLEN
            )
        losses = view.series(signals.loss_name(view) or "loss", Mode.TRAIN, 8)
        broken = len(losses) > 0 and not np.isfinite(losses).all()
        if len(losses) == 8 and len(self.start) == 8 and min(self.start) > 0:
            # A loss that diverges at once is high in the others of the first steps.
            broken |= bool(np.median(losses) > _RISEN * np.median(self.start[:3]))
        if not (broken or self.jumps >= self.patience):
            return
        self.harmed = True
        shows = "the loss has diverged" if broken else f"an update is {ratio:.2g} of the weight"
        yield self._harm(view, f"{shows} at step {view.mode_step}", ratio or None, None if broken else self.large)

    def _what(self) -> str:
        if self.added:
            number = self.backwards or f"{self.added} or more"
            return f"the gradients of {number} micro-batches are added, each of a mean over its samples"
        return f"the loss is a sum over {self.summed} samples"

    def _harm(self, view: StepView, shows: str, value: float | None = None, limit: float | None = None) -> Finding:
        rate = signals.learning_rate(view)
        factor = self.backwards if self.added else self.summed
        as_mean = f"; for a mean, a learning rate of {rate:.3g} acts as {rate * factor:.3g}" if rate and factor else ""
        symptom = "micro_batches_added" if self.added else "loss_is_a_sum"
        message = f"{self._what()} and {shows}{as_mean}"
        return self._finding(view, Mistake(symptom, message, value, limit))

    def _count(self, view: StepView) -> None:
        for fact in view.facts(facts.Calls):
            rounds = [each for each in rounds_of(fact) if "backward" in each.calls]
            if rounds:
                self.backwards = max(rounds, key=lambda each: each.times).calls.count("backward")

    @staticmethod
    def _depends_on_scale(view: StepView) -> bool:
        optimizer = view.latest_fact(facts.OptimizerSettings)
        return optimizer is not None and optimizer.type == "SGD"

    def _finding(self, view: StepView, found: Mistake) -> Finding:
        return self.finding(
            view,
            severity=found.severity,
            subject=found.symptom or "sum",
            value=found.value,
            limit=found.limit,
            message=found.message,
            symptoms=(found.symptom,) if found.symptom else (),
            evidence={**signals.optimizer_evidence(view), **found.evidence},
        )


def _added(by_backward: list[list[LossTerm]]) -> int:
    """How many micro-batches a step has, if their losses are alike and each is a mean over its samples; else 0."""
    first = [term.data for term in by_backward[0]]
    alike = all([term.data for term in terms] == first for terms in by_backward)
    whole = all(term.whole and term.coefficient is not None for terms in by_backward for term in terms)
    if not (first and alike and whole) or any(_summed(term) for term in by_backward[0]):
        return 0
    largest = max(abs(term.coefficient or 0.0) * max(1, term.summed) for terms in by_backward for term in terms)
    return len(by_backward) if largest > 0.99 else 0


def _summed(term: LossTerm) -> int:
    """Samples that a term is the sum of, after its division by a number; 0 for a mean."""
    if not term.results:
        return 0
    last = term.results[-1]
    # A weight that is learned, as that of one of several tasks.
    while last.name in ("mul", "div") and len(of_layers := last.of_layers) == 1:
        last = of_layers[0]
    rows = int(last.data.rows or 1)
    is_sum = last.data.reduction == "sum" or (
        last.name == "sum" and (last.data.elements or 1) > 1 and last.first is not None and len(last.first.shape) > 0
    )
    if not is_sum or rows < 4 or term.coefficient is None:
        return 0
    return rows if abs(term.coefficient) * rows >= max(4, rows / 2) else 0
