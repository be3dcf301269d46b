"""Mistakes in how a script makes its loss of a model's outputs, from the operations of a term."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from watchglass.records import Severity
from watchglass.rules.loss_terms import LossTerm

#: Operations of an output layer.
LAYERS = ("linear", "convolution", "bmm")
_SOFTMAXES = ("softmax", "log_softmax")
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
#: Losses on probabilities or their logarithms, and operations that make neither of raw outputs.
_OF_PROBABILITIES = ("nll_loss", "ctc_loss", "binary_cross_entropy")
_RAW = (*_LIMITING, "mean", "average_pool", "max_pool", "dropout", "batch_norm", "layer_norm", "mul", "div")


class Mistake(NamedTuple):
    """What is wrong with a term.

    Attributes:
        severity: Severity of the finding.
        symptom: Symptom of the finding; "" for none.
        message: A sentence.
        value: What was measured.
        limit: What it crossed.
        evidence: Values for advice.
    """

    severity: Severity
    symptom: str
    message: str
    value: float | None = None
    limit: float | None = None
    evidence: Mapping[str, Any] = {}


class LossCalls(NamedTuple):
    """Loss functions that were called at a step, from their facts.

    Attributes:
        functions: Their names.
        classes: Numbers of classes that those by class were given.
    """

    functions: frozenset[str]
    classes: frozenset[int]

    @classmethod
    def of(cls, calls: Iterable[Mapping[str, Any]]) -> LossCalls:
        """Those of some facts ``loss_call``."""
        names, classes = set(), set()
        for data in calls:
            names.add(str(data.get("function")))
            shape = ((data.get("arguments") or {}).get("input") or {}).get("shape") or []
            if data.get("function") in ("nll_loss", "cross_entropy") and len(shape) > 1:
                classes.add(int(shape[1]))
        return cls(frozenset(names), frozenset(classes))


def mistakes(terms: Sequence[LossTerm], calls: LossCalls, batch: int, floor: float, model: int) -> Iterable[Mistake]:
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
        for at, each in enumerate(term.operations):
            name = each.get("operation")
            normalized = _normalized(term, at)
            if normalized is not None:
                yield from _on_wrong_axis(term, normalized, calls, batch)
            if name in (*_SOFTMAXES, "sigmoid"):
                yield from _twice(term, at, calls)
            if name == "clamp":
                yield from _clamped(term, at, floor)
                yield from _clamped_to_probabilities(term, at)
            if name == "sub":
                yield from _broadcast(term, at)
            if name in ("sub", "mul"):
                yield from _averaged(term, at, batch)
            if name in _SOFTMAXES:
                yield from _of_one_unit(term, at)
            if name == "div":
                yield from _raw_overlap(term, at)
                yield from _lengths_over_batch(term, at, batch)
            if name in _OF_PROBABILITIES:
                yield from _raw_predictions(term, at)
    yield from _raw_layers(terms, model)


class _Normalized(NamedTuple):
    """Results that add up to one along an axis, or their logarithms.

    Attributes:
        at: Place of the result.
        of: Place of the operation whose result is normalised; None if unknown.
        axis: The axis.
        size: Its size.
        original: The same axis of the result of ``of``; None if unclear.
        mixes: Whether a reshape has put together parts of several axes into this one.
    """

    at: int
    of: int | None
    axis: int
    size: int
    original: int | None
    mixes: bool

    @classmethod
    def over(cls, at: int, of: int | None, settings: Mapping[str, Any]) -> _Normalized | None:
        """With the settings that a softmax or logsumexp has in its fact."""
        axis, size = settings.get("axis"), settings.get("size")
        if not isinstance(axis, int) or not isinstance(size, int):
            return None
        return cls(at, of, axis, size, settings.get("axis_of_output"), bool(settings.get("mixes")))


def _normalized(term: LossTerm, at: int) -> _Normalized | None:
    """A softmax, or the same from exponentials and their sum, or from a logsumexp."""
    each, given = term.operations[at], term.operands(at)
    if term.name(at) in _SOFTMAXES:
        return _Normalized.over(at, next(iter(term.sources(at)), None), each)
    if len(given) != 2 or not all(isinstance(other, int) for other in given):
        return None
    first, second = given
    if term.name(at) == "sub" and term.name(second) == "logsumexp" and term.sources(second) == [first]:
        return _Normalized.over(at, first, term.operations[second])
    while term.shifted(second):
        second = term.sources(second)[0]
    exponentials = term.name(at) == "div" and term.name(first) == "exp" and term.sources(second) == [first]
    axes = term.operations[second].get("axes") if exponentials and term.name(second) == "sum" else None
    if not isinstance(axes, list) or len(axes) != 1 or axes[0] >= len(term.shape(first)):
        return None
    return _Normalized(at, first, axes[0], term.shape(first)[axes[0]], axes[0], False)


def _on_wrong_axis(term: LossTerm, found: _Normalized, calls: LossCalls, batch: int) -> Iterable[Mistake]:
    if _weighs(term, found.at):
        return
    mistake = (
        _over_batch(term, found, batch)
        or _between_positions(term, found)
        or _of_other_classes(term, found, calls)
        or _over_positions(term, found, calls)
    )
    if mistake is not None:
        yield mistake


def _over_batch(term: LossTerm, found: _Normalized, batch: int) -> Mistake | None:
    at, shape, size = found.at, term.shape(found.at), found.size
    if found.original != 0 or len(shape) < 2 or min(shape) < 2 or batch < 2 or size % batch:
        return None
    made_of, used = term.before(at), term.after(at)
    layers = [other for other in made_of if term.name(other) in LAYERS]
    # Scores of items, one for each, are normalised over them.
    if not layers or any(term.shape(other)[-1:] == [1] for other in layers):
        return None
    if any(_joins(term, other) for other in made_of):
        return None
    output = _output_before(term, found.of)
    if len(shape) > 2 or shape[0] == shape[1]:
        likelihood = term.name(at) == "log_softmax" or any(
            term.name(other) == "log" or _picks(term, other) for other in used
        )
        if output is None or not likelihood or (len(shape) > 2 and found.axis != 0):
            return None
    units = shape[1] if size == shape[0] else shape[0]
    classes = units if output is None else _units(term, output)
    severity = Severity.ERROR if any(term.name(other) == "nll_loss" for other in used) else Severity.WARNING
    return _wrong_axis(severity, _what(term, at), f"over the {size} samples of the batch", size, classes)


def _of_other_classes(term: LossTerm, found: _Normalized, calls: LossCalls) -> Mistake | None:
    """Log-probabilities along another axis than the one from which nll_loss picks its classes."""
    shape, classes = term.shape(found.at), next(iter(calls.classes), 0)
    takes = [other for other in term.takers.get(found.at, ()) if term.name(other) == "nll_loss"]
    # Nothing is left out or repeated between the two.
    whole = any(term.operations[other].get("elements") == math.prod(shape) for other in takes)
    if not whole or len(calls.classes) != 1 or found.size == classes or classes not in shape:
        return None
    along = f"over the {found.size} values of axis {found.axis} of {tuple(shape)}"
    return _wrong_axis(Severity.ERROR, _what(term, found.at), along, found.size, classes)


def _between_positions(term: LossTerm, found: _Normalized) -> Mistake | None:
    """Classes that are put together from the results of several positions, by a wrong reshape."""
    layer = None if found.of is None else _layer(term, found.of)
    if found.of is None or layer is None:
        return None
    classes, shape = _units(term, found.of), term.shape(found.at)
    # The classes of pixels are channels, which come before the positions.
    of_pixels = term.name(layer) == "convolution" and len(term.shape(layer)) > len(shape) == 2
    if not (found.mixes or (of_pixels and (found.original or 0) > 1)) or found.size != classes or classes < 2:
        return None
    message = (
        f"a reshape to {tuple(term.shape(found.at))} before {_what(term, found.at)} takes values of several positions "
        f"for the {classes} classes of one: it does not swap axes, as transpose and permute do"
    )
    return Mistake(Severity.WARNING, "normalized_over_batch", message, float(found.size), float(classes))


def _over_positions(term: LossTerm, found: _Normalized, calls: LossCalls) -> Mistake | None:
    """A softmax over positions of a sequence or an image, from whose results the classes of the layer are picked."""
    shape, used = term.shape(found.at), term.after(found.at)
    layer = None if found.of is None else _layer(term, found.of)
    if found.of is None or layer is None or term.name(layer) == "bmm" or found.axis == 0 or len(shape) < 3:
        return None
    by_channel = term.name(layer) == "convolution"
    classes, axis = _units(term, found.of), 1 if by_channel else len(term.shape(found.of)) - 1
    if found.original in (None, axis) or found.mixes or classes < 2 or classes not in shape:
        return None
    # One class of each position: looking it up leaves as many values as there are positions.
    looked_up = found.size != classes and any(
        term.name(other) in ("mean", "sum") and term.operations[other].get("elements") == math.prod(shape) // classes
        for other in used
    )
    if not looked_up and not any(_picks(term, other) for other in used):
        return None
    # Positions may be what is picked: the beginning and the end of a span.
    labels = found.size in calls.classes or any(
        term.name(other) == "sum" and term.operations[other].get("axes") == [found.axis] for other in used
    )
    if labels and found.size != classes:
        return None
    return _wrong_axis(
        Severity.WARNING, _what(term, found.at), f"over {found.size} positions", found.size, classes, "position"
    )


def _lengths_over_batch(term: LossTerm, at: int, batch: int) -> Iterable[Mistake]:
    """Outputs that are divided by their length along the batch, for a similarity of samples."""
    given = term.operands(at)
    if len(given) != 2 or not all(isinstance(other, int) for other in given):
        return
    output, divisor = given
    while term.shifted(divisor):
        divisor = term.sources(divisor)[0]
    shape = term.shape(output)
    along_batch = term.name(divisor) == "norm" and term.shape(divisor) == [1, *shape[1:]]
    if not along_batch or len(shape) != 2 or shape[0] != batch or min(shape) < 2 or _layer(term, output) is None:
        return
    takers = term.takers.get(at, ())
    products = [other for other in takers if term.name(other) == "mul" and term.shape(other) == shape]
    sums = [other for each in products for other in term.takers.get(each, ()) if term.name(other) == "sum"]
    of_units = any(term.operations[other].get("axes") == [0] for other in sums)
    pairs = any(term.name(other) in LAYERS and term.shape(other) == [batch, batch] != shape for other in takers)
    if of_units or pairs:
        message = (
            f"a norm before the loss is taken over the {batch} samples of the batch and not over the {shape[1]} units "
            f"of a sample: its length depends on the other samples"
        )
        yield Mistake(Severity.WARNING, "normalized_over_batch", message, float(batch), float(shape[1]))


def _of_one_unit(term: LossTerm, at: int) -> Iterable[Mistake]:
    """A softmax over the only unit of an output."""
    output = next(iter(term.sources(at)), None)
    single = output is not None and _layer(term, output) is not None and _units(term, output) == 1
    if single and term.operations[at].get("size") == 1 and math.prod(term.shape(at)) > 1:
        message = f"{_words(term.name(at))} over a single unit is always the same, and nothing gets a gradient"
        yield Mistake(Severity.ERROR, "single_unit_normalized", message, 1.0, 2.0)


def _wrong_axis(severity: Severity, what: str, along: str, size: int, classes: int, one: str = "sample") -> Mistake:
    message = (
        f"{what} before the loss normalises {along} and not over the {classes} classes: the probabilities of one "
        f"{one} do not add up to one"
    )
    return Mistake(severity, "normalized_over_batch", message, float(size), float(classes))


def _joins(term: LossTerm, at: int) -> bool:
    """Whether an operation joins results of equal rank, as the similarities of two sets of samples."""
    sources = set(term.sources(at))
    own = math.prod(term.shape(at))
    return len(sources) > 1 and sum(math.prod(term.shape(each)) == own for each in sources) != 1


def _weighs(term: LossTerm, at: int) -> bool:
    """Whether a softmax gives weights to other results, as those of an attention or pooling."""
    used = term.after(at)
    return any(set(term.sources(other)) - used - {at} for other in used if term.name(other) in ("mul", "div", "bmm"))


def _picks(term: LossTerm, at: int) -> bool:
    """Whether an operation picks the classes of the targets."""
    named = term.name(at)
    return named == "nll_loss" or (named == "mul" and "constant" in (term.operands(at)))


def _layer(term: LossTerm, at: int) -> int | None:
    """The layer whose output this is: the result of its operation, or its sum with a bias; None for other results."""
    given = term.operands(at)
    if term.name(at) == "add" and len(given) == 2 and "parameter" in given and len(term.sources(at)) == 1:
        at = term.sources(at)[0]
    return at if term.operations[at].get("layer") is not None and term.name(at) in LAYERS else None


def _output_before(term: LossTerm, at: int | None) -> int | None:
    """The output of a layer from which, element by element, a result was computed; None for none."""
    while at is not None and _layer(term, at) is None:
        alike = [each for each in term.sources(at) if term.shape(each) == term.shape(at)]
        at = alike[0] if len(set(alike)) == 1 and term.name(at) not in LAYERS else None
    return at


def _units(term: LossTerm, output: int) -> int:
    """Units or channels of the output of a layer."""
    shape, layer = term.shape(output), _layer(term, output)
    if not shape or layer is None:
        return 0
    return shape[1] if term.name(layer) == "convolution" and len(shape) > 1 else shape[-1]


def _twice(term: LossTerm, at: int, calls: LossCalls) -> Iterable[Mistake]:
    name, first = term.name(at), next(iter(term.sources(at)), None)
    if first is None or term.name(first) != ("sigmoid" if name == "sigmoid" else "softmax"):
        return
    # Another rule reports these functions.
    if name == "log_softmax" and "cross_entropy" in calls.functions:
        return
    if name != "sigmoid" and term.operations[at].get("size") != term.operations[first].get("size"):
        return
    symptom = "sigmoid_before_loss" if name == "sigmoid" else "softmax_before_loss"
    what = f"{_words(name)} takes the result of {_words(term.name(first))} on its way to the loss"
    yield Mistake(Severity.WARNING, symptom, what, evidence={"operation": term.name(first)})


def _clamped(term: LossTerm, at: int, floor: float) -> Iterable[Mistake]:
    each, source = term.operations[at], next(iter(term.sources(at)), None)
    low, high = each.get("min"), each.get("max")
    if source is None or low is None or high is None or term.name(source) not in LAYERS:
        return
    takers = [term.operations[other] for other in term.takers.get(at, ())]
    if len(term.takers.get(source, ())) > 1 or not takers:
        return
    if not all(other.get("operation") in (*_SOFTMAXES, "binary_cross_entropy_with_logits") for other in takers):
        return
    classes = max((int(other.get("size") or 2) for other in takers), default=2)
    least = math.log1p((classes - 1) * math.exp(-(high - low) if classes > 2 else -max(high, -low)))
    if least > floor and classes > 1:
        message = f"logits are clamped to {low:g} to {high:g}: no sample can get a loss below {least:.2g}"
        yield Mistake(Severity.WARNING, "targets_beyond_output", message, least, floor)


def _clamped_to_probabilities(term: LossTerm, at: int) -> Iterable[Mistake]:
    """Raw outputs that are clamped just inside of 0 and 1 before a logarithm, beside other uses (a focal loss)."""
    each, output = term.operations[at], next(iter(term.sources(at)), None)
    low, high = each.get("min"), each.get("max")
    if output is None or low is None or high is None or _layer(term, output) is None:
        return
    # If there are no other uses, it is reported as the logarithm of raw outputs.
    if not (0 < low <= 1 - _NEARLY and _NEARLY <= high <= 1) or _uses(term, output) <= {"log", "pow"}:
        return
    if any(term.name(other) == "log" for other in term.after(at)):
        layer = _layer_name(term, _layer(term, output) or output)
        message = f"what {layer} gives is clamped to {low:g} to {high:g} before a logarithm: these are raw outputs"
        evidence = {"function": "a logarithm", "operation": "weighted sum"}
        yield Mistake(Severity.WARNING, "not_probabilities", message, evidence=evidence)


def _broadcast(term: LossTerm, at: int) -> Iterable[Mistake]:
    each, source = term.operations[at], next(iter(term.sources(at)), None)
    if source is None or term.operands(at).count("constant") != 1:
        return
    given, shape = list(each.get("from") or ()), term.shape(at)
    rows = shape[0] if shape else 0
    pairs = len(shape) == 2 and shape == [rows, rows] and rows > 1
    if not pairs or given not in ([rows, 1], [rows]) or term.shape(source) != [rows, 1]:
        return
    if not any(term.name(other) in _DISTANCES for other in term.takers.get(at, ())):
        return
    target = f"({rows},)" if given == [rows, 1] else f"({rows}, 1)"
    message = (
        f"predictions of shape {tuple(given)} minus targets of shape {target} are differences of shape {tuple(shape)}: "
        f"each prediction is compared with every target"
    )
    evidence = {"function": "the difference", "prediction_shape": str(tuple(given)), "target_shape": target}
    yield Mistake(Severity.ERROR, "loss_shapes_broadcast", message, float(rows * rows), float(rows), evidence)


def _averaged(term: LossTerm, at: int, batch: int) -> Iterable[Mistake]:
    """Outputs that are one for all samples, where they meet the targets of each."""
    given, shape = list(term.operations[at].get("from") or ()), term.shape(at)
    if batch < 2 or shape != [batch, *given] or term.operands(at).count("constant") != 1:
        return
    for source in term.sources(at):
        each = term.operations[source]
        if term.name(source) in ("mean", "sum") and 0 in each.get("axes", ()) and each.get("rows") == batch:
            how = "averaged" if term.name(source) == "mean" else "added up"
            message = (
                f"outputs are {how} over the {batch} samples of the batch, and only then compared with targets of "
                f"shape {tuple(shape)}: the loss does not depend on which sample has which output"
            )
            yield Mistake(Severity.ERROR, "averaged_over_samples", message, float(batch))


def _raw_predictions(term: LossTerm, at: int) -> Iterable[Mistake]:
    """A loss on probabilities whose predictions come from a layer with nothing between that makes probabilities."""
    before = term.before(at)
    layers = [other for other in before if _layer(term, other) == other]
    others = {term.name(other) for other in before if _layer(term, other) is None}
    if not layers or not others <= set(_RAW):
        return
    expected = "probabilities" if term.name(at) == "binary_cross_entropy" else "log-probabilities"
    message = f"{term.name(at)} takes what {_layer_name(term, layers[0])} gives for {expected}: these are raw outputs"
    evidence = {"function": term.name(at), "operation": "weighted sum"}
    yield Mistake(Severity.WARNING, "not_probabilities", message, evidence=evidence)


def _raw_overlap(term: LossTerm, at: int) -> Iterable[Mistake]:
    """A ratio of sums (Dice, Jaccard) of raw outputs."""
    sources = term.sources(at)
    if len(sources) != 2:
        return
    sides = [{side, *term.before(side)} for side in sources]
    layers = [{other for other in side if _layer(term, other) == other} for side in sides]
    plain = all(
        term.name(other) in ("mul", "sum", "mean", "add", "sub", "neg") and len(term.sources(other)) < 3
        for side, own in zip(sides, layers, strict=True)
        for other in side - own
    )
    weighed = any(term.name(other) == "mul" and "constant" in term.operands(other) for other in sides[0])
    if plain and weighed and layers[0] and layers[0] == layers[1]:
        layer = _layer_name(term, min(layers[0]))
        message = f"the loss divides sums of what {layer} gives, as those of probabilities: these are raw outputs"
        evidence = {"function": "the overlap", "operation": "weighted sum"}
        yield Mistake(Severity.WARNING, "not_probabilities", message, evidence=evidence)


def _raw_layers(terms: Sequence[LossTerm], model: int) -> Iterable[Mistake]:
    """Layers whose results go into the loss as if they were probabilities, or logarithms of these."""
    uses: dict[str, set[str]] = {}
    for term in terms:
        for at, each in enumerate(term.operations):
            if each.get("layer") is None:
                continue
            takers = term.takers.get(at, ())
            output = takers[0] if len(takers) == 1 and _layer(term, takers[0]) == at else at
            known = _uses(term, output) if each.get("operation") in LAYERS and term.whole else {"unknown"}
            uses.setdefault(str(each["layer"]), set()).update(known)
    for layer, found in uses.items():
        evidence = {"function": "the loss", "operation": "weighted sum"}
        if "log" in found and found <= {"log", "pow"}:
            message = f"the loss takes the logarithm of what {layer} gives: these are raw outputs, not probabilities"
            evidence["function"] = "a logarithm"
            yield Mistake(Severity.WARNING, "not_probabilities", message, evidence=evidence)
        # What another model gives may be a score, which this one drives up.
        elif found in ({"picked up"}, {"picked down"}) and _model_of(layer) == model:
            message = (
                f"the loss is a mean of what {layer} gives for the classes of the targets: raw outputs have no bound, "
                f"so it changes without limit, independent of the other classes"
            )
            yield Mistake(Severity.WARNING, "not_probabilities", message, evidence=evidence)


def _uses(term: LossTerm, at: int) -> set[str]:
    """What a term does with the output of a layer: ``"log"``, ``"picked up"`` or ``"picked down"``, or others."""
    picked = _picked(term, at)
    if picked is not None:
        return {f"picked {'up' if picked < 0 else 'down'}"}
    takers, waiting = set(), [at]
    while waiting:
        for other in term.takers.get(waiting.pop(), ()):
            if term.shifted(other) or (term.name(other) in _LIMITING and len(term.sources(other)) == 1):
                waiting.append(other)
            else:
                # Differences of logarithms are a distance on a scale of ratios.
                weighed = all(term.name(each) in _WEIGHED for each in term.takers.get(other, ()))
                takers.add(term.name(other) if weighed else "unknown")
    return takers


def _picked(term: LossTerm, at: int) -> int | None:
    """The sign of a term that is a mean of one unit of an output for each row; None for others."""
    units, shape = _units(term, at), term.shape(at)
    rows, sign = math.prod(shape) // max(1, units), int(math.copysign(1, term.coefficient or 0))
    if units < 2 or not term.coefficient:
        return None
    picks, now = False, at
    while term.takers.get(now):
        takers = term.takers[now]
        other = takers[0]
        given = term.operands(other)
        constants = all(each == "constant" for each in given if not isinstance(each, int))
        if len(takers) > 1 or term.name(other) not in _LINEAR or len(term.sources(other)) > 1 or not constants:
            return None
        of_all = term.name(other) == "mul" and term.shape(other) == shape == term.shape(now)
        averages = term.name(other) in ("mean", "sum")
        picks |= of_all or (averages and math.prod(term.shape(other)) * term.operations[other]["elements"] == rows)
        # Of an average before a pick, or a product by samples, the sign is not known.
        if term.name(other) == "neg" or (term.name(other) == "sub" and given[:1] == ["constant"]):
            sign = -sign
        now = other
    return sign if picks and now == len(term.operations) - 1 else None


def _model_of(layer: str) -> int:
    """Number of the model that a parameter belongs to."""
    number = re.match(r"model_(\d+)\.", layer)
    return int(number[1]) - 1 if number else 0


def _layer_name(term: LossTerm, at: int) -> str:
    return str(term.operations[at].get("layer") or "the last layer")


def _what(term: LossTerm, at: int) -> str:
    """What normalises, in words."""
    return _words(term.name(at)) if term.name(at) in _SOFTMAXES else "a softmax of exponentials and their sum"


def _words(operation: str) -> str:
    return f"a {operation.replace('log_', 'log-')}"
