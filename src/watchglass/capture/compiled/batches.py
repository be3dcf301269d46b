"""Facts about the batches of compiled steps: hashes, sketches, and whether an evaluation has rows of the training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from watchglass.capture.arrays import DeferredNumbers, arrays_of
from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.compiled.reading import ByPart, Found, sampled
from watchglass.capture.facts.input_sketches import (
    MOST_TOKENS_OF_TABLE,
    Correlations,
    Sample,
    first_of_each_kind,
    hashed,
    table_positions,
    token_positions,
)
from watchglass.capture.facts.seen_rows import MOST_NUMBERS, MOST_ROWS, MOST_TOKENS, SeenRows
from watchglass.capture.planning.sketch_pace import SketchPace
from watchglass.record import DeferredFact, OpenStep
from watchglass.records import SEEN_ROWS, Mode, ModuleKind, Role, facts

#: Tensors of a batch that are sampled.
_MOST_TENSORS = 4

#: A module that takes a tensor, and a sample of that.
_Taken = tuple[Collected, Sample]


def batch_of(found: ByPart, model: int) -> Found:
    """What a model takes: its batch, else the inputs of its outermost module."""
    own = [pair for pair in found.get(ValuePart.BATCH, ()) if pair[0].model == model]
    inputs = (pair for pair in found.get(ValuePart.INPUT, ()) if pair[0].model == model)
    return (own or [pair for pair in inputs if pair[0].place.is_root])[:_MOST_TENSORS]


class BatchFacts:
    """Makes the facts ``batch`` and ``input_sketch``, and looks for rows of the training in evaluations.

    For the training thread.

    Args:
        source: The source of facts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._pace, self._rows_pace = SketchPace(), SketchPace()
        self._seen = SeenRows()
        self._correlations: dict[str, Correlations] = {}

    def save(
        self, step: OpenStep, found: ByPart, model: int, kinds: frozenset[str], about: Callable[[int], int | None]
    ) -> None:
        """Add the facts about the batch of a model.

        Args:
            step: The step.
            found: Its values.
            model: Number of the model.
            kinds: The kinds of facts that are wanted.
            about: The number of a model in facts.
        """
        batch = batch_of(found, model)
        samples = [taken for what, value in batch if (taken := sampled(what.name or "0", value)) is not None]
        if not samples:
            return
        if "batch" in kinds:
            step.records.add_fact(DeferredFact(facts.BatchInputs, lambda: hashed([samples])), self._source)
        if "input_sketch" in kinds and self._pace.due(step.mode, model, step.mode_step):
            for chosen in first_of_each_kind(samples):
                value = next(value for what, value in batch if (what.name or "0") == chosen.path)
                self._add_sketch(step, chosen, value, found, model, about)
        if SEEN_ROWS in kinds:
            self._look_for_rows(step, batch[0][1], model)

    def _add_sketch(
        self, step: OpenStep, chosen: Sample, value: Any, found: ByPart, model: int, about: Callable[[int], int | None]
    ) -> None:
        index = table_positions(chosen.shape)
        table = None if index is None else sampled(chosen.path, value, index, rows=len(index) // chosen.shape[1])
        takers = [
            (what, taken)
            for what, given in found.get(ValuePart.INPUT, ())
            if what.place.kind is not ModuleKind.CONTAINER
            and str(given.dtype) == str(value.dtype)
            and math.prod(given.shape) == math.prod(value.shape)
            and (taken := sampled("", given)) is not None
        ]
        norms = {
            what.place.path: _norms_of_rows(gradient)
            for what, gradient in found.get(ValuePart.GRADIENT, ())
            if what.place.kind is ModuleKind.EMBEDDING and len(gradient.shape) == 2 and "int" in chosen.dtype
        }
        correlations = None
        if step.mode is Mode.TRAIN:
            correlations = self._correlations.setdefault(f"{model}/{chosen.path}", Correlations())
        make = functools.partial(_sketch, chosen, table or chosen, correlations, takers, norms, about(model))
        step.records.add_fact(DeferredFact(facts.InputSketch, make), self._source)

    def _look_for_rows(self, step: OpenStep, value: Any, model: int) -> None:
        seen, training = self._seen, step.mode is Mode.TRAIN
        if training and not self._rows_pace.due(step.mode, model, step.mode_step):
            return
        if not training and not seen.noted:
            return
        try:
            arrays = arrays_of(value)
            taken = Sample.of_first_rows(arrays, arrays.values(value), MOST_ROWS, MOST_NUMBERS, MOST_TOKENS)
        except Exception:
            return  # a class of arrays of the script may raise anything
        if taken is None:
            return
        if training:
            seen.note(taken)
            noted = seen.noted
            # It makes no fact, but is done in the recorder's thread.
            later = DeferredFact(facts.RowsSeen, lambda: seen.hash_up_to(noted))
            step.records.add_fact(later, self._source)
        elif taken.rows > 1:
            noted = seen.noted
            share = DeferredNumbers(lambda: seen.share(taken, noted), taken.size)
            step.records.series.append((SEEN_ROWS, Role.METRIC, float(taken.rows), share))


def _norms_of_rows(gradient: Any) -> Callable[[], Any]:
    """Norms of the rows of the first tokens of an embedding's gradient, of some columns; for the recorder's thread."""
    tokens, columns = gradient.shape
    taken = sampled("", gradient, token_positions(tokens, columns))
    rows = min(tokens, MOST_TOKENS_OF_TABLE)
    if taken is None:
        return lambda: None
    return lambda: np.sqrt(np.square(taken.taken.numbers().astype(np.float32).reshape(rows, -1)).sum(axis=1))


def _sketch(
    chosen: Sample, table: Sample, correlations: Correlations | None, takers: Sequence[_Taken],
    norms: Mapping[str, Callable[[], Any]], model: int | None,
) -> facts.InputSketch | None:  # fmt: skip
    """The sketch of a tensor, with the modules that take it. For the recorder's thread."""
    own = chosen.octets().tobytes()
    into = [what.place for what, taken in takers if taken.octets().tobytes() == own]
    of_tokens = next((norms[place.path]() for place in into if place.path in norms), None)
    sketch = table.sketch(correlations, of_tokens)
    return sketch and replace(sketch, into=tuple(dict.fromkeys(place.kind.value for place in into)), model=model)
