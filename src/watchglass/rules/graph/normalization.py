"""Which results of a term add up to one, along which axis, and whether that is the axis of the classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from watchglass.records import Severity, facts
from watchglass.rules.graph.mistake import Mistake
from watchglass.rules.graph.terms import Made

#: Calls of loss functions at a step.
Calls = Sequence[facts.ComputedLoss]


class Normalized(NamedTuple):
    """Results that add up to one along an axis, or their logarithms."""

    at: Made  #: The result.
    of: Made | None  #: The result that is normalised; None if unknown.
    axis: int | None  #: The axis; None for several.
    size: int  #: Its size.
    original: int | None  #: The same axis of the result of ``of``; None if unclear.
    mixes: bool  #: Whether a reshape has put together parts of several axes into this one.

    @classmethod
    def over(cls, at: Made, of: Made | None, sums: Made) -> Normalized:
        """With the axis of a softmax or logsumexp."""
        data = sums.data
        return cls(at, of, data.axis, data.size or 0, data.axis_of_output, bool(data.mixes))


def normalized(at: Made) -> Normalized | None:
    """A softmax, or the same from exponentials and their sum, or from a logsumexp."""
    if at.operation.kind == "softmax":
        return Normalized.over(at, at.first, at)
    if len(at.sources) != 2 or at.others:
        return None
    first, second = at.sources
    if at.name == "sub" and second.name == "logsumexp" and second.sources == [first]:
        return Normalized.over(at, first, second)
    while second.shifted:
        second = second.sources[0]
    exponentials = at.name == "div" and first.name == "exp" and second.sources == [first]
    axes = second.data.axes if exponentials and second.name == "sum" else None
    if axes is None or len(axes) != 1 or axes[0] >= len(first.shape):
        return None
    return Normalized(at, first, axes[0], first.shape[axes[0]], axes[0], False)


def on_wrong_axis(found: Normalized, calls: Calls, batch: int) -> Mistake | None:
    """A mistake where it is not the axis of the classes."""
    if found.axis is None or _weighs(found.at):
        return None
    return (
        _over_batch(found, batch)
        or _between_positions(found)
        or _of_other_classes(found, calls)
        or _over_positions(found, calls)
    )


def _over_batch(found: Normalized, batch: int) -> Mistake | None:
    at, shape, size = found.at, found.at.shape, found.size
    if found.original != 0 or len(shape) < 2 or min(shape) < 2 or batch < 2 or size % batch:
        return None
    made_of, used = at.before, at.after
    layers = [other for other in made_of if other.operation.weighted_sum]
    # Scores of items, one for each, are normalised over them.
    if not layers or any(other.shape[-1:] == [1] for other in layers):
        return None
    if any(_joins(other) for other in made_of):
        return None
    output = _output_before(found.of)
    if len(shape) > 2 or shape[0] == shape[1]:
        likelihood = at.name == "log_softmax" or any(other.name == "log" or _picks(other) for other in used)
        if output is None or not likelihood or (len(shape) > 2 and found.axis != 0):
            return None
    units = shape[1] if size == shape[0] else shape[0]
    classes = units if output is None else output.units
    severity = Severity.ERROR if any(other.name == "nll_loss" for other in used) else Severity.WARNING
    return _wrong_axis(severity, _what(at), f"over the {size} samples of the batch", size, classes)


def _of_other_classes(found: Normalized, calls: Calls) -> Mistake | None:
    """Log-probabilities along another axis than the one from which nll_loss picks its classes."""
    shape, of_calls = found.at.shape, _classes(calls)
    classes = next(iter(of_calls), 0)
    takes = [other for other in found.at.takers if other.name == "nll_loss"]
    # Nothing is left out or repeated between the two.
    whole = any(other.data.elements == math.prod(shape) for other in takes)
    if not whole or len(of_calls) != 1 or found.size == classes or classes not in shape:
        return None
    along = f"over the {found.size} values of axis {found.axis} of {tuple(shape)}"
    return _wrong_axis(Severity.ERROR, _what(found.at), along, found.size, classes)


def _between_positions(found: Normalized) -> Mistake | None:
    """Classes that are put together from the results of several positions, by a wrong reshape."""
    layer = None if found.of is None else found.of.output_of
    if found.of is None or layer is None:
        return None
    classes, shape = found.of.units, found.at.shape
    # The classes of pixels are channels, which come before the positions.
    of_pixels = layer.name == "convolution" and len(layer.shape) > len(shape) == 2
    if not (found.mixes or (of_pixels and (found.original or 0) > 1)) or found.size != classes or classes < 2:
        return None
    message = (
        f"a reshape to {tuple(found.at.shape)} before {_what(found.at)} takes values of several positions "
        f"for the {classes} classes of one: it does not swap axes, as transpose and permute do"
    )
    return Mistake("normalized_over_batch", message, float(found.size), float(classes))


def _over_positions(found: Normalized, calls: Calls) -> Mistake | None:
    """A softmax over positions of a sequence or an image, from whose results the classes of the layer are picked."""
    shape, used = found.at.shape, found.at.after
    layer = None if found.of is None else found.of.output_of
    if found.of is None or layer is None or layer.name == "bmm" or found.axis == 0 or len(shape) < 3:
        return None
    by_channel = layer.name == "convolution"
    classes, axis = found.of.units, 1 if by_channel else len(found.of.shape) - 1
    if found.original in (None, axis) or found.mixes or classes < 2 or classes not in shape:
        return None
    # One class of each position: looking it up leaves as many values as there are positions.
    looked_up = found.size != classes and any(
        other.name in ("mean", "sum") and other.data.elements == math.prod(shape) // classes for other in used
    )
    if not looked_up and not any(_picks(other) for other in used):
        return None
    # Positions may be what is picked: the beginning and the end of a span.
    labels = found.size in _classes(calls) or any(
        other.name == "sum" and other.data.axes == (found.axis,) for other in used
    )
    if labels and found.size != classes:
        return None
    return _wrong_axis(
        Severity.WARNING, _what(found.at), f"over {found.size} positions", found.size, classes, "position"
    )


def _classes(calls: Calls) -> set[int]:
    """Numbers of classes that losses by class were given."""
    return {call.classes for call in calls if call.kind.of_classes and len(call.predictions) > 1}


def _wrong_axis(severity: Severity, what: str, along: str, size: int, classes: int, one: str = "sample") -> Mistake:
    message = (
        f"{what} before the loss normalises {along} and not over the {classes} classes: the probabilities of one "
        f"{one} do not add up to one"
    )
    return Mistake("normalized_over_batch", message, float(size), float(classes), severity=severity)


def _joins(at: Made) -> bool:
    """Whether an operation joins results of equal rank, as the similarities of two sets of samples."""
    sources = set(at.sources)
    own = math.prod(at.shape)
    return len(sources) > 1 and sum(math.prod(each.shape) == own for each in sources) != 1


def _weighs(at: Made) -> bool:
    """Whether a softmax gives weights to other results, as those of an attention or pooling."""
    used = at.after
    return any(set(other.sources) - used - {at} for other in used if other.name in ("mul", "div", "bmm"))


def _picks(at: Made) -> bool:
    """Whether an operation picks the classes of the targets."""
    named = at.name
    return named == "nll_loss" or (named == "mul" and "constant" in (at.operands))


def _output_before(at: Made | None) -> Made | None:
    """The output of a layer from which, element by element, a result was computed; None for none."""
    while at is not None and at.output_of is None:
        alike = [each for each in at.sources if each.shape == at.shape]
        at = alike[0] if len(set(alike)) == 1 and not at.operation.weighted_sum else None
    return at


def words(operation: str) -> str:
    """An operation in words."""
    return f"a {operation.replace('log_', 'log-')}"


def _what(at: Made) -> str:
    """What normalises, in words."""
    normalizes = at.operation.kind == "softmax"
    return words(at.name) if normalizes else "a softmax of exponentials and their sum"
