"""Overfit: the validation loss rises while the training loss falls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import levels, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.run import Phase, Selection, StepView


class Overfit(Rule):
    """The validation loss has been rising for several evaluations while the training loss still falls.

    Looks at: the mean loss of each evaluation, weighted by batch size, and of the training since the one before.
    Fires when: in `patience` evaluations in a row the validation loss lies above its best by `ratio_threshold` and by
        `min_rise` of the first training loss, and above the training loss, while the training loss is not above what
        it was at the best evaluation. Of losses that have been zero or below the rise is measured by the way down from
        the first training losses. A gap that is constant is no finding, nor is a flat validation loss.
    Usual causes: too little data, a model that is too large, training for too long.
    What to try: stop at the best evaluation, augment the data, weight decay, dropout.
    Source: SageMaker Debugger (ratio 0.1, patience 1, on the gap alone); Prechelt 1998; `min_rise`: ours (house).
    """

    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), why="to follow the validation loss"),
    )
    calibrations: ClassVar = {"sagemaker": {"ratio_threshold": 0.1, "patience": 1, "min_rise": 0.0}}

    start_step: int = parameter(0, help="training steps before which nothing is compared", unit="steps", ge=0)
    patience: int = parameter(3, help="evaluations in a row", unit="evaluations", ge=1)
    ratio_threshold: float = parameter(0.1, help="rise over the best validation loss", unit="ratio", ge=0)
    min_rise: float = parameter(0.03, help="rise in units of the first training loss", unit="ratio", ge=0)

    start: list[float] = state(list)
    #: The least loss so far, of training and evaluations.
    lowest: float = state(lambda: math.inf)
    train_loss: float | None = state(lambda: None)
    best: dict[str, Any] = state(dict)
    streak: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the first step after an evaluation."""
        if view.mode is Mode.TRAIN:
            name = signals.loss_name(view)
            loss = view.scalar(name) if name is not None else None
            signals.remember_start(self.start, loss)
            if loss is not None and math.isfinite(loss):
                self.lowest = min(self.lowest, loss)
        for phase in view.phases:
            yield from self._phase(view, phase)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding of the evaluation with which the training ended."""
        for phase in view.phases:
            yield from self._phase(view, phase)

    def applicable(self, view: StepView) -> str:
        """Not without evaluations."""
        return "" if self.best else "there was no evaluation with a loss after a training step"

    def _phase(self, view: StepView, phase: Phase) -> Iterable[Finding]:
        loss = _phase_loss(view, phase)
        if loss is None or not math.isfinite(loss):
            return
        self.lowest = min(self.lowest, loss)
        if phase.mode is Mode.TRAIN:
            self.train_loss = loss
            return
        # An evaluation before the first training step is a check that the code runs.
        if phase.train_step < max(0, self.start_step) or self.train_loss is None or not self.start:
            return
        if not self.best or loss < self.best["loss"]:
            self.best = {"loss": loss, "train_step": phase.train_step, "train_loss": self.train_loss}
            self.streak = 0
            return
        overfits = loss > self._limit() and loss > self.train_loss and self.train_loss <= self.best["train_loss"]
        self.streak = self.streak + 1 if overfits else 0
        if self.streak >= self.patience:
            yield self._overfits(view, phase, loss, self.train_loss)

    def _limit(self) -> float:
        """Where the validation loss has risen clearly above its best.

        A loss that has been zero or below has no ratio: there the way down from the first training losses measures it.
        """
        best, start = float(self.best["loss"]), levels.level(self.start, lowest=self.lowest)
        if self.lowest > 0:
            return best + max(self.ratio_threshold * best, self.min_rise * start)
        return best + max(self.ratio_threshold, self.min_rise) * max(start - best, levels.spread(self.start))

    def _overfits(self, view: StepView, phase: Phase, loss: float, train_loss: float) -> Finding:
        best = self.best["loss"]
        return self.finding(
            view,
            severity=Severity.WARNING,
            subject="validation loss",
            tensors=["loss"],
            value=loss,
            limit=self._limit(),
            message=f"the validation loss is {loss:.3g} after training step {phase.train_step}, up from {best:.3g} "
            f"after step {self.best['train_step']}, while the training loss went from {self.best['train_loss']:.3g} to "
            f"{train_loss:.3g}",
            symptoms=("validation_rises",),
            evidence={
                "best_step": self.best["train_step"],
                "best_loss": best,
                "train_loss": train_loss,
                **signals.optimizer_evidence(view),
            },
        )


def _phase_loss(view: StepView, phase: Phase) -> float | None:
    """Mean loss of a phase: the scalar ``loss``, or the first one with that role."""
    if "loss" in phase.means:
        return phase.means["loss"]
    named = {info.name for info in view.catalog.select(Selection(Role.LOSS))}
    return next((value for name, value in phase.means.items() if name in named), None)
