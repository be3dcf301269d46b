"""PoorWeightInitialization: the initial weights prevent learning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, Severity, facts, loss_kind
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import poor_weight_initialization
from watchglass.tables import StepView


class PoorWeightInitialization(Rule):
    """The initial weights are identical, constant, or of a scale that does not fit their layers.

    Looks at: how similar the rows of each weight are at the first step, the spread of each weight against its fan-in,
        the spread of the activations over the layers at the first captured step, and the first loss.
    Fires when: one of these holds. A single layer of zeros is not reported, because it is intended in last layers,
        residual branches and low-rank adapters.
        * Most weights of the model, or two layers in a row, start with identical rows. This is an `error`, because
        units that start alike receive the same updates.
        * Half of the weights have a spread outside `low` to `high` times 1/sqrt(fan_in), and the activations grow or
        shrink 30-fold over the layers.
        * Half of the weights, and at least two, have a spread below `tiny` times 1/sqrt(fan_in), in a model without
        normalisation.
        * Half of the weights, and at least two, have a spread above `high` times 1/sqrt(fan_in), and the first loss is
        more than `worse` times that of guessing (for a squared error: of predicting the mean of the targets).
        * An embedding of four or more columns starts with a spread above `high`, where frameworks give 1 or less; or
        above `table`, and the first loss is more than `worse` times that of guessing.
        * The variance of activations differs between layers by more than `threshold`.
    Usual causes: weights filled with a constant, an initialisation written for another layer size.
    What to try: Kaiming initialisation for ReLU, Xavier for tanh; only biases with a constant.
    Costs: one pass over the weights before the first update, then statistics of outputs and weights.
    Source: variance ratio 10 and 10 steps: SageMaker Debugger documentation (LossNotDecreasing has its conditions on
        gradients and a flat loss); Glorot and Bengio 2010; He et al. 2015; torch.nn.Embedding draws from a standard
        normal distribution; house: the default limits.
    """

    needs = (
        Needs(facts=("initialization",), why="to compare the rows of the initial weights"),
        Needs(facts=("output_sketch",), optional=True, why="to compare the first squared error with guessing"),
        Needs(role=Role.OUTPUT, statistics=("nonfinite", "std", "rms"), optional=True, why="to compare their spread"),
        Needs(scalars=("loss",), optional=True, why="to compare its start with guessing"),
        Needs(role=Role.WEIGHT, statistics=("l2",), optional=True, why="to see which weights are zero for long"),
    )
    calibrations: ClassVar = {"sagemaker": poor_weight_initialization.PoorWeightInitialization}

    threshold: float = parameter(1e6, help="largest over smallest variance of layers' activations", unit="ratio", gt=1)
    steps: int = parameter(10, help="the first capture must be among this many steps", unit="steps", ge=1)
    low: float = parameter(0.05, help="smallest spread, in units of 1/sqrt(fan_in)", ge=0)
    high: float = parameter(5.0, help="largest spread, in units of 1/sqrt(fan_in), of embeddings in units of 1", gt=0)
    tiny: float = parameter(0.01, help="spread that is too small in any layer, in units of 1/sqrt(fan_in)", ge=0)
    worse: float = parameter(3.0, help="first loss over that of guessing, for weights that are too large", gt=1)
    table: float = parameter(1.2, help="largest spread of an embedding where the first loss is worse", gt=0)

    weights: dict[str, dict[str, Any]] = state(dict)
    measured: bool = state(bool)
    #: The first loss.
    losses: list[float] = state(list)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings of the first steps."""
        if view.mode is not Mode.TRAIN or view.model_step >= self.steps:
            return
        if not self.weights:
            initial = view.latest_fact(facts.Initialization)
            self.weights = _usable(view, initial.tensors) if initial is not None else {}
            if self.weights:
                yield from self._identical(view)
        signals.remember_start(self.losses, signals.loss(view), 1)
        if not self.measured:
            yield from self._factors(view)
        if not self.measured:
            yield from self._tables(view)
        if not self.measured:
            yield from self._scale(view)

    def applicable(self, view: StepView) -> str:
        """Not for models without layers, nor for an attempt that continues a run."""
        if signals.resumed(view) and not self.weights:
            return "this attempt continues a run, so its weights are not initial ones"
        return signals.without_layers(view)

    def _identical(self, view: StepView) -> Iterable[Finding]:
        several = [name for name, row in self.weights.items() if row["rows"] > 1]
        names = sorted(several, key=lambda name: int(self.weights[name]["layer_index"]))
        same = [self.weights[name]["same"] for name in names]
        if len(names) < 2 or not any(same):
            return
        nonzero = _nonzero_names(view)
        # Zeros in one layer are harmless while its neighbours are random; constants other than zero never are.
        in_a_row = any(
            same[i] and same[i + 1] and (names[i] in nonzero or names[i + 1] in nonzero) for i in range(len(names) - 1)
        )
        share = float(np.mean(same))
        if share < 0.6 and not in_a_row:
            return
        hit = [name for name, is_same in zip(names, same, strict=True) if is_same]
        constant = all(self.weights[name].get("constant") for name in hit)
        yield self.finding(
            view,
            severity=Severity.ERROR,
            subject="identical",
            tensors=hit[:16],
            value=share,
            limit=0.6,
            message=f"{len(hit)} of {len(names)} weights {'starts' if len(hit) == 1 else 'start'} "
            f"{'constant' if constant else 'with identical rows'}, {hit[0]}{' among them' if len(hit) > 1 else ''}: "
            "the units of such a layer compute and learn the same",
            symptoms=("identical_rows",),
        )

    def _factors(self, view: StepView) -> Iterable[Finding]:
        """A finding if most weights are far too small, or so large that the first loss shows it."""
        factors = {name: row["factor"] for name, row in self.weights.items() if row["factor"] > 0}
        enough = max(2, len(factors) / 2)
        tiny = {name: factor for name, factor in factors.items() if factor < self.tiny}
        large = {name: factor for name, factor in factors.items() if factor > self.high}
        normalizes = any(kind == ModuleKind.NORMALIZATION for kind, _ in signals.modules(view).values())
        worse = self._worse_than_guessing(view)
        if len(tiny) >= enough and not normalizes:
            off, limit = tiny, self.tiny
            symptoms, about = ["weight_scale"], ""
        elif len(large) >= enough and worse:
            off, limit = large, self.high
            symptoms, about = ["weight_scale", "loss_starts_high"], f", and {worse}"
        else:
            return
        self.measured = True
        worst = max(off, key=lambda name: abs(math.log(factors[name])))
        yield self.finding(
            view, subject="scale", tensors=list(off)[:16], value=factors[worst], limit=limit,
            message=f"the spread of {worst} is {factors[worst]:.2g} times 1/sqrt(fan_in), and that of {len(off)} of "
            f"{len(factors)} weights is {'below' if off is tiny else 'above'} {limit:g} times{about}",
            symptoms=symptoms,
        )  # fmt: skip

    def _tables(self, view: StepView) -> Iterable[Finding]:
        """A finding if vectors of an embedding are far larger than frameworks make them."""
        initial = view.latest_fact(facts.Initialization)
        spreads = _spreads_of_tables(view, initial.tensors) if initial is not None else {}
        name = max(spreads, key=lambda each: spreads[each], default="")
        if not name or spreads[name] <= min(self.table, self.high):
            return
        worse = self._worse_than_guessing(view)
        limit = self.table if worse else self.high
        if spreads[name] <= limit:
            return
        self.measured = True
        yield self.finding(
            view, subject="scale",
            tensors=[each for each, spread in spreads.items() if spread > limit][:16], value=spreads[name], limit=limit,
            message=f"the vectors of {name} start with a spread of {spreads[name]:.3g}, where frameworks give 1 or less"
            f"{f', and {worse}' if worse else ''}",
            symptoms=("weight_scale", "loss_starts_high") if worse else ("weight_scale",),
        )  # fmt: skip

    def _worse_than_guessing(self, view: StepView) -> str:
        """How the loss starts, where that is far worse than guessing; else ""."""
        guessed, loss = signals.classes(view), next(iter(self.losses), 0.0)
        for sketch in view.facts(facts.OutputSketch) if not guessed else ():
            # A model that computes its loss itself has no accuracy.
            if loss_kind(sketch.function).of_classes and sketch.loss is not None:
                guessed, loss = sketch.columns, sketch.loss
        if guessed and guessed > 1:
            even = math.log(guessed)
            start = f"the loss starts at {loss:.3g}, where guessing gives ln({guessed} classes) = {even:.3g}"
            return start if loss > self.worse * even else ""
        for sketch in view.facts(facts.OutputSketch):
            error, constant = sketch.squared_error, sketch.constant_error
            if error is not None and constant is not None and error > self.worse * constant:
                # Beside outputs that are this large, targets may be lost in rounding.
                guess = f", where the mean of the targets gives {constant:.3g}" if constant else ""
                return f"the squared error starts at {error:.3g}{guess}"
        return ""

    def _scale(self, view: StepView) -> Iterable[Finding]:
        # Modules whose outputs have the scale of their weights.
        weighted = ModuleKind.LINEAR, ModuleKind.CONVOLUTION
        outputs = view.statistics(Role.OUTPUT, module_kinds=weighted).in_layer_order()
        # After dead units only the bias remains: a layer that is constant up to rounding is no evidence about weights.
        outputs = outputs.where((outputs.nonfinite == 0) & (outputs.std > 1e-5 * outputs.rms))
        if len(outputs) < 2 or any(row["same"] and not row["zero"] for row in self.weights.values()):
            return
        # Later steps show the effect of updates on the scale, not the initialisation.
        self.measured = True
        variance = outputs.variance
        ratio = float(np.max(variance) / np.min(variance))
        factors = {name: row["factor"] for name, row in self.weights.items() if row["factor"] > 0}
        off = {name: factor for name, factor in factors.items() if not self.low <= factor <= self.high}
        scale = len(off) >= max(1, 0.5 * len(factors)) and ratio > 900
        if not scale and ratio <= self.threshold:
            return
        worst = max(off or factors, key=lambda name: abs(np.log(factors[name])), default=outputs.names[0])
        apart = (
            f"the spread of activations differs {np.sqrt(ratio):.3g}-fold between "
            f"{outputs.names[int(np.argmin(variance))]} and {outputs.names[int(np.argmax(variance))]} "
            f"at step {view.mode_step}"
        )
        what = f"the spread of {worst} is {factors[worst]:.2g} times 1/sqrt(fan_in), and {apart}" if scale else apart
        yield self.finding(
            view,
            subject="scale",
            tensors=list(off)[:16] if scale else [outputs.names[int(np.argmax(variance))]],
            value=factors[worst] if scale else ratio,
            limit=(self.high if factors[worst] > self.high else self.low) if scale else self.threshold,
            message=what,
            symptoms=("weight_scale", "activations_over_depth") if scale else ("activations_over_depth",),
            evidence={"layers": outputs.names[:64], "std": [float(value) for value in outputs.std[:64]]},
        )


def _usable(view: StepView, tensors: Mapping[str, facts.InitialWeight]) -> dict[str, dict[str, Any]]:
    """The initial weights that count: trainable, and of embeddings only constant ones; with derived values."""
    found: dict[str, dict[str, Any]] = {}
    nonzero = _nonzero_names(view)
    for name, row in tensors.items():
        info = view.catalog.by_name(name)
        if info is None and view.catalog.models and view.catalog.by_name(f"gradient/{name}") is None:
            continue  # of another model
        if len(row.shape) < 2 or (info is not None and info.trainable is False):
            continue
        # Rows of a table get gradients of their words, but one value for all elements makes its columns copies.
        table = info is not None and info.module_kind is ModuleKind.EMBEDDING
        if table and not (row.constant and name in nonzero):
            continue
        std, fan_in = row.std or 0.0, float(row.fan_in)
        found[name] = {
            "layer_index": info.layer_index if info is not None else len(found),
            "rows": row.shape[0],
            "same": bool(row.constant) or (row.identical_rows or 0.0) >= 0.99,
            "constant": bool(row.constant),
            "zero": bool(row.constant) and name not in nonzero,
            "factor": std * float(np.sqrt(fan_in)),
        }
    return found


def _spreads_of_tables(view: StepView, tensors: Mapping[str, facts.InitialWeight]) -> dict[str, float]:
    """The initial spreads of trainable embeddings, by name.

    Tables of a few columns may hold physical quantities, such as energies of atoms.
    """
    found: dict[str, float] = {}
    for name, row in tensors.items():
        info = view.catalog.by_name(name)
        if info is None or info.module_kind is not ModuleKind.EMBEDDING or info.trainable is False:
            continue
        if len(row.shape) == 2 and row.shape[1] >= 4:
            found[name] = row.std or 0.0
    return found


def _nonzero_names(view: StepView) -> frozenset[str]:
    """Names of the weights with a value other than zero, at this step."""
    weights = view.statistics(Role.WEIGHT)
    return frozenset(weights.where(weights.l2 > 0).names)
