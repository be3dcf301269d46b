"""SaturatedActivation: hidden tanh or sigmoid units that pass no gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import (
    SATURATED_UNITS,
    Finding,
    Mode,
    ModuleKind,
    Role,
    Severity,
    TensorInfo,
    in_percent,
)
from watchglass.rules import signals
from watchglass.rules.graph import forward
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import Selection, Statistics, StepView

#: A recurrent module gives results of tanh, perhaps times a gate.
_SATURATING = (ModuleKind.SATURATING, ModuleKind.RECURRENT)
_INPUTS = ("tanh_input", "sigmoid_input")
_WEIGHTED = (ModuleKind.LINEAR, ModuleKind.CONVOLUTION)
#: Integral over its input of the derivative of a function, as a share of the largest derivative.
_INTEGRALS = {"tanh": 2.0, "sigmoid": 4.0}


class _Flat(NamedTuple):
    """What is wrong with an activation, in words, and the number in them as a ratio."""

    words: str
    share: float


class SaturatedActivation(Rule):
    """Hidden tanh or sigmoid units are saturated, so they pass almost no gradient.

    Looks at: outputs of saturating activations between layers, and of recurrent modules; for functions without a
        module, the outputs of the layers before them, by the fact forward_graph; where recorded, inputs of tanh and
        sigmoid.
    Fires when: in `window` captures in a row the mean derivative of an activation is below `derivative` of the largest
        possible one. Of tanh it is 1 - mean(y^2), of a sigmoid 4 (mean(y) - mean(y^2)); of a function without a module
        it follows from mean and deviation of its inputs. Or more than `threshold_layer` percent of its units have 99 %
        of their inputs beyond -9.4999 to 9.4999 (tanh) or -23 to 16.99999 (sigmoid). The last activation does not
        count, because probabilities near 0 or 1 are saturated. Once the loss has fallen by half, the finding is an
        `info`.
    Usual causes: initial weights or inputs that are too large, a learning rate that is too high.
    What to try: normalise the inputs; Xavier initialisation; ReLU, GELU or SiLU.
    Costs: nothing beyond the outputs that are captured by default; inputs of tanh and sigmoid are read once at captured
        steps if their collections are captured.
    Source: limits, 1 and 50 percent: SageMaker Debugger documentation; house: the derivative and the window.
    """

    starts_with = "stage"
    needs = (
        Needs(
            role=Role.OUTPUT, module_kinds=_SATURATING, statistics=("mean", "rms", "min", "max"), optional=True,
            why="to see how steep they are",
        ),
        Needs(
            role=Role.OUTPUT, module_kinds=_WEIGHTED, statistics=("mean", "std"), optional=True,
            why="to see what goes into functions",
        ),
        Needs(facts=("forward_graph",), optional=True, why="to find functions without a module"),
        Needs(role=Role.WEIGHT, statistics=("count",), optional=True, why="to know which activation is the last"),
        Needs(collection="tanh_input", statistics=("mean", "std"), optional=True, why="to see inputs of tanh"),
        Needs(collection="sigmoid_input", statistics=("mean", "std"), optional=True, why="to see inputs of sigmoid"),
        Needs(scalars=("loss",), optional=True, why="to distinguish saturation from success"),
    )  # fmt: skip
    modes = (Mode.TRAIN,)
    calibrations: ClassVar = {
        "sagemaker": {"derivative": 0.0, "threshold_layer": 50.0, "window": 1, "hidden_only": False, "progress": 1.0}
    }

    derivative: float = parameter(0.1, help="mean derivative, as a share of the largest", unit="ratio", ge=0, lt=1)
    threshold_layer: float = parameter(50.0, help="share of a layer's units", unit="percent", ge=0, lt=100)
    window: int = parameter(4, help="captures in a row", unit="captures", ge=1)
    hidden_only: bool = parameter(True, help="whether the last activation is left out")
    progress: float = parameter(0.5, help="fall of the loss from which the finding is an info", unit="ratio", gt=0)

    start: list[float] = state(list)
    #: Captures in a row by tensor.
    captures: Streaks = state(Streaks)
    seen: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """One finding for all activations of a step."""
        signals.remember_start(self.start, signals.loss(view))
        if view.is_plain:
            return
        flat = self._flat(view)
        units = self._beyond(view, [name for name, words in (flat or {}).items() if words])
        self.seen |= (flat is not None and self.derivative > 0) or bool(view.rows(SATURATED_UNITS))
        now = {**(flat or {}), **units}
        sick = {name: value for name, value in now.items() if value is not None}
        times = {name: self.captures.follow(view.mode_step, name in sick, name) for name in now}
        found = [name for name in sick if times[name] >= self.window]
        if found:
            yield self._finding(view, found, sick[found[0]], len(now))

    def applicable(self, view: StepView) -> str:
        """Not for models without such activations."""
        kinds = [kind for kind, _ in signals.modules(view).values()]
        if kinds and not self.seen and set(_SATURATING).isdisjoint(kinds):
            return "the model has no tanh or sigmoid between its layers, as far as its modules show"
        if kinds and not self.seen:
            return "no values of a tanh or sigmoid between layers were captured"
        return signals.without_layers(view)

    def _flat(self, view: StepView) -> dict[str, _Flat | None] | None:
        """By activation what is wrong with its mean derivative, None for nothing."""
        found: dict[str, _Flat | None] = {}
        outputs = view.statistics(Role.OUTPUT, module_kinds=_SATURATING)
        tanh = (outputs.min < 0) & (outputs.min >= -1) & (outputs.max <= 1)
        bends = np.array([info.module_kind is ModuleKind.SATURATING for info in outputs.tensors], np.bool_)
        sigmoid = bends & (outputs.min >= 0) & (outputs.max <= 1)
        with np.errstate(all="ignore"):
            steep = np.where(tanh, 1 - outputs.rms**2, 4 * (outputs.mean - outputs.rms**2))
        self._judge(view, found, outputs, steep, tanh | sigmoid)
        for name, function in zip(_INPUTS, _INTEGRALS, strict=True):
            inputs = view.statistics(collection=name)
            of_functions = np.array(
                [info.module_kind is not ModuleKind.SATURATING for info in inputs.tensors], np.bool_
            )
            self._judge(view, found, inputs, _steepness(inputs, function), of_functions)
        functions = _functions(view)
        if functions and not found:
            layers = view.statistics(Role.OUTPUT, module_kinds=_WEIGHTED)
            for function in _INTEGRALS:
                before = np.array([functions.get(info.module) == function for info in layers.tensors], np.bool_)
                self._judge(view, found, layers, _steepness(layers, function), before)
        return found or None

    def _judge(
        self, view: StepView, found: dict[str, _Flat | None], rows: Statistics, steep: npt.NDArray[np.float64],
        known: npt.NDArray[np.bool_],
    ) -> None:  # fmt: skip
        for row in np.flatnonzero(known & np.isfinite(steep)).tolist():
            info = rows.tensors[row]
            if self._counts(view, info):
                share = max(float(steep[row]), 0.0)
                words = f"the mean derivative of {_named(info)} is {100 * share:.2g} % of the largest"
                found[info.name] = _Flat(words, share) if share < self.derivative else None

    def _beyond(self, view: StepView, flat: list[str]) -> dict[str, _Flat | None]:
        """The same by units whose inputs lie beyond the limits, of other activations than those that are found flat."""
        found: dict[str, _Flat | None] = {}
        known = {info.module for info in map(view.catalog.by_name, flat) if info is not None}
        for info, _, beyond in view.rows(SATURATED_UNITS):
            if len(beyond) and info.module not in known and self._counts(view, info):
                percent = 100.0 * np.count_nonzero(beyond) / len(beyond)
                if percent > self.threshold_layer:
                    words = (
                        f"{in_percent(percent / 100)} of the units that go into {_named(info)} are beyond its limits"
                    )
                    found[info.name] = _Flat(words, percent / 100)
        return found

    def _counts(self, view: StepView, info: TensorInfo) -> bool:
        last = view.catalog.answers.get("SaturatedActivation, last layer", lambda: _last_layer(view))
        return not self.hidden_only or info.layer_index < last

    def _finding(self, view: StepView, names: list[str], what: _Flat, of: int) -> Finding:
        latest = signals.losses(view, 32)
        fallen = signals.progress(self.start, latest)
        more = f", and {len(names) - 1} more of {of} are saturated" if len(names) > 1 else ""
        return self.finding(
            view,
            severity=Severity.INFO if fallen >= self.progress else Severity.WARNING,
            subject="activations",
            tensors=names[:16],
            value=float(len(names)),
            message=f"{what.words} at step {view.mode_step}{more}{signals.loss_words(self.start, latest)}",
            symptoms=("activations_saturated",),
            evidence={
                **signals.evidence(view),
                **signals.loss_evidence(self.start, latest),
                "share": what.share,
                "activations": of,
            },
            since=self.captures.since(*names),
        )


def _steepness(inputs: Statistics, function: str) -> npt.NDArray[np.float64]:
    """Mean derivative of a function of inputs with a normal distribution, as a share of the largest, float64[n]."""
    with np.errstate(all="ignore"):
        # Their density at zero, where the derivative is.
        density = np.exp(-0.5 * (inputs.mean / inputs.std) ** 2) / (inputs.std * math.sqrt(2 * math.pi))
    return np.asarray(np.minimum(_INTEGRALS[function] * density, 1))


def _functions(view: StepView) -> dict[str, str]:
    """By module, the saturating function that is all between this layer and the next ones."""
    graph = forward.latest(view)
    if not graph.whole:
        return {}
    found: dict[str, set[frozenset[str]]] = {}
    for pair in graph.pairs:
        found.setdefault(graph.layers[pair.first].module, set()).add(pair.between)
    alone = {module: [*next(iter(ways))] for module, ways in found.items() if len(ways) == 1}
    return {module: names[0] for module, names in alone.items() if len(names) == 1 and names[0] in _INTEGRALS}


def _last_layer(view: StepView) -> int:
    """Position of the last layer with weights; an activation behind it belongs to the output."""
    return max((info.layer_index for info in view.catalog.select(Selection(Role.WEIGHT, min_dims=2))), default=-1)


def _named(info: TensorInfo) -> str:
    kind = info.module_type if info.module_kind in _SATURATING else f"the function after {info.module_type}"
    return f"{info.module or info.name} ({kind})"
