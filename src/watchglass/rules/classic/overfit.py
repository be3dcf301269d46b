"""Overfit: the validation loss rises while the training loss falls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role
from watchglass.rules import levels, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import overfit
from watchglass.rules.streaks import Streaks
from watchglass.tables import SAME_LOSS, SAME_LOSS_NEAR_ZERO, Selection, StepView, Stretch

#: Prefix of losses that a function, or the model, returned.
_PART = "loss/"
#: Validation losses whose scatter counts, and how many changes of them say something.
_RECENT, _ENOUGH = 32, 4
#: Share of the first training loss from which on a validation loss is not low.
_HIGH = 0.3


class Overfit(Rule):
    """The validation loss rises over several evaluations while the training loss still falls.

    Looks at: the mean loss of each evaluation, weighted by batch size, and the mean training loss since the previous
        evaluation. Batches of the training data, which an evaluation may go through as well, are left out. If the
        training loss contains more than that of an evaluation (a penalty, another scale, a sum over each batch), the
        rule compares what the same loss function returned in both. If there is no such function, it compares nothing.
    Fires when: one of these holds in `patience` evaluations in a row. A constant gap is no finding, nor is a flat
        validation loss. For losses that have been zero or below, the unit of the rise is the decrease from the first
        training losses.
        * The validation loss is above its best value by `ratio_threshold`, and by `min_rise` of the first training
        loss. If no evaluation was better than guessing, half of `ratio_threshold` alone is enough. If the training loss
        has fallen by `memorized` and the validation loss is above 30 percent of the start, twice `ratio_threshold` is
        enough. In each case the rise must be more than three times the scatter of validation losses from one evaluation
        to the next, and the validation loss must be above the training loss. The training loss must be `learned` below
        its start, and not above its value at the best evaluation.
        * The training loss has fallen by `memorized`, and the validation loss stays above `useless` times that of
        guessing: nothing that the model has learned holds for other samples. The loss of guessing is the first
        validation loss if nothing was learned before it, else the start of the training loss.
    Usual causes: too little data, a model that is too large, training for too long.
    What to try: stop at the best evaluation, augment the data, weight decay, dropout.
    Costs: nothing in addition to the losses of training and evaluation.
    Source: ratio 0.1 and patience 1, on the gap alone: SageMaker Debugger documentation; Prechelt 1998; house:
        `min_rise`.
    """

    starts_with = "task"
    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), why="to follow the validation loss"),
    )
    calibrations: ClassVar = {"sagemaker": overfit.Overfit}

    start_step: int = parameter(0, help="training steps before which nothing is compared", unit="steps", ge=0)
    patience: int = parameter(3, help="evaluations in a row", unit="evaluations", ge=1)
    ratio_threshold: float = parameter(0.1, help="rise over the best validation loss", unit="ratio", ge=0)
    min_rise: float = parameter(0.25, help="rise in units of the first training loss", unit="ratio", ge=0)

    learned: float = parameter(0.1, help="decrease of the training loss since its start", unit="ratio", ge=0)
    useless: float = parameter(0.9, help="validation loss over that of guessing, above which it is useless", gt=0)
    memorized: float = parameter(
        0.9, help="decrease of the training loss that memorises the samples", unit="ratio", gt=0
    )

    #: The first values of each training loss, and its mean in the last stretch that had it, by name.
    starts: dict[str, list[float]] = state(dict)
    train: dict[str, float] = state(dict)
    #: The least of each so far, evaluations included.
    lowest: dict[str, float] = state(dict)
    #: Losses of functions that were not the whole training loss.
    partial: list[str] = state(list)
    #: Names of the compared training and validation loss.
    pair: list[str] = state(list)
    best: dict[str, Any] = state(dict)
    #: Evaluations in a row in which the validation loss ``"rises"``, or ``"stays"`` at hardly better than guessing
    #: while the training loss is low, by their training steps.
    high: Streaks = state(Streaks)
    #: The validation loss of guessing.
    guessing: float = state(float)
    #: Whether the first evaluation came before the model had learned anything.
    early: bool = state(bool)
    #: The latest validation losses.
    recent: list[float] = state(list)
    #: Number of evaluations after a training step, by result of the search for comparable losses.
    evaluations: dict[str, int] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at the first step after an evaluation."""
        if view.mode is Mode.TRAIN:
            self._remember(view)
        for stretch in view.stretches:
            yield from self._stretch(view, stretch)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """A finding of an evaluation at the end of the attempt."""
        for stretch in view.stretches:
            yield from self._stretch(view, stretch)

    def applicable(self, view: StepView) -> str:
        """Not without evaluations whose losses can be compared with the training loss."""
        if self.best:
            return ""
        seen = self.evaluations
        if seen.get("not finite"):
            return "no evaluation had a finite loss"
        if seen.get("another"):
            return "training and evaluation compute different losses"
        if seen.get("none"):
            count = seen["none"]
            which = "the evaluation" if count == 1 else f"any of {count} evaluations"
            return f'the loss of {which} was not seen; record it with watchglass.save_scalar("loss", value)'
        return "there was no evaluation after a training step"

    def _remember(self, view: StepView) -> None:
        losses, whole = view.scalars(Role.LOSS), view.scalar("loss")
        if whole is not None:
            losses["loss"] = whole  # also of a loop that records it by name
        for name, value in losses.items():
            signals.remember_start(self.starts.setdefault(name, []), value)
            self._lower(name, value)
            known = whole is None or not name.startswith(_PART) or name in self.partial
            if known or not (math.isfinite(value) and math.isfinite(whole or 0.0)):
                continue
            if not math.isclose(value, whole or 0.0, rel_tol=SAME_LOSS, abs_tol=SAME_LOSS_NEAR_ZERO):
                self.partial.append(name)

    def _lower(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.lowest[name] = min(self.lowest.get(name, math.inf), value)

    def _stretch(self, view: StepView, stretch: Stretch) -> Iterable[Finding]:
        if stretch.mode is Mode.TRAIN:
            means = {name: stretch.means[name] for name in _losses(view, stretch)}
            self.train.update({name: mean for name, mean in means.items() if math.isfinite(mean)})
            return
        # An evaluation before the first training step only tests the code.
        if stretch.train_step < max(0, self.start_step) or not self.train:
            return
        kind, names = self._comparable(view, stretch)
        self.evaluations[kind] = self.evaluations.get(kind, 0) + 1
        if not names or names[0] not in self.train or not self.starts.get(names[0]):
            return
        loss, train_loss = stretch.means[names[1]], self.train[names[0]]
        self._lower(names[0], loss)
        if names != self.pair:
            self.pair, self.best, self.recent = names, {}, []
            self.high.pop("rises", None)
        self.recent = [*self.recent[-(_RECENT - 1) :], loss]
        if not self.best:
            # Before the model has learned anything, an evaluation shows what guessing gives.
            self.early = self._fallen(train_loss) <= self.learned
            self.guessing = loss if self.early else self._level()
        high = self._fallen(train_loss) >= self.memorized and loss >= self.useless * self.guessing
        stays = self.high.follow(stretch.train_step, high and self.lowest[names[0]] > 0, "stays")
        if not self.best or loss < self.best["loss"]:
            self.best = {"loss": loss, "train_step": stretch.train_step, "train_loss": train_loss}
        overfits = (
            loss > self._limit(loss, train_loss) and loss - self.best["loss"] > 3 * self._noise() and loss > train_loss
            and train_loss <= self.best["train_loss"] and self._fallen(train_loss) > self.learned
        )  # fmt: skip
        rises = self.high.follow(stretch.train_step, overfits, "rises")
        if max(rises, stays) >= self.patience:
            yield self._overfits(view, stretch, loss, train_loss)

    def _comparable(self, view: StepView, stretch: Stretch) -> tuple[str, list[str]]:
        """Result for an evaluation, and the names of a comparable training and validation loss."""
        losses = _losses(view, stretch)
        if not losses:
            return "none", []
        finite = [name for name in losses if math.isfinite(stretch.means[name])]
        if not finite:
            return "not finite", []
        parts = [name for name in self.starts if name.startswith(_PART)]
        common = [name for name in parts if name in finite]
        if not parts or not any(name.startswith(_PART) for name in losses):
            # Recorded by the script, or by another framework: losses of the same name are the same.
            whole = [name for name in finite if not name.startswith(_PART)]
            known = [name for name in whole if name in self.train] or [n for n in self.train if n not in parts]
            return ("compared", [known[0], whole[0]]) if known and whole else ("another", [])
        if not common:
            return "another", []
        entire = [name for name in common if name not in self.partial]
        if entire and "loss" in self.train:
            return "compared", ["loss", entire[0]]
        return "compared", [common[0], common[0]]

    def _noise(self) -> float:
        """How much validation losses scatter from one to the next, without their trend; 0 for too few of them."""
        changes = [after - before for before, after in pairwise(self.recent)]
        return levels.spread(changes) / math.sqrt(2) if len(changes) >= _ENOUGH else 0.0

    def _level(self) -> float:
        return levels.level(self.starts[self.pair[0]], lowest=self.lowest.get(self.pair[0], 0.0))

    def _fallen(self, train_loss: float) -> float:
        """Decrease of the training loss as a share of its start; all of it for a loss without a ratio."""
        if self.lowest[self.pair[0]] <= 0:
            return 1.0
        return levels.progress(self.starts[self.pair[0]], train_loss, lowest=self.lowest[self.pair[0]])

    def _limit(self, loss: float, train_loss: float) -> float:
        """The limit above which the validation loss has clearly risen.

        Where the samples are memorised and the validation loss is not low either, its ratio to the best one says so.

        A loss that was ever zero or below has no ratio: the unit is its decrease since the first training losses.
        """
        first, lowest = self.starts[self.pair[0]], self.lowest.get(self.pair[0], 0.0)
        best, start = float(self.best["loss"]), levels.level(first, lowest=lowest)
        if lowest > 0 and self._useless():
            return best * (1 + self.ratio_threshold / 2)
        if lowest > 0 and self._fallen(train_loss) >= self.memorized and loss > _HIGH * start:
            return best * (1 + 2 * self.ratio_threshold)
        if lowest > 0:
            return best + max(self.ratio_threshold * best, self.min_rise * start)
        return best + max(self.ratio_threshold, self.min_rise) * max(start - best, levels.spread(first))

    def _useless(self) -> bool:
        """Whether no evaluation was better than guessing."""
        return self.lowest[self.pair[0]] > 0 and float(self.best["loss"]) >= self.useless * self.guessing

    def _symptom(self) -> str:
        """What is wrong with the validation loss."""
        if self.early and self._useless():
            return "validation_never_fell"
        return "validation_rises" if self._rises() else "validation_stays_high"

    def _rises(self) -> bool:
        return self.high.times("rises") >= self.patience

    def _overfits(self, view: StepView, stretch: Stretch, loss: float, train_loss: float) -> Finding:
        best = self.best["loss"]
        what = self.pair[1].removeprefix(_PART)
        loss_name = "validation loss" if self.pair[0] == "loss" else f"validation loss ({what})"
        return self.finding(
            view,
            subject="validation loss",
            tensors=[self.pair[1]],
            value=loss,
            limit=self._limit(loss, train_loss),
            message=f"the {loss_name} is {loss:.3g} after training step {stretch.train_step}, up from {best:.3g} "
            f"after step {self.best['train_step']}, while the training loss went from {self.best['train_loss']:.3g} to "
            f"{train_loss:.3g}",
            symptoms=(self._symptom(),),
            evidence={
                "evaluated_step": stretch.train_step,
                "best_step": self.best["train_step"],
                "best_loss": best,
                "train_loss": train_loss,
                **signals.optimizer_evidence(view),
            },
            since=self.high.since("rises" if self._rises() else "stays") if view.mode is Mode.TRAIN else None,
        )


def _losses(view: StepView, stretch: Stretch) -> list[str]:
    """Names of the losses of a stretch, ``loss`` first."""
    named = {info.name for info in view.catalog.select(Selection(Role.LOSS))}
    found = [name for name in stretch.means if name in named and name != "loss"]
    return ["loss", *found] if "loss" in stretch.means else found
