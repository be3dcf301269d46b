"""Fact ``token_targets`` of compiled steps: how class labels lie to embedded tokens, and who sees whom in attention."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import Elements
from watchglass.capture.compiled.collecting import ObservedLoss, ValuePart
from watchglass.capture.compiled.reading import ByPart, sampled, whole
from watchglass.capture.facts.token_labels import (
    MOST_EMBEDDED,
    MOST_LOSSES,
    MOST_PREDICTIONS,
    MOST_TOKENS,
    LabelsOfTokens,
    is_token_like,
)
from watchglass.capture.planning.sketch_pace import is_power_of_two
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import ModuleKind, facts, loss_kind

#: Captured steps of a model that are all looked at; after them the 4th, 8th, 16th ...
_ALL = 3
#: The class of no label, where a loss ignores none.
_NONE = -100
#: Positions of a sequence at least; rows of predictions at least, and elements of them at most.
_LEAST_POSITIONS, _FEWEST_ROWS, _MOST_ELEMENTS = 4, 4, 1 << 17

_Losses = list[Callable[[], facts.ComparedLabels | None]]
#: Tensors of tokens: their shapes, and copies of their first rows and columns.
_Embedded = list[tuple[tuple[int, ...], Elements]]


class TokenFacts:
    """Compares labels with the tokens that embeddings take. For the training thread.

    Args:
        source: The source of facts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._captures: Counter[int] = Counter()

    def save(self, step: OpenStep, found: ByPart, model: int) -> None:
        """Add the fact of a model at a TRAIN step, where it embeds integers and a loss judges classes.

        Args:
            step: The step.
            found: Its values.
            model: Number of the model.
        """
        number = self._captures[model] = self._captures[model] + 1
        if number > _ALL and not is_power_of_two(number):
            return
        embedded = _embedded(found, model)
        losses = _losses(found, model, embedded)
        if not losses:
            return
        seen = [
            (what.attention, taken)
            for what, value in found.get(ValuePart.ATTENTION, ())
            if what.model == model and what.attention is not None and (taken := whole(value)) is not None
        ]
        tokens = [taken for _, taken in embedded]
        make = functools.partial(_fact, losses, tokens, seen, _recurrent(found, model))
        step.records.add_fact(DeferredFact(facts.TokensAndLabels, make), self._source)


def _fact(
    losses: _Losses, embedded: Sequence[Elements], seen: Sequence[tuple[facts.SeenByAttention, Elements]],
    recurrent: tuple[bool, ...],
) -> facts.TokensAndLabels:  # fmt: skip
    """The fact; for the recorder's thread."""
    compared = [each() for each in losses]
    calls = Counter(replace(call, next=float(taken.numbers())) for call, taken in seen)
    attention = tuple(replace(call, calls=times) for call, times in calls.items())
    tokens = sum(is_token_like(each.received()) for each in embedded)
    return facts.TokensAndLabels(tuple(each for each in compared if each is not None), tokens, attention, recurrent)


def _embedded(found: ByPart, model: int) -> _Embedded:
    """The shapes of what embeddings take, and copies of the first rows and columns."""
    embedded: _Embedded = []
    for what, value in found.get(ValuePart.INPUT, ()):
        shape = tuple(value.shape)
        integers = "int" in str(value.dtype) and len(shape) in (1, 2) and math.prod(shape) > 1
        if integers and what.model == model and what.place.kind is ModuleKind.EMBEDDING:
            taken = _block(value, shape[-1])
            embedded += [] if taken is None else [(shape, taken)]
    return embedded[:MOST_EMBEDDED]


def _losses(found: ByPart, model: int, embedded: _Embedded) -> _Losses:
    """What compares the labels of each loss whose labels may be those of the tokens."""
    predictions = {
        what.call.number: value
        for what, value in found.get(ValuePart.PREDICTIONS, ())
        if what.model == model and what.call is not None
    }
    losses: _Losses = []
    for what, labels in found.get(ValuePart.LABELS, ()):
        call = what.call
        if what.model == model and call is not None and call.number in predictions:
            compared = _of_loss(call, predictions[call.number], labels, embedded)
            losses += [] if compared is None else [compared]
    return losses[:MOST_LOSSES]


def _of_loss(
    call: ObservedLoss, predictions: Any, labels: Any, embedded: _Embedded
) -> Callable[[], facts.ComparedLabels | None] | None:
    if not (loss_kind(call.function).of_classes and call.by_class and "int" in str(labels.dtype)):
        return None
    if len(predictions.shape) != 2:  # the micro-batches of a scan, one after another
        return None
    total, classes = tuple(predictions.shape)
    shape = next((shape for shape, _ in embedded if math.prod(shape) == total), None)
    # Where predictions are fewer than tokens, it does not show which ones are left out. A softmax over as many classes
    # as there are positions might be taken for attention.
    if shape is None or math.prod(labels.shape) != total or classes == shape[-1] or shape[-1] < _LEAST_POSITIONS:
        return None
    if len(call.predictions) > 2 and call.predictions[1] not in (shape[-1], -1):
        return None
    length = shape[-1]
    block, right = _block(labels, length), _right(predictions, labels, length)
    if block is None or right is None:
        return None
    ignored = _NONE if call.ignored is None else call.ignored
    about = LabelsOfTokens(call.function, shape, 0, ignored)
    tokens = [taken for each, taken in embedded if each == shape]

    def compared() -> facts.ComparedLabels | None:
        rows = block.received().reshape(-1, min(length, MOST_TOKENS))
        counts = [_counts(chosen.numbers(), classes.numbers(), ignored) for chosen, classes in right]
        return about.compared([each.received() for each in tokens], rows, counts)

    return compared


def _block(value: Any, length: int) -> Elements | None:
    """The first rows of this length, of at most 4,096 elements."""
    columns = min(length, MOST_TOKENS)
    rows = min(math.prod(value.shape) // length, max(1, MOST_TOKENS // columns))
    taken = sampled("", value, (np.arange(rows)[:, None] * length + np.arange(columns)).reshape(-1))
    return None if taken is None else taken.taken


def _right(predictions: Any, labels: Any, length: int) -> list[tuple[Elements, Elements]] | None:
    """Copies of a few rows of predictions with their labels: of first positions, and the first ones.

    A model that moves its tokens itself knows nothing at the first position.
    """
    total, classes = tuple(predictions.shape)
    rows = min(MOST_PREDICTIONS, max(_FEWEST_ROWS, _MOST_ELEMENTS // classes))
    copies = []
    for chosen in (np.arange(0, total, length)[:rows], np.arange(min(rows, total))):
        picked = (chosen[:, None] * classes + np.arange(classes)).reshape(-1)
        values, truth = sampled("", predictions, picked, (len(chosen), classes)), sampled("", labels, chosen)
        if values is None or truth is None:
            return None
        copies.append((values.taken, truth.taken))
    return copies


def _counts(predictions: NDArray[Any], labels: NDArray[Any], ignored: int) -> tuple[float, float]:
    """How many predictions are right, and how many were compared."""
    labels = labels.reshape(-1)
    judged = (labels != ignored) & (labels >= 0)
    chosen = predictions.reshape(len(labels), -1).argmax(axis=-1)
    return float(((chosen == labels) & judged).sum()), float(judged.sum())


def _recurrent(found: ByPart, model: int) -> tuple[bool, ...]:
    """Whether each recurrent module goes both ways, or may: of a cell that the script loops over it does not show."""
    places = {
        what.place.path: what.place.module_type
        for what, _ in found.get(ValuePart.OUTPUT, ())
        if what.model == model and what.place.kind is ModuleKind.RECURRENT
    }
    outer = [path for path in places if not any(path.startswith(f"{other}.") for other in places)]
    return tuple(places[path] == "Bidirectional" or places[path].endswith("Cell") for path in outer)
