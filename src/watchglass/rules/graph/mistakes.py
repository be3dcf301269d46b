"""Mistakes in how a script makes its loss of a model's outputs, from the operations of a term."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from watchglass.records import Severity, loss_kind
from watchglass.rules.graph.mistake import Mistake
from watchglass.rules.graph.normalization import Calls, normalized, on_wrong_axis, words
from watchglass.rules.graph.terms import LossTerm, Made

#: Operations that take differences of predictions and targets element by element.
_DISTANCES = ("pow", "abs", "mul")
#: Operations that weigh log-likelihoods by their targets, and average them.
_WEIGHED = ("mul", "neg", "mean", "sum", "nll_loss")
#: Operations that limit or shift raw outputs, and leave them what they are.
_LIMITING = ("clamp", "relu", "leaky_relu", "abs", "hardtanh")
#: Limit from which on a clamp keeps a probability from 1 (house).
_NEARLY = 0.99
#: Operations that are linear where all other operands are constants.
_LINEAR = ("mean", "sum", "neg", "mul", "div", "add", "sub")
#: Operations that make no probabilities of raw outputs.
_RAW = (*_LIMITING, "mean", "average_pool", "max_pool", "dropout", "batch_norm", "layer_norm", "mul", "div")


def mistakes(terms: Sequence[LossTerm], calls: Calls, batch: int, floor: float, model: int) -> Iterable[Mistake]:
    """Mistakes in the terms of one loss.

    Args:
        terms: Those that depend on data.
        calls: Loss functions of the step.
        batch: Samples of the batch; 0 if unknown.
        floor: Lowest loss of a sample that clamped logits may allow.
        model: Number of the model that the loss trains.
    """
    for term in terms:
        if not term.whole:
            continue
        for at in term.results:
            name, kind = at.name, at.operation.kind
            if (found := at.value(normalized)) is not None and (
                wrong := on_wrong_axis(found, calls, batch)
            ) is not None:
                yield wrong
            if kind == "softmax" or name == "sigmoid":
                yield from _twice(at, calls)
            if name == "clamp":
                yield from _clamped(at, floor)
                yield from _clamped_to_probabilities(at)
            if name == "sub":
                yield from _broadcast(at)
            if name in ("sub", "mul"):
                yield from _averaged(at, batch)
            if kind == "softmax":
                yield from _of_one_unit(at)
            if name == "div":
                yield from _raw_overlap(at)
                yield from _lengths_over_batch(at, batch)
            if kind == "loss" and loss_kind(name).takes in ("probabilities", "log-probabilities"):
                yield from _raw_predictions(at)
    yield from _raw_layers(terms, model)


def _lengths_over_batch(at: Made, batch: int) -> Iterable[Mistake]:
    """Outputs that are divided by their length along the batch, for a similarity of samples."""
    if len(at.sources) != 2 or at.others:
        return
    output, divisor = at.sources
    while divisor.shifted:
        divisor = divisor.sources[0]
    shape = output.shape
    along_batch = divisor.name == "norm" and divisor.shape == [1, *shape[1:]]
    if not along_batch or len(shape) != 2 or shape[0] != batch or min(shape) < 2 or output.output_of is None:
        return
    takers = at.takers
    products = [other for other in takers if other.name == "mul" and other.shape == shape]
    sums = [other for each in products for other in each.takers if other.name == "sum"]
    of_units = any(other.data.axes == (0,) for other in sums)
    pairs = any(other.operation.weighted_sum and other.shape == [batch, batch] != shape for other in takers)
    if of_units or pairs:
        message = (
            f"a norm before the loss is taken over the {batch} samples of the batch and not over the {shape[1]} units "
            f"of a sample: its length depends on the other samples"
        )
        yield Mistake("normalized_over_batch", message, float(batch), float(shape[1]))


def _of_one_unit(at: Made) -> Iterable[Mistake]:
    """A softmax over the only unit of an output."""
    output = at.first
    single = output is not None and output.output_of is not None and output.units == 1
    if single and at.data.size == 1 and math.prod(at.shape) > 1:
        message = f"{words(at.name)} over a single unit is always the same, and nothing gets a gradient"
        yield Mistake("single_unit_normalized", message, 1.0, 2.0, severity=Severity.ERROR)


def _twice(at: Made, calls: Calls) -> Iterable[Mistake]:
    name, first = at.name, at.first
    if first is None or first.name != ("sigmoid" if name == "sigmoid" else "softmax"):
        return
    # Another rule reports these functions.
    if name == "log_softmax" and any(call.function == "cross_entropy" for call in calls):
        return
    if name != "sigmoid" and at.data.size != first.data.size:
        return
    symptom = "sigmoid_before_loss" if name == "sigmoid" else "softmax_before_loss"
    what = f"{words(name)} takes the result of {words(first.name)} on its way to the loss"
    yield Mistake(symptom, what, evidence={"operation": first.name})


def _clamped(at: Made, floor: float) -> Iterable[Mistake]:
    source, low, high = at.first, at.data.min, at.data.max
    if source is None or low is None or high is None or not source.operation.weighted_sum:
        return
    normalized_next = (
        each.operation.kind == "softmax" or each.name == "binary_cross_entropy_with_logits"
        for each in at.takers
    )  # fmt: skip
    if len(source.takers) > 1 or not at.takers or not all(normalized_next):
        return
    classes = max(int(each.data.size or 2) for each in at.takers)
    least = math.log1p((classes - 1) * math.exp(-(high - low) if classes > 2 else -max(high, -low)))
    if least > floor and classes > 1:
        message = f"logits are clamped to {low:g} to {high:g}: no sample can get a loss below {least:.2g}"
        yield Mistake("targets_beyond_output", message, least, floor)


def _clamped_to_probabilities(at: Made) -> Iterable[Mistake]:
    """Raw outputs that are clamped just inside of 0 and 1 before a logarithm, beside other uses (a focal loss)."""
    output, low, high = at.first, at.data.min, at.data.max
    layer = None if output is None else output.output_of
    if output is None or layer is None or low is None or high is None:
        return
    # If there are no other uses, it is reported as the logarithm of raw outputs.
    if not (0 < low <= 1 - _NEARLY and _NEARLY <= high <= 1) or _uses(output) <= {"log", "pow"}:
        return
    if any(other.name == "log" for other in at.after):
        name = _first_layer([layer])
        message = f"what {name} gives is clamped to {low:g} to {high:g} before a logarithm: these are raw outputs"
        yield _of_raw("a logarithm", message)


def _broadcast(at: Made) -> Iterable[Mistake]:
    source = at.first
    if source is None or at.operands.count("constant") != 1:
        return
    given, shape = list(at.data.broadcast or ()), at.shape
    rows = shape[0] if shape else 0
    pairs = len(shape) == 2 and shape == [rows, rows] and rows > 1
    if not pairs or given not in ([rows, 1], [rows]) or source.shape != [rows, 1]:
        return
    if not any(other.name in _DISTANCES for other in at.takers):
        return
    target = f"({rows},)" if given == [rows, 1] else f"({rows}, 1)"
    message = (
        f"predictions of shape {tuple(given)} minus targets of shape {target} are differences of shape {tuple(shape)}: "
        f"each prediction is compared with every target"
    )
    evidence = {"function": "the difference", "prediction_shape": str(tuple(given)), "target_shape": target}
    yield Mistake("loss_shapes_broadcast", message, float(rows * rows), float(rows), evidence, severity=Severity.ERROR)


def _averaged(at: Made, batch: int) -> Iterable[Mistake]:
    """Outputs that are one for all samples, where they meet the targets of each."""
    given, shape = list(at.data.broadcast or ()), at.shape
    if batch < 2 or shape != [batch, *given] or at.operands.count("constant") != 1:
        return
    for source in at.sources:
        if source.name in ("mean", "sum") and 0 in (source.data.axes or ()) and source.data.rows == batch:
            how = "averaged" if source.name == "mean" else "added up"
            message = (
                f"outputs are {how} over the {batch} samples of the batch, and only then compared with targets of "
                f"shape {tuple(shape)}: the loss does not depend on which sample has which output"
            )
            yield Mistake("averaged_over_samples", message, float(batch), severity=Severity.ERROR)


def _raw_predictions(at: Made) -> Iterable[Mistake]:
    """A loss on probabilities whose predictions come from a layer with nothing between that makes probabilities."""
    layers = [other for other in at.before if other.output_of is other]
    others = {other.name for other in at.before if other.output_of is None}
    if not layers or not others <= set(_RAW):
        return
    takes = loss_kind(at.name).takes
    message = f"{at.name} takes what {_first_layer(layers)} gives for {takes}: these are raw outputs"
    yield _of_raw(at.name, message)


def _raw_overlap(at: Made) -> Iterable[Mistake]:
    """A ratio of sums (Dice, Jaccard) of raw outputs."""
    sources = at.sources
    if len(sources) != 2:
        return
    sides = [{side, *side.before} for side in sources]
    layers = [{other for other in side if other.output_of is other} for side in sides]
    plain = all(
        other.name in ("mul", "sum", "mean", "add", "sub", "neg") and len(other.sources) < 3
        for side, own in zip(sides, layers, strict=True)
        for other in side - own
    )
    weighed = any(other.name == "mul" and "constant" in other.operands for other in sides[0])
    if plain and weighed and layers[0] and layers[0] == layers[1]:
        layer = _first_layer(layers[0])
        message = f"the loss divides sums of what {layer} gives, as those of probabilities: these are raw outputs"
        yield _of_raw("the overlap", message)


def _raw_layers(terms: Sequence[LossTerm], model: int) -> Iterable[Mistake]:
    """Layers whose results go into the loss as if they were probabilities, or logarithms of these."""
    uses: dict[str, set[str]] = {}
    for term in terms:
        for at in term.results:
            if at.layer is None:
                continue
            output = at.takers[0] if len(at.takers) == 1 and at.takers[0].output_of is at else at
            known = _uses(output) if at.operation.weighted_sum and term.whole else {"unknown"}
            uses.setdefault(at.layer, set()).update(known)
    for layer, found in uses.items():
        if "log" in found and found <= {"log", "pow"}:
            message = f"the loss takes the logarithm of what {layer} gives: these are raw outputs, not probabilities"
            yield _of_raw("a logarithm", message)
        # What another model gives may be a score, which this one drives up.
        elif found in ({"picked up"}, {"picked down"}) and _model_of(layer) == model:
            message = (
                f"the loss is a mean of what {layer} gives for the classes of the targets: raw outputs have no bound, "
                f"so it changes without limit, independent of the other classes"
            )
            yield _of_raw("the loss", message)


def _of_raw(function: str, message: str) -> Mistake:
    """Raw outputs that a function takes for probabilities."""
    return Mistake("not_probabilities", message, evidence={"function": function, "operation": "weighted sum"})


def _uses(at: Made) -> set[str]:
    """What a term does with the output of a layer: ``"log"``, ``"picked up"`` or ``"picked down"``, or others."""
    picked = _picked(at)
    if picked is not None:
        return {f"picked {'up' if picked < 0 else 'down'}"}
    takers, waiting = set(), [at]
    while waiting:
        for other in waiting.pop().takers:
            if other.shifted or (other.name in _LIMITING and len(other.sources) == 1):
                waiting.append(other)
            else:
                # Differences of logarithms are a distance on a scale of ratios.
                weighed = all(each.name in _WEIGHED for each in other.takers)
                takers.add(other.name if weighed else "unknown")
    return takers


def _picked(at: Made) -> int | None:
    """The sign of a term that is a mean of one unit of an output for each row; None for others."""
    units, shape, coefficient = at.units, at.shape, at.term.coefficient
    if units < 2 or not coefficient:
        return None
    rows, sign = math.prod(shape) // units, 1 if coefficient > 0 else -1
    picks, now = False, at
    while now.takers:
        other, *more = now.takers
        if more or other.name not in _LINEAR or len(other.sources) > 1 or other.others - {"constant"}:
            return None
        of_all = other.name == "mul" and other.shape == shape == now.shape
        averages = other.name in ("mean", "sum")
        picks |= of_all or (averages and math.prod(other.shape) * (other.data.elements or 0) == rows)
        # Of an average before a pick, or a product by samples, the sign is not known.
        if other.name == "neg" or (other.name == "sub" and other.operands[:1] == ["constant"]):
            sign = -sign
        now = other
    return sign if picks and now is at.term.last else None


def _model_of(layer: str) -> int:
    """Number of the model that a parameter belongs to."""
    number = re.match(r"model_(\d+)\.", layer)
    return int(number[1]) - 1 if number else 0


def _first_layer(layers: Iterable[Made]) -> str:
    return min(layers, key=lambda made: made.place).layer or "the last layer"
