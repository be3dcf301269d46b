"""Underfit: a model that is too small has learned what it can."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, TensorInfo, facts, loss_kind, rounded
from watchglass.rules import course, guessing, learning_rates, levels, neighbours, signals
from watchglass.rules.graph import forward
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import median
from watchglass.tables import Selection, StepView

#: Update over weight from which on weights move: without that, a loss that stays says nothing about the model. Captures
#: that decide, and the share of the captured part of the run that they must reach: a schedule may end at zero.
_MOVES, _LATEST, _LONG = 1e-4, 5, 2 / 3
#: Units of a bottleneck that are too few for this many classes, whatever the inputs are.
_NO_MORE, _CLASSES = 2, 4
#: Most channels of a convolution that count as its units: with more, its positions hold too much information.
_CHANNELS = 4
#: Loss over its start from which alike errors count: those of a solved task are alike, and tiny.
_UNSOLVED = 0.15
#: Share of the training loss below which a validation loss shows that something but the model raises the former.
_TRAINED = 0.8
#: How many times the loss of a look at the most similar sample is far above it.
_FAR = 1.5
#: Share above its last level from which on the loss has settled, so that errors are those of the trained model.
_SETTLED = 0.1
#: Results for each unit that all values pass through, above which an autoencoder may have few units on purpose.
_PER_UNIT = 4
#: Fall over the second half, as a share of that over the first one, up to which the loss has an end in sight.
_SLOWS = 0.5
#: Batches whose targets give their variance.
_VARIANCES = 64


class Underfit(Rule):
    """Training and validation loss have both stopped falling at a high level, in a small model.

    Looks at: the training loss in windows that widen with the length of the run, the last validation loss, the widths
        of the layers between inputs and outputs, and how similar targets and errors of samples with similar inputs are.
    Fires when: one of these holds at the end of a run of at least `windows` windows. In each case the last validation
        loss is at most `gap` above the training loss, and the learning rate is usual and has moved the weights up to
        the last third at least. The model must be small: linear, or all values pass through one or two units. A model
        that has learned something may be larger: all values pass through at most `units` units, or its widest hidden
        layer has at most `widest` units (4 channels).
        * The training loss has not clearly fallen by `fall` over the second half (by `slow`, if the model is linear or
        has one or two units), and is above the loss of predicting the target of the most similar sample of the same
        batch.
        * The training loss has fallen by less than `slow` over the second half and is not low, and the errors of
        samples with similar inputs are alike since the loss is near its last level: the inputs contain more than the
        model uses. Or the loss is more than 1.5 times that of the most similar sample.
        * All values pass through one or two units. The loss is below `learned` times its start, has fallen by less than
        `slow` over the second half, and is above `high` times its start (or the loss of a guess that knows no input,
        if that is lower). It may fall faster if it slows down, and would end above that if it kept slowing down by the
        same ratio. With more than four values for each unit, as of an autoencoder, there must be only one unit. If
        samples have no similar inputs (tokens), only this condition can hold.
    Usual causes: layers that are too narrow, a bottleneck between them, a linear model of what is not linear.
    What to try: wider layers, or more of them.
    Costs: nothing in addition to losses, the shapes of weights, and the facts output_sketch, target_sketch and
        forward_graph.
    Source: Goodfellow et al., Deep Learning, 5.2; Cover and Hart, Nearest Neighbor Pattern Classification, 1967: no
        better prediction has a larger error than the nearest sample; Moran, Notes on Continuous Stochastic Phenomena,
        1950: errors that are alike where inputs are; house: the limits.
    """

    starts_with = "task"
    needs = (
        Needs(scalars=("loss",), why="to follow the training loss"),
        Needs(role=Role.WEIGHT, statistics=("rms",), why="to know the widths of layers"),
        Needs(scalars=("loss",), modes=(Mode.EVAL,), optional=True, why="to compare it with the validation loss"),
        Needs(role=Role.UPDATE, statistics=("rms", "nonfinite"), optional=True, why="to see whether weights move"),
        Needs(facts=("forward_graph",), optional=True, why="to find layers through which all values pass"),
        Needs(facts=("output_sketch", "target_sketch"), optional=True, why="to compare similar samples"),
        Needs(facts=("input_sketch", "data_loader"), optional=True, why="to tell an evaluation from a model that acts"),
    )

    windows: int = parameter(8, help="windows before a plateau counts", unit="windows", ge=4)
    fall: float = parameter(0.03, help="decrease over the second half, as a share of the start", unit="ratio", ge=0)
    slow: float = parameter(0.08, help="the same with one or two units, or alike errors", unit="ratio", ge=0)
    learned: float = parameter(0.95, help="training loss over its start below which it learns", unit="ratio", gt=0)
    high: float = parameter(0.3, help="training loss over its start above which it is high", unit="ratio", gt=0)
    gap: float = parameter(0.15, help="validation loss above the training loss", unit="ratio", ge=0)
    units: int = parameter(4, help="units through which all values pass", unit="units", ge=1)
    widest: int = parameter(16, help="units of the widest hidden layer of a small model", unit="units", ge=0)

    start: list[float] = state(list)
    lowest: float = state(lambda: math.inf)
    course: dict[str, Any] = state(course.empty)
    validation: list[float] = state(list)
    ratios: list[float] = state(list)
    #: Last captured step, and the last one at which weights moved.
    captured: int = state(int)
    moved: int = state(lambda: -1)
    #: See :mod:`watchglass.rules.neighbours` and :mod:`watchglass.rules.guessing`.
    compared: list[list[float]] = state(list)
    pools: dict[str, dict[str, Any]] = state(dict)
    #: Variances of the targets of single batches.
    variances: list[float] = state(list)
    #: Whether the loss was the mean of its function wherever both are known.
    plain: bool = state(lambda: True)
    calls: dict[str, Any] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Follow the run."""
        self._evaluations(view)
        loss = signals.loss(view)
        guessing.follow_calls(self.calls, view)
        if view.mode is not Mode.TRAIN:
            return ()
        neighbours.remember(self.compared, view)
        learning_rates.remember_ratio(self.ratios, view)
        if self.ratios and view.captured:
            self.captured = view.model_step
            self.moved = view.model_step if median(self.ratios[-_LATEST:]) >= _MOVES else self.moved
        for sketch in view.facts(facts.TargetSketch):
            guessing.add_targets(guessing.pool_of(self.pools, sketch), sketch)
            self.plain &= not (sketch.unreduced or sketch.helped)
            if sketch.variance is not None and len(self.variances) < _VARIANCES:
                self.variances.append(float(sketch.variance))
        for pool in self.pools.values():
            self.plain &= guessing.is_mean(view, pool["function"]) is not False
        if loss is not None and math.isfinite(loss):
            self.lowest = min(self.lowest, loss)
            signals.remember_start(self.start, loss)
            course.follow(self.course, loss)
        return ()

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The judgement."""
        self._evaluations(view)
        guessing.follow_calls(self.calls, view)
        found = course.windows(self.course)
        if len(found) < self.windows or self.lowest <= 0 or not self._comparable(view):
            return
        start, now, half = levels.level(self.start, lowest=self.lowest), found[-1], found[len(found) // 2]
        falls = half.value - now.value
        flat = falls < self.fall * start and half.above(now) < 4
        if any(loss > (1 + self.gap) * now.value + 2 * now.error for loss in self.validation):
            return
        widest, narrowest = _widest(view), _narrowest(view)
        tiny = not widest or min(widest, narrowest) <= _NO_MORE
        learns = now.value < self.learned * start
        small = tiny or (learns and (narrowest <= self.units or widest <= self.widest))
        # Dropout and augmentation belong to the training only.
        best = min([now.value, *self.validation])
        lookup, alike = self._lookup(), self._alike(view)
        if lookup is not None and best > lookup and small and (flat or (tiny and falls < self.slow * start)):
            words = f", and the most similar sample of the same batch would give {lookup:.3g}"
            yield self._finding(view, now.value, lookup, words, widest, narrowest, similar=lookup)
            return
        left = best > _TRAINED * now.value and best > _UNSOLVED * start
        slows = left and small and falls < self.slow * start
        if alike is not None and slows:
            words = f", and the errors of samples with similar inputs are still alike ({rounded(alike, 2)} of 1)"
            yield self._finding(view, now.value, (1 - alike**2) * now.value, words, widest, narrowest, alike=alike)
            return
        if lookup is not None and best > _FAR * lookup and slows:
            words = f", and the most similar sample of the same batch would give {lookup:.3g}"
            yield self._finding(view, now.value, _FAR * lookup, words, widest, narrowest, similar=lookup)
            return
        units = min(widest, narrowest)
        if not learns or not 0 < units <= _NO_MORE:
            return
        high = self.high * min(start, self._guess() or start)
        slowly = falls < self.slow * start and now.value > high
        if (slowly or end_of(start, half.value, now.value) > high) and self._more_than_fits(view, units):
            words = f", after {start:.3g} at the start"
            goes = "stays near" if slowly else "falls more and more slowly, to"
            yield self._finding(view, now.value, high, words, widest, narrowest, goes, first_loss=start)

    applicable = staticmethod(signals.without_layers)

    def _evaluations(self, view: StepView) -> None:
        for stretch in view.stretches:
            loss = stretch.means.get("loss", math.nan)
            if stretch.mode is Mode.EVAL and math.isfinite(loss):
                self.validation = [loss]

    def _comparable(self, view: StepView) -> bool:
        """Whether nothing but the model can keep the loss where it is, as far as rates and updates show."""
        if view.several or view.in_turns or signals.resumed(view) or guessing.acts(self.calls):
            return False
        moves = self.moved >= 0 and self.moved >= _LONG * self.captured
        return moves and learning_rates.beyond_usual(view) == ""

    def _lookup(self) -> float | None:
        """The loss of predicting the targets of the most similar sample; None where that is not known."""
        pool = next(iter(self.pools.values())) if len(self.pools) == 1 else None
        return neighbours.loss_of_lookup(self.compared, pool) if pool is not None and self.plain else None

    def _more_than_fits(self, view: StepView, units: float) -> bool:
        """Whether the units that all values pass through are not as few on purpose, as those of an autoencoder."""
        pool = next(iter(self.pools.values())) if len(self.pools) == 1 else {}
        columns, by_class = int(pool.get("columns") or 0), loss_kind(str(pool.get("function"))).of_classes
        classes = max(signals.classes(view) or 0, columns if by_class else 0)
        return classes >= _CLASSES or (units <= 1 and columns >= _CLASSES) or 0 < columns <= _PER_UNIT * units

    def _guess(self) -> float | None:
        """The loss of a guess that knows no inputs; None where that is not known."""
        pool = next(iter(self.pools.values())) if len(self.pools) == 1 else None
        if pool is None or not self.plain:
            return None
        if pool["function"] == "mse_loss":
            return sum(self.variances) / len(self.variances) if self.variances else None
        return guessing.guess(pool)

    def _alike(self, view: StepView) -> float | None:
        """How alike the errors of similar samples are once the loss has settled; None where that is not certain."""
        pool = next(iter(self.pools.values())) if len(self.pools) == 1 else None
        # Smoothed labels leave the same error on every sample that is right.
        if pool is None or pool.get("smoothing"):
            return None
        # In a short run most captures are at its beginning.
        since = min(view.model_step // 2, course.settled_at(self.course, _SETTLED))
        return neighbours.errors_agree(self.compared, since)

    def _finding(
        self, view: StepView, loss: float, limit: float, words: str, widest: float, narrowest: float,
        goes: str = "stays near", **measured: float,
    ) -> Finding:  # fmt: skip
        described = view.latest_fact(facts.ModelDescription)
        parameters = described.parameters if described is not None else None
        width = min(widest, narrowest)
        units = f"{rounded(width)} unit{'s' if width > 1 else ''}"
        small = f"all values pass through {units}" if narrowest < widest else f"the widest hidden layer has {units}"
        about = small if width else "the model is linear"
        losses = f"{loss:.3g}" + (f" and the validation loss {self.validation[0]:.3g}" if self.validation else "")
        return self.finding(
            view,
            subject="plateau",
            tensors=[signals.loss_name(view) or "loss"],
            value=loss,
            limit=limit,
            message=f"the training loss {goes} {losses} in the second half of the run{words}; {about}",
            symptoms=("plateau_without_gap", "few_units"),
            evidence={
                **measured,
                **({"widest": width} if width else {}),
                **({"parameters": parameters} if isinstance(parameters, int) else {}),
            },
        )


def end_of(start: float, half: float, now: float) -> float:
    """Where a loss ends whose fall gets smaller by one ratio for each half of the run; minus infinity if unknown."""
    first, second = start - half, half - now
    if second <= 0 or second > _SLOWS * first:
        return now if second <= 0 else -math.inf
    ratio = second / first
    return now - second * ratio / (1 - ratio)


def _widest(view: StepView) -> float:
    """Units of the widest layer before the last one: 0 for none, infinite where a convolution has many channels."""
    weights = sorted(view.catalog.select(Selection(Role.WEIGHT, min_dims=2)), key=lambda info: info.layer_index)
    last = weights[-1].layer_index if weights else 0
    hidden = [(info, info.shape[_axis_of_width(info)]) for info in weights if info.layer_index < last]
    many = any(info.module_kind is ModuleKind.CONVOLUTION and width > _CHANNELS for info, width in hidden)
    return math.inf if many else float(max((width for _, width in hidden), default=0))


def _axis_of_width(weight: TensorInfo) -> int:
    units = weight.unit_axis or 0
    if weight.module_kind is ModuleKind.EMBEDDING:
        return 1  # a table has a row for each of its words, in all frameworks
    # The gates of a recurrent layer lie beside each other along its units.
    return int(units == 0) if weight.module_kind is ModuleKind.RECURRENT else units


def _narrowest(view: StepView) -> float:
    """Units that all values pass through on their way to the last layer; infinite where that is not known."""
    graph = forward.latest(view)
    return graph.narrowest() if graph.whole else math.inf
