"""NoBetterThanGuessing: the loss is one that a guess without the inputs would reach."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, rounded
from watchglass.rules import guessing, learning_rates, neighbours, signals
from watchglass.rules.graph import forward
from watchglass.rules.graph.terms import smooths_labels, terms_of
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView, Stretch

#: Sketches of values that are compared, and captured losses and losses of steps of which the mean is known.
_SKETCHES, _CAPTURES, _STEPS = 6, 6, 24
#: A loss of this many guesses is far above one: not what the targets explain.
_ABOVE = 1.15
#: Classes from which on anything that is learned shows by more.
_MANY = 10
#: Evaluations whose results are remembered.
_MOST_EVALUATIONS = 256
#: Correlation between outputs and targets up to which they have nothing in common.
_UNRELATED = 0.2
#: Accuracy above the share of the most frequent class that no evaluation reaches by chance, however small (house).
_CLEARLY = 0.05
#: A model learns whose losses in the last third are below this share of the guess, and of those in the middle third.
_STILL_FALLING = 0.9


class NoBetterThanGuessing(Rule):
    """The loss is no better than that of a guess that ignores the inputs.

    Looks at: the loss of classifications against the logarithm of the number of classes, or the entropy of their
        frequencies, and the accuracy against the most frequent class; the squared error of other predictions against
        the variance of their targets. In training and in evaluations.
    Fires when: the mean of the last third of the losses is above `share` of what a guess reaches, is known to within 2
        %, and no longer falls. It must not be clearly below both the guess and the mean of the middle third: such a run
        is short, or its learning rate has decayed. The rule judges this from half of the planned steps on, or at the
        end. Or three quarters of at least `evaluations` evaluation losses are above that share, and the accuracy is not
        above the share of the most frequent class. In a run of several models, some of which may be meant to fail, it
        is an `info`. The rule skips models that are trained in turns (GANs), losses that the script masks or weights,
        targets that another model computes, and reinforcement learning. If samples with similar inputs have similar
        targets, the message reports it: the inputs then carry information about the targets, and the fault is
        elsewhere. Attention to tokens that have no positions is named as the cause.
    Usual causes: labels that do not belong to their inputs, an augmentation that destroys what they depend on, a model
        that no gradient reaches.
    What to try: overfit one batch. If that works, look at the data; if not, at model and loss.
    Costs: a copy of at most 32,768 elements of outputs and targets at about 80 of 5,000 steps.
    Source: a constant prediction has the entropy of the labels, or the variance of the targets, as its loss; house:
        `share`, windows.
    """

    starts_with = "task"
    needs = (
        Needs(facts=("target_sketch", "output_sketch"), why="to know what a guess reaches"),
        Needs(scalars=("loss",), why="to compare it"),
        Needs(facts=("loss_graph",), optional=True, why="to see whether the loss smooths its labels"),
        Needs(facts=("input_sketch", "data_loader"), optional=True, why="to tell an evaluation from a model that acts"),
        Needs(facts=("forward_graph",), optional=True, why="to see attention that knows no positions"),
    )

    share: float = parameter(0.98, help="share of a guess's loss from which a loss is no better", gt=0, le=1)
    share_of_many: float = parameter(0.96, help="the same for ten classes and more", gt=0, le=1)
    min_steps: int = parameter(60, help="steps before a run is judged", unit="steps", ge=1)
    evaluations: int = parameter(2, help="evaluations before their losses are judged", ge=1)

    #: Targets of TRAIN steps, and of evaluations.
    pools: dict[str, dict[str, Any]] = state(dict)
    evaluated: dict[str, dict[str, Any]] = state(dict)
    #: Whether each captured loss was the mean of its function; None before the first.
    plain: bool | None = state(lambda: None)
    #: The same of losses inside of a model, by the rows that were sketched.
    near: bool | None = state(lambda: None)
    #: Of values, by sketch: error, that of their mean, correlation.
    errors: list[list[float]] = state(list)
    #: Sketches of values, and captured means of a loss function, in each doubling of the step.
    sketched: dict[str, int] = state(dict)
    captured: dict[str, int] = state(dict)
    #: Of evaluations: loss and accuracy, -1 for none.
    judged: list[list[float]] = state(list)
    calls: dict[str, Any] = state(dict)
    #: See :mod:`watchglass.rules.neighbours`.
    compared: list[list[float]] = state(list)
    steps: int = state(int)
    masked: bool = state(bool)
    #: Whether the loss smooths labels, by its settings or its graph.
    smoothed: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding from half of the planned steps on."""
        self._stretches(view.stretches)
        guessing.follow_calls(self.calls, view)
        if view.mode is Mode.EVAL:
            for sketch in view.facts(facts.TargetSketch):
                guessing.add_targets(guessing.pool_of(self.evaluated, sketch), sketch)
        if view.mode is not Mode.TRAIN:
            return
        for graph in view.facts(facts.TermsOfLoss):
            self.smoothed |= smooths_labels(terms_of(graph))
        self.steps = view.model_step + 1
        neighbours.remember(self.compared, view)
        for sketch in view.facts(facts.TargetSketch):
            guessing.add_targets(guessing.pool_of(self.pools, sketch), sketch)
            self.masked |= guessing.reduced_by_script(view, sketch)
            self.smoothed |= bool(sketch.smoothing)
            # A target network moves the targets with the model.
            self.masked |= bool(sketch.helped) and sketch.kind == "values"
        for output in view.facts(facts.OutputSketch):
            self._add_errors(output, view.model_step)
            loss, sampled = view.scalar("loss"), output.loss
            if self.plain is None and loss is not None and sampled is not None:
                # A model that computes its loss itself: that of some rows is near that of all.
                self.near = abs(loss - sampled) < 0.2 * sampled and self.near is not False
        for pool in self.pools.values():
            same = guessing.is_mean(view, pool["function"])
            self.plain = self.plain if same is None else same and self.plain is not False
            if view.scalar(f"loss/{pool['function']}") is not None:
                _count(self.captured, view.model_step)
        planned = guessing.planned(view)
        half = planned is not None and self.steps == max(self.min_steps, planned // 2)
        if half and not signals.warming_up(view):
            yield from self._training(view, at_end=False)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """Findings of the whole run."""
        self._stretches(view.stretches)
        guessing.follow_calls(self.calls, view)
        found = list(self._training(view, at_end=True))
        yield from found or self._evaluation(view)

    def _stretches(self, stretches: tuple[Stretch, ...]) -> None:
        for stretch in stretches:
            if stretch.mode is not Mode.EVAL or len(self.judged) >= _MOST_EVALUATIONS:
                continue
            pool = self._pool()
            loss = stretch.means.get(f"loss/{pool['function']}", stretch.means.get("loss")) if pool else None
            if loss is not None and math.isfinite(loss):
                self.judged.append([loss, stretch.means.get("accuracy", -1.0)])

    def _pool(self) -> dict[str, Any] | None:
        """The targets of the only loss; None if there are several."""
        return next(iter(self.pools.values())) if len(self.pools) == 1 else None

    def _add_errors(self, sketch: facts.OutputSketch, step: int) -> None:
        rows, constant = sketch.rows, sketch.constant_error or 0.0
        if rows > 1 and constant > 0:
            # The mean of these very rows is nearer to them than the best guess of a run.
            self.errors.append([sketch.squared_error or 0.0, constant * rows / (rows - 1), sketch.correlation or 0.0])
            _count(self.sketched, step)

    def _training(self, view: StepView, *, at_end: bool) -> Iterable[Finding]:
        pool = self._pool()
        if pool is None or self.masked or view.in_turns or guessing.acts(self.calls):
            return
        # Few training steps may be captured, and an evaluation has the same classes.
        more = next(iter(self.evaluated.values()), pool)
        known = pool if guessing.knows_frequencies(pool) or not guessing.knows_frequencies(more) else more
        limit = guessing.guess(known)
        if limit is None:
            yield from self._values(view)
            return
        if self.steps < self.min_steps or limit < 1e-3:
            return
        name, least = (
            ("loss", _STEPS)
            if self.plain or (self.plain is None and self.near)
            else (f"loss/{pool['function']}", _CAPTURES)
        )
        values = view.series(name, Mode.TRAIN)
        last = values[-max(len(values) // 3, 1) :]
        if len(last) < least or not np.isfinite(last).all():
            return
        if name != "loss" and self._early(self.captured, len(last)):
            return
        mean, error = float(last.mean()), float(last.std(ddof=1) / math.sqrt(len(last)))
        accurate = self._is_accurate(view, pool)
        if mean < self._share(pool) * limit or error > 0.02 * limit or (accurate and not self.smoothed):
            return
        early, late = np.array_split(last, 2)
        # The difference of the means of halves has twice the error of the mean.
        falls = early.mean() - late.mean() > 4 * error and not mean > _ABOVE * limit
        # A short run, or one whose learning rate has decayed, has learned what is certain, and no more.
        middle = values[-2 * len(last) : -len(last)]
        learns = not self.smoothed and min(limit, middle.mean()) - mean > 3 * error
        if falls or learns or (mean > _ABOVE * limit and not at_end):
            return
        about = f"the training loss of {name.removeprefix('loss/')}" if name != "loss" else "the training loss"
        if self.smoothed and not mean > _ABOVE * limit and (accurate or self._predicts(known)):
            yield self._of_smoothing(view, f"{about}, {mean:.4g} in the last third, is", mean, limit, known)
            return
        yield self._finding(view, "training", f"{about}, {mean:.4g} in the last third, is", mean, limit, known)

    def _predicts(self, pool: dict[str, Any]) -> bool:
        """Whether evaluations predict more than the most frequent class."""
        accuracies = [accuracy for _, accuracy in self.judged if accuracy >= 0]
        return bool(accuracies and pool["counts"]) and float(np.median(accuracies)) > _beyond_chance(pool)

    def _of_smoothing(self, view: StepView, what: str, value: float, limit: float, pool: Any) -> Finding:
        return self.finding(
            view,
            severity=Severity.INFO if view.several else Severity.WARNING,
            subject="training",
            value=value,
            limit=limit,
            message=f"{what} no better than guessing: {guessing.guess_words(pool)}, although the model predicts more "
            "labels than those of the most frequent class; the loss smooths its labels",
            symptoms=("smoothed_to_the_guess",),
            evidence=signals.evidence(view),
        )

    def _early(self, counts: dict[str, int], last: int) -> bool:
        """Whether the last ones begin in the first quarter of the run: then they show nothing about its end."""
        for doubling in sorted(map(int, counts), reverse=True):
            last -= counts[str(doubling)]
            if last <= 0:
                return 1 << doubling <= self.steps // 4
        return True

    def _share(self, pool: dict[str, Any]) -> float:
        """The share of a guess's loss from which a loss counts as no better."""
        return self.share_of_many if (pool.get("columns") or 0) >= _MANY else self.share

    def _is_accurate(self, view: StepView, pool: dict[str, Any]) -> bool:
        accuracy = view.series("accuracy", Mode.TRAIN)
        last = accuracy[-max(len(accuracy) // 3, 1) :]
        if not len(last) or not pool["counts"]:
            return False
        chance = guessing.most_frequent(pool)
        return bool(last.mean() > chance + 0.02 + 2 * last.std() / math.sqrt(len(last)))

    def _values(self, view: StepView) -> Iterable[Finding]:
        last = np.asarray(self.errors[len(self.errors) * 2 // 3 :])
        if len(last) < _SKETCHES or self.steps < self.min_steps or self._early(self.sketched, len(last)):
            return
        error, limit, correlation = (float(each) for each in last.mean(axis=0))
        # Losses of all steps: the sketches may come from before the model had learned.
        losses = view.series("loss", Mode.TRAIN)
        middle, late = np.array_split(losses, 3)[1:]
        if len(losses) > 2 and late.mean() < _STILL_FALLING * min(middle.mean(), limit):
            return
        noise = float(np.std(last[:, 0] / last[:, 1], ddof=1) / math.sqrt(len(last)))
        first = float(np.median([each[0] for each in self.errors[:4]]))
        if error < self.share * limit or noise > 0.2 * error / limit or correlation > _UNRELATED or error < 0.5 * first:
            return
        what = f"the squared error, {error:.4g} in the last third, is"
        yield self._finding(view, "training", what, error, limit, self._pool(), "the variance of the targets")

    def _evaluation(self, view: StepView) -> Iterable[Finding]:
        # Their classes may be more even than those of TRAIN steps.
        pool = next(iter(self.evaluated.values())) if len(self.evaluated) == 1 and self._pool() else None
        limit = guessing.guess(pool) if pool is not None else None
        if pool is None or limit is None or self.masked or view.in_turns or len(self.judged) < self.evaluations:
            return
        # Of many the best is better by chance: a quarter of them has to be.
        best = float(np.quantile([loss for loss, _ in self.judged], 0.25))
        accuracy = float(np.quantile([accuracy for _, accuracy in self.judged], 0.75))
        knows = pool["counts"] and guessing.knows_frequencies(pool)
        if not knows or max(each for _, each in self.judged) < 0 or best < self._share(pool) * limit or limit < 1e-3:
            return
        if accuracy > _beyond_chance(pool) or self.steps < self.min_steps:
            return
        what = f"three quarters of {len(self.judged)} evaluation losses are above {best:.4g}, which is"
        yield self._finding(view, "evaluation", what, best, limit, pool)

    def _finding(
        self, view: StepView, subject: str, what: str, value: float, limit: float, pool: Any, words: str = ""
    ) -> Finding:
        words = f"{words} = {limit:.4g}" if words else guessing.guess_words(pool)
        above = subject == "training" and value > _ABOVE * limit
        symptom = "loss_above_guess" if above else "loss_at_guess" if subject == "training" else "evaluation_at_guess"
        placeless = forward.latest(view).attends_without_positions()
        agree = neighbours.targets_agree(self.compared)
        although = (
            f", although samples with similar inputs have similar targets ({rounded(agree, 2)} of 1)" if agree else ""
        )
        return self.finding(
            view,
            # Of the models of a search some are expected to fail.
            severity=Severity.INFO if view.several else Severity.WARNING,
            subject=subject,
            value=value,
            limit=limit,
            message=f"{what} no better than guessing: {words}{although}",
            symptoms=(
                symptom,
                *(("attention_without_positions",) if placeless else ()),
                *learning_rates.unusual(view),
                *neighbours.symptoms(self.compared),
            ),
            evidence=signals.evidence(view),
        )


def _beyond_chance(pool: dict[str, Any]) -> float:
    """Accuracy that an evaluation on such targets does not reach by chance."""
    chance, rows = guessing.most_frequent(pool), pool["rows"] / max(1, pool["sketches"])
    # At least one of a hundred: the share of the most frequent class is an estimate itself.
    return chance + min(_CLEARLY, max(0.01, 4 * math.sqrt(chance * (1 - chance) / max(1.0, rows))))


def _count(counts: dict[str, int], step: int) -> None:
    doubling = str(step.bit_length())
    counts[doubling] = counts.get(doubling, 0) + 1
