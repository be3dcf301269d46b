"""VanishingGradient: the first layers receive almost no gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import INACTIVE_UNITS, Finding, Mode, ModuleKind, Role, TensorInfo, facts
from watchglass.rules import learning_rates, signals
from watchglass.rules.classic.saturation import OF_SATURATION, saturating_between
from watchglass.rules.graph import forward
from watchglass.rules.graph.forward import ForwardGraph
from watchglass.rules.graph.terms import data_terms
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import vanishing_gradient
from watchglass.rules.streaks import Streaks
from watchglass.tables import Selection, Statistics, StepView

#: Layers in a row from which on a model without shortcuts and normalisation counts as deep (house).
_DEEP = 8
#: First layers of which the liveliest counts where gradients take several ways: a query, a key and a value (house).
_BEGINNING = 3
#: Fall of the loss below which nothing was learned; multiples of `ratio` that explain it, and a loss that falls little.
_NOTHING, _EXPLAINS_NOTHING, _EXPLAINS_LITTLE = 0.1, 20.0, 3.0
#: Gradient of the first layer over that of the last from which on nothing is lost in between (house).
_EVEN = 0.1
#: Factor of a loss below which it makes gradients small (house).
_TINY = 1e-2
#: What may have made gradients zero.
_IN_HALF_WORDS = ", while modules compute in float16 and nothing scales the loss"
#: Layers on the shortest way through a model on which no signal is kept, whatever the initial weights (house).
_TOO_DEEP = 16
#: Steps after which a run that learns anything shows it, and accuracy above guessing of a model trained before (house).
_LONG, _TRAINED = 64, 0.15


class _Depth(NamedTuple):
    """First and liveliest later layer, with the mean absolute gradient where it is not exactly zero."""

    first: TensorInfo
    last: TensorInfo
    first_mean: float
    last_mean: float


class VanishingGradient(Rule):
    """The gradient vanishes on its way to the first layers, or everywhere.

    Looks at: the mean absolute gradient of weights with two or more axes, over the values that are not exactly zero, in
        the order of the layers; and the loss.
    Fires when: one of these holds in `window` captures in a row, or in four times as many while the learning rate warms
        up. At the end of a run with fewer captures, all but the first must agree. The rule is silent once the loss has
        fallen to half of its start, because small gradients are then convergence.
        * The mean of the first layer is below `ratio` times that of a later layer which still gets a gradient. In a
        model with shortcuts or attention, the liveliest of the first layers counts. The head behind the last shortcut
        does not, and queries and keys get small gradients while attention is even. At the end of a run, 3 times `ratio`
        is enough. 20 times is enough if the loss has fallen by less than a tenth, and saturating activations or many
        layers without shortcuts and normalisation explain it.
        * The means of all layers are below `threshold`. The finding says so if the script multiplies every part of the
        loss that depends on data by a factor below 1 %.
        * At the end of a run of 64 steps or more the loss has fallen by less than a tenth, the learning rate is usual,
        and at least 8 layers follow each other without shortcuts and normalisation. Weights that keep the size of
        gradients over such a depth still make the outputs for different inputs alike. The rule then skips several
        models, models that act, resumed runs, and models that are accurate from the start. If the shortest way through
        the model has at least 16 layers, a loss that has fallen by less than `unless_progress` is enough.
    Usual causes: many sigmoid or tanh layers, poor initialisation without normalisation, dead ReLU layers.
    What to try: ReLU-like activations, normalisation, residual connections; a gradient scaler for float16.
    Costs: statistics of gradients and weights at captured steps, and which units of ReLUs are zero.
    Source: ratio 1e-3: AutoTrainer (ICSE 2021); 1e-6 over 5 captures: TheDeepChecker; 1e-7: SageMaker Debugger
        documentation; Schoenholz et al., Deep Information Propagation, ICLR 2017: inputs become alike over the depth.
    """

    starts_with = "stage"
    needs = (
        Needs(role=Role.GRADIENT, statistics=("nonfinite", "nonzero_abs_mean"), why="to compare gradients of layers"),
        Needs(scalars=("loss",), optional=True, why="to distinguish vanishing from convergence"),
        Needs(role=Role.WEIGHT, statistics=OF_SATURATION, optional=True, why="to see how activations shrink gradients"),
        Needs(rows=(INACTIVE_UNITS,), optional=True, why="to distinguish ReLU from activations that saturate"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
        Needs(
            facts=("loss_scale",), optional=True, why="to see that no scaler keeps gradients in the range of float16"
        ),
        Needs(scalars=("loss_scale",), optional=True, why="to see a scaler that works on a device"),
        Needs(facts=("forward_graph",), optional=True, why="to find shortcuts, and activations between layers"),
        Needs(facts=("loss_graph",), optional=True, why="to see a factor of the loss"),
    )
    calibrations: ClassVar = {"sagemaker": vanishing_gradient.VanishingGradient}

    threshold: float = parameter(1e-6, help="mean absolute below which all layers' gradients have vanished", ge=0)
    ratio: float = parameter(1e-3, help="first layer's mean over the largest mean of the last layers", gt=0, lt=1)
    window: int = parameter(5, help="captures in a row", unit="captures", ge=1)
    unless_progress: float = parameter(
        0.5, help="decrease of the loss, as a share of its start, from which on it is silent"
    )

    start: list[float] = state(list)
    #: ``"depth"`` while gradients shrink over depth, ``"everywhere"`` while they are small in all layers.
    small: Streaks = state(Streaks)
    #: Captures that were judged, and what the last one shows if it vanishes.
    captures: int = state(int)
    last: dict[str, Any] = state(dict)
    #: Of captures after the first one: the largest share of the first layer, and the last finding of a model that
    #: shrinks gradients by its structure.
    share: float = state(float)
    structure: dict[str, Any] = state(dict)
    #: Training steps, evaluations without a loss, the lowest loss, and accuracy above guessing in the first steps.
    steps: int = state(int)
    acted: int = state(int)
    lowest: float = state(lambda: math.inf)
    accuracy: list[float] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings at a TRAIN step with captured gradients."""
        loss = signals.loss(view)
        if view.mode is not Mode.TRAIN:
            self.acted += loss is None
            return
        self.steps += view.covers
        self.lowest = min(self.lowest, math.inf if loss is None else loss)
        signals.remember_start(self.start, loss)
        signals.remember_start(self.accuracy, signals.above_guessing(view))
        if not view.captured or signals.skipped(view) or signals.clipped_to_zero(view):
            return
        gradients = signals.weight_gradients(view)
        gradients = gradients.where(gradients.nonfinite == 0)
        if not len(gradients):
            return
        if signals.progress(self.start, signals.losses(view, 16)) > self.unless_progress:
            self.small.clear()
            self.last = {}
            return
        depth = self._depth(view, gradients)
        shrinks = depth is not None and depth.last_mean > 1e-9 and depth.first_mean < self.ratio * depth.last_mean
        # The means of layers without any gradient are NaN.
        largest = float(np.fmax.reduce(gradients.nonzero_abs_mean, initial=0.0))
        over_depth = self.small.follow(view.mode_step, shrinks, "depth")
        vanished = largest < self.threshold
        # An exactly solved problem (a loss of zero) has no gradient either.
        solved = any(loss == 0 for loss in signals.losses(view, 1))
        everywhere = self.small.follow(view.mode_step, vanished and not solved, "everywhere")
        self.captures += 1
        if depth is not None and depth.last_mean > 1e-9 and self.captures > 1:
            self.share = max(self.share, depth.first_mean / depth.last_mean)
            if 0 < self.share < _EXPLAINS_NOTHING * self.ratio:
                self.structure = self._over_depth(view, gradients, depth)
        self.last = {}
        if over_depth >= 2 and depth is not None:
            self.last = self._over_depth(view, gradients, depth)
        elif everywhere >= 2:
            even = depth is not None and depth.first_mean > _EVEN * depth.last_mean > 0
            self.last = self._everywhere(view, gradients, largest, even=even)
        # A last layer that starts from zero passes little gradient back until a warm-up has let it grow.
        window = 4 * self.window if signals.warming_up(view) else self.window
        if self.last and max(over_depth, everywhere) >= window:
            yield self._of_last(view)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement, on a run with few captures: all of them but a first one must agree."""
        few = self.captures < self.window
        if few and self.last and max(map(self.small.times, ("depth", "everywhere"))) >= self.captures - 1:
            yield self._of_last(view)
            return
        fallen = signals.progress(self.start, signals.losses(view, 16))
        explains = _EXPLAINS_NOTHING if fallen < _NOTHING else _EXPLAINS_LITTLE
        known = {"saturating_modules_between", "deep_and_plain"} & set(self.structure.get("symptoms", ()))
        if known and fallen <= self.unless_progress and self.ratio <= self.share < explains * self.ratio:
            yield self.finding(view, **{**self.structure, "limit": explains * self.ratio})
        elif not self.last and fallen < (self.unless_progress if _shortest(view) >= _TOO_DEEP else _NOTHING):
            yield from self._too_deep(view, fallen)

    def _of_last(self, view: StepView) -> Finding:
        since = self.small.since(self.last["subject"])
        return self.finding(view, **self.last, since=since)

    def applicable(self, view: StepView) -> str:
        """Not without a layer of weights."""
        catalog = view.catalog
        has_weights = any(catalog.select(Selection(role, min_dims=2)) for role in (Role.WEIGHT, Role.GRADIENT))
        return "" if has_weights or not len(catalog) else "the model has no layer with a weight matrix"

    def _too_deep(self, view: StepView, fallen: float) -> Iterable[Finding]:
        """A finding where nothing but the depth of the model is known to keep the loss where it was."""
        trained = bool(self.accuracy) and float(np.median(self.accuracy)) > _TRAINED
        acts = 2 * self.acted >= self.steps
        unclear = view.several or view.in_turns or signals.resumed(view) or acts or trained
        if unclear or self.steps < _LONG or self.lowest <= 0 or learning_rates.beyond_usual(view):
            return
        if plain := _plain_depth(view):
            yield self.finding(
                view,
                subject="structure",
                tensors=[signals.loss_name(view) or "loss"],
                value=float(plain),
                limit=float(_DEEP),
                message=f"{plain} layers follow each other without a shortcut or normalisation, and the loss has "
                + (f"fallen by only {100 * fallen:.2g} %" if fallen > 0 else "not fallen")
                + f" in {self.steps} steps",
                symptoms=("deep_and_plain",),
            )

    @staticmethod
    def _depth(view: StepView, gradients: Statistics) -> _Depth | None:
        """First layer against the liveliest one in the last third; None for models of fewer than three layers.

        Embeddings are left out: the batch decides which rows get a gradient, and the vocabulary their scale.
        """
        fact = view.latest_fact(facts.ForwardLayers.KIND)
        since, graph = fact.global_step if fact is not None else None, forward.latest(view)
        layers = gradients.part(
            ("layers", since), lambda: np.flatnonzero(_in_layers(gradients) & _body(gradients, graph))
        )
        if len(layers) < 3:
            return None
        means = layers.nonzero_abs_mean
        if not np.isfinite(means).all():
            means = np.nan_to_num(means)
        third = max(1, len(layers) // 3)
        first = int(np.argmax(means[: max(_BEGINNING, third)])) if _branches(graph) else 0
        last = len(layers) - third + int(np.argmax(means[-third:]))
        infos = layers.group.infos
        return _Depth(infos[first], infos[last], float(means[first]), float(means[last]))

    def _over_depth(self, view: StepView, gradients: Statistics, depth: _Depth) -> dict[str, Any]:
        zero = depth.first_mean == 0
        kinds = saturating_between(view, gradients, depth.first, depth.last)
        symptoms = ["vanishing_over_depth"]
        if zero:
            # Shrinking gives no exact zeros: something blocks the gradient.
            symptoms = ["gradients_exactly_zero", *(("zero_gradients_in_half",) if _in_half(view) else ())]
        elif kinds:
            symptoms.append("saturating_modules_between")
        plain = 0 if zero else _plain_depth(view)
        if plain:
            symptoms.append("deep_and_plain")
        symptoms += learning_rates.too_high(view)
        share = depth.first_mean / depth.last_mean
        between = f", with {' and '.join(kinds)} layers between" if kinds else ""
        between += f"; {plain} layers follow each other without a shortcut or normalisation" if plain else ""
        how = "exactly zero" if zero else f"{share:.2g} times that of {depth.last.name.rpartition('/')[2]}"
        between += _IN_HALF_WORDS if zero and _in_half(view) else ""
        means = np.nan_to_num(gradients.nonzero_abs_mean)
        return {
            "subject": "depth",
            "tensors": [depth.first.name, depth.last.name],
            "value": share,
            "limit": self.ratio,
            "message": f"the gradient of {depth.first.name.rpartition('/')[2]} is {how} at step {view.mode_step}"
            f"{between}",
            "symptoms": symptoms,
            "evidence": {
                **({"saturating": " and ".join(kinds)} if kinds else {}),
                "layers": [name.rpartition("/")[2] for name in gradients.names[:64]],
                "means": [float(value) for value in means[:64]],
            },
        }

    def _everywhere(self, view: StepView, gradients: Statistics, largest: float, *, even: bool) -> dict[str, Any]:
        zero = largest == 0
        many = len(gradients) > 1
        whose = (
            f"the gradients of all {len(gradients)} captured layers"
            if many
            else "the gradient of the only captured layer"
        )
        size = "exactly zero" if zero else f"at most {largest:.2g} in mean absolute value"
        what = f"{'are' if many else 'is'} {size}"
        # All are far below 6e-5, from which on float16 has its full precision.
        half = _in_half(view)
        factor = _factor(view)
        tiny = not zero and not half and factor < _TINY
        symptoms = ["gradients_exactly_zero" if zero else "vanishing_everywhere"]
        symptoms += ["gradients_even"] if even else []
        symptoms += ["loss_times_tiny_factor"] if tiny else []
        symptoms += ["zero_gradients_in_half"] if half else []
        return {
            "subject": "everywhere",
            "tensors": gradients.names[:8],
            "value": largest,
            "limit": self.threshold,
            "message": f"{whose} {what} at step {view.mode_step}"
            + (_IN_HALF_WORDS if half else "")
            + (", the last layer's too" if even else "")
            + (f", and the script multiplies the loss by {factor:.2g}" if tiny else "")
            + signals.loss_words(self.start, signals.losses(view, 16)),
            "symptoms": [*symptoms, *learning_rates.too_high(view)],
            "evidence": {"loss_factor": factor} if tiny else {},
        }


def _factor(view: StepView) -> float:
    """The largest factor of a part of the loss that depends on data; 1 if unknown. The fact leaves out a scaler's."""
    fact = view.latest_fact(facts.TermsOfLoss)
    # A sum over its number of elements is a mean.
    factors = [
        None if term.coefficient is None else abs(term.coefficient) * max(1, term.summed)
        for term in (data_terms(fact) if fact is not None else ())
    ]
    known = [each for each in factors if each is not None]
    if not known or len(known) < len(factors):
        return 1.0
    return float(max(known)) or 1.0


def _in_half(view: StepView) -> bool:
    """Whether modules give float16, the dtype with a small range, and nothing scales the loss."""
    if view.latest_fact(facts.LossScale) is not None or view.scalar("loss_scale") is not None:
        return False
    return any(info.dtype == "float16" for info in view.catalog.select(Selection(Role.OUTPUT)))


def _plain_depth(view: StepView) -> int:
    """Layers of the longest chain of a deep model, if it has neither shortcuts nor normalisation; 0 otherwise."""
    graph = forward.latest(view)
    plain = not (graph.opaque or graph.residuals or graph.normalizations)
    return graph.depth if plain and graph.depth >= _DEEP else 0


def _shortest(view: StepView) -> int:
    """Layers on the shortest way through the model; 0 where it is not known."""
    graph = forward.latest(view)
    return graph.shortest() if graph.whole else 0


def _branches(graph: ForwardGraph) -> bool:
    """Whether gradients take several ways through a model, which no single layer shows, or ways that are hidden."""
    around = graph.head() is not None if graph.whole else bool(graph.residuals or graph.opaque)
    return around or not {"softmax", "attention"}.isdisjoint(graph.kinds)


def _body(gradients: Statistics, graph: ForwardGraph) -> npt.NDArray[np.bool_]:
    """Which gradients are not of the head behind the last shortcut, bool[n].

    A head begins with weights of another scale than what shortcuts lead around.
    """
    head = (graph.head() if graph.whole else None) or frozenset()
    return np.array([name.partition("/")[2] not in head for name in gradients.names], dtype=np.bool_)


def _in_layers(gradients: Statistics) -> npt.NDArray[np.bool_]:
    """Which gradients are of a layer between others, bool[n].

    Parameters of containers (positions, class tokens, layers that are used without being called) have no place there.
    """
    containers = {""}
    for info in gradients.tensors:
        parts = info.module.split(".")
        containers.update(".".join(parts[:n]) for n in range(1, len(parts)))
    return np.array(
        [
            info.module_kind is not ModuleKind.EMBEDDING and info.layer_index >= 0 and info.module not in containers
            for info in gradients.tensors
        ],
        dtype=np.bool_,
    )
