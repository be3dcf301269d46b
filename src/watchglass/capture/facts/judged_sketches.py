"""Sketches of what a loss judges: rows of a model's final output with the targets of the same rows.

Some rows are copied; the recorder's thread makes the facts ``output_sketch`` and ``target_sketch`` of them. A row is
what a loss judges at once: one sample, or one position of a sequence or an image where each has a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.facts.input_sketches import Sample, most_common, rows_of
from watchglass.capture.facts.neighbours import LEAST_ROWS, MOST_COLUMNS, MOST_COMPARED, alike
from watchglass.records import facts, loss_kind

#: Rows of targets, elements of outputs and columns of outputs that are no classes, at most.
MOST_ROWS, _MOST_ELEMENTS, _MOST_COLUMNS = 1024, 1 << 15, 256
#: Rows of outputs at least, of classes so many that their rows are long; beyond this number outputs are left out.
_LEAST_ROWS, _MOST_CLASSES = 4, 1 << 17
#: Units that are listed one by one, and classes that are counted one by one.
MOST_UNITS, _MOST_COUNTED = 64, 1000
#: Rows of fewer samples are taken of all axes but the last.
_FEW_SAMPLES = 8

Values = NDArray[np.float64]
#: Copies elements of an array: what it is, the array, their flat positions, and the shape of the copy. None of an array
#: that cannot be read now.
Take = Callable[[str, Any, NDArray[np.int64], tuple[int, ...]], Sample | None]


@dataclass(frozen=True)
class Cut:
    """Which part of a loss's arguments is copied."""

    rows: int  #: Rows of the targets.
    stride: int  #: Every ``stride``-th of these belongs to the outputs.
    columns: int  #: Columns of outputs that are no classes.

    @classmethod
    def of(cls, rows: int, columns: int, *, by_class: bool) -> Cut:
        """The part that is copied of a number of rows and columns."""
        columns = columns if by_class else min(columns, _MOST_COLUMNS)
        most = max(_LEAST_ROWS, _MOST_ELEMENTS // max(1, columns))
        rows = min(rows, MOST_ROWS if by_class else most)
        return cls(rows, -(-rows // most), columns)

    @property
    def whole_rows(self) -> bool:
        """Whether the rows of the outputs can be copied."""
        return self.columns <= _MOST_CLASSES

    @classmethod
    def of_matrix(cls, shape: tuple[int, ...]) -> tuple[int, NDArray[np.int64], tuple[int, int]]:
        """Of an array of values: the number of its columns, the flat positions that are copied, and their shape."""
        total = math.prod(shape)
        of_samples = len(shape) < 3 or shape[0] >= _FEW_SAMPLES
        columns = 1 if len(shape) < 2 else math.prod(shape[1:]) if of_samples else shape[-1]
        cut = cls.of(total // columns, columns, by_class=False)
        picked = rows_of(total // columns, cut.rows)[:, None] * columns + rows_of(columns, cut.columns)
        return columns, picked.reshape(-1), picked.shape


@dataclass(frozen=True)
class SampleInputs:
    """Inputs of some of the samples of a batch."""

    inputs: Sample  #: Their elements, or some of these, a row for each sample.
    samples: int  #: Samples of the batch.

    @classmethod
    def of(cls, take: Take, batch: Any) -> SampleInputs | None:
        """Copies elements of a batch of samples; None of one that is too small."""
        samples, total = batch.shape[0], math.prod(batch.shape)
        if samples < LEAST_ROWS or not total:
            return None
        columns = total // samples
        picked = cls.rows_of(samples)[:, None] * columns + rows_of(columns, MOST_COLUMNS)
        taken = take("input", batch, picked.reshape(-1), picked.shape)
        return None if taken is None else cls(taken, samples)

    @staticmethod
    def rows_of(samples: int) -> NDArray[np.int64]:
        """Which samples of a batch are copied: some of those that are judged."""
        rows = rows_of(samples, MOST_ROWS)
        return rows[:: -(-len(rows) // MOST_COMPARED)]


@dataclass(frozen=True)
class LossRows:
    """Rows of the arguments of one loss, or of a model's output that no loss function judged."""

    function: str  #: The loss function; "" for none.
    number: int  #: Number of the loss in its forward, from 1.
    by_class: bool  #: Whether columns are classes, of which each row has one.
    shape: tuple[int, ...]  #: Of the output.
    target_shape: tuple[int, ...]  #: Of the target.
    columns: int  #: Classes or units of a row, those included that were not copied.
    outputs: Sample | None  #: Rows of the output; None where they could not be copied.
    targets: Sample | None  #: Rows of the target; None where there is none.
    stride: int = 1  #: Every ``stride``-th row of the targets belongs to the outputs.
    ignored: int | None = None  #: The class that counts as none.
    #: What else a loss was given: ``smoothing``, ``weighted``, ``positive_weight``.
    settings: dict[str, Any] | None = None
    sign: int = 0  #: Where ``targets`` holds differences: 1 for those of output - target, -1 for the reverse; else 0.
    given: SampleInputs | None = None  #: Inputs of some samples; None where the rows of the output are no samples.

    @classmethod
    def of_values(
        cls, take: Take, outputs: Any, targets: Any = None, function: str = "", number: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> LossRows:  # fmt: skip
        """Copies rows of an output that holds no classes.

        Args:
            take: Copies them.
            outputs: The output, with at least one element.
            targets: What a loss function compares it with; None if none does.
            function: The loss function.
            number: Number of the loss in its forward, from 1.
            settings: What else it was given.
        """
        shape = tuple(outputs.shape)
        columns, picked, part = Cut.of_matrix(shape)
        target_shape = () if targets is None else tuple(targets.shape)
        taken = take("output", outputs, picked, part)
        judged = take("target", targets, picked, part) if target_shape == shape and targets is not None else None
        return cls(function, number, False, shape, target_shape, columns, taken, judged, settings=settings)

    @classmethod
    def of_classes(
        cls, take: Take, outputs: Any, targets: Any, function: str, number: int, ignored: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> LossRows | None:  # fmt: skip
        """Copies rows of the logits or log-probabilities of classes, and of their labels or shares.

        Args:
            take: Copies them.
            outputs: With the classes in the second axis.
            targets: A class, or shares of classes, for each sample or position.
            function: The loss function.
            number: Number of the loss in its forward, from 1.
            ignored: The class that counts as none.
            settings: What else it was given.

        Returns:
            None if the shapes do not fit.
        """
        samples, classes, *space = outputs.shape
        positions = math.prod(space)
        shares = tuple(targets.shape) == tuple(outputs.shape)
        if not shares and tuple(targets.shape) != (samples, *space):
            return None
        cut = Cut.of(samples * positions, classes, by_class=True)
        rows = rows_of(samples * positions, cut.rows)
        seen = rows[:: cut.stride]
        # Flat positions of all classes of these rows: classes come before positions.
        first = seen // positions * (classes * positions) + seen % positions
        of_outputs = (first[:, None] + np.arange(classes) * positions).reshape(-1)
        shape = (len(seen), classes)
        return cls(
            function, number, True, tuple(outputs.shape), tuple(targets.shape), classes,
            take("output", outputs, of_outputs, shape) if cut.whole_rows else None,
            take("target", targets, of_outputs, shape) if shares else take("target", targets, rows, (cut.rows, 1)),
            1 if shares else cut.stride,
            None if shares else ignored,
            settings,
        )  # fmt: skip

    def with_inputs(self, given: SampleInputs | None) -> LossRows:
        """These, with the inputs of their samples if each row is one of the samples that were copied."""
        of_samples = given is not None and self.targets is not None and self.shape[:1] == (given.samples,)
        if given is None or not of_samples or math.prod(self.shape) != given.samples * self.columns:
            return self
        return replace(self, given=given)

    @np.errstate(all="ignore")  # outputs of a run that diverges are infinite, or overflow in the sums
    def output_sketch(self) -> facts.OutputSketch | None:
        """The fact about the output. For the recorder's thread."""
        values = _rows(self.outputs)
        if values is None or self.outputs is None:
            return None
        finite = np.isfinite(values).all(axis=1)
        sketch = facts.OutputSketch(**self._head(self.shape, self.outputs, values))
        sketch = replace(sketch, nonfinite=float(np.mean(~np.isfinite(values))))
        if not finite.any():
            return sketch
        clean, targets = values[finite], self._target_rows()
        given = None if targets is None else targets[:: self.stride][: len(values)]
        given = None if given is None or len(given) != len(values) else given[finite]
        near = self._neighbours(values, targets) if finite.all() else None
        sketch = replace(sketch, **_moments(clean), std=float(clean.std()), neighbours=near)
        if self.by_class:
            return _of_classes(sketch, clean, None if given is None else _classes_of(given), self.ignored)
        return _of_values(sketch, clean, given)

    @np.errstate(all="ignore")
    def target_sketch(self) -> facts.TargetSketch | None:
        """The fact about the target. For the recorder's thread."""
        values = self._target_rows()
        if values is None or self.targets is None or not values.size:
            return None
        sketch = facts.TargetSketch(**self._head(self.target_shape, self.targets, values), **(self.settings or {}))
        if "int" in self.targets.dtype and self.by_class and values.shape[1] == 1:
            return self._counts(sketch, values[:, 0])
        finite = np.isfinite(values)
        sketch = replace(sketch, nonfinite=float(np.mean(~finite)))
        clean = values[finite.all(axis=1)]
        return _of_targets(sketch, clean, by_class=self.by_class) if len(clean) else sketch

    def _neighbours(self, outputs: Values, targets: Values | None) -> facts.Neighbours | None:
        """How alike targets and errors are where inputs are."""
        inputs = None if self.given is None else _rows(self.given.inputs)
        if inputs is None or self.given is None or targets is None:
            return None
        # The rows that the adapter has copied.
        judged = rows_of(self.shape[0], len(outputs))
        copied = self.given.rows_of(self.given.samples)
        if self.stride > 1 or len(targets) != len(outputs):
            return None
        _, of_inputs, of_outputs = np.intersect1d(copied, judged, return_indices=True)
        inputs, outputs, targets = inputs[of_inputs], outputs[of_outputs], targets[of_outputs]
        if self.by_class:
            labels = _classes_of(targets)
            known = (labels >= 0) & (labels < outputs.shape[1])
            inputs, outputs, labels = inputs[known], outputs[known], labels[known]
            shares = np.exp(_log_shares(outputs))
            targets = np.zeros_like(shares)
            targets[np.arange(len(labels)), labels] = 1.0
            return alike(inputs, targets, targets - shares)
        if targets.shape != outputs.shape:
            return None
        if self.function == "binary_cross_entropy_with_logits":
            outputs = 1 / (1 + np.exp(-np.clip(outputs, -500, 500)))
        return alike(inputs, targets, targets - outputs)

    def _target_rows(self) -> Values | None:
        values, outputs = _rows(self.targets), _rows(self.outputs) if self.sign else None
        if values is None or not self.sign:
            return values
        return None if outputs is None or outputs.shape != values.shape else outputs - self.sign * values

    def _head(self, shape: tuple[int, ...], sample: Sample, values: Values) -> dict[str, Any]:
        return {
            "function": self.function, "number": self.number, "shape": shape, "dtype": sample.dtype,
            "rows": len(values), "columns": self.columns,
        }  # fmt: skip

    def _counts(self, sketch: facts.TargetSketch, labels: Values) -> facts.TargetSketch:
        counted = labels if self.ignored is None else labels[labels != self.ignored]
        sketch = replace(sketch, kind="classes", ignored=1 - counted.size / labels.size)
        if not counted.size:
            return sketch
        outside = int(((counted < 0) | (counted >= self.columns)).sum())
        counts, distinct = most_common(counted, _MOST_COUNTED)
        least, most = int(counted.min()), int(counted.max())
        return replace(sketch, min=least, max=most, outside=outside, distinct=distinct, counts=counts)


def _rows(sample: Sample | None) -> Values | None:
    """The copied elements as float64[rows, columns]."""
    values = None if sample is None else sample.values()
    if sample is None or values is None or not values.size:
        return None
    return values.reshape(sample.shape[0], -1)


def _classes_of(targets: Values) -> NDArray[np.int64]:
    """The class of each row of targets, which are classes or shares of these."""
    labels = targets[:, 0] if targets.shape[1] == 1 else targets.argmax(axis=1)
    return np.asarray(labels, np.int64)


def _of_classes(
    sketch: facts.OutputSketch, logits: Values, labels: NDArray[np.int64] | None, ignored: int | None
) -> facts.OutputSketch:
    """Adds what rows of logits, or of log-probabilities, choose."""
    log_shares = _log_shares(logits)
    chosen = logits.argmax(axis=1)
    entropy = float(-(np.exp(log_shares) * log_shares).sum(axis=1).mean())
    sketch = replace(sketch, entropy=entropy, predicted=most_common(chosen, MOST_UNITS)[0])
    if labels is None:
        return sketch
    known = (labels >= 0) & (labels < logits.shape[1])
    known &= labels != ignored if ignored is not None else True
    if not known.any():
        return sketch
    rows = np.flatnonzero(known)
    sketch = replace(sketch, loss=float(-log_shares[rows, labels[rows]].mean()))
    return _with_confusion(sketch, labels[known], chosen[known], logits.shape[1])


def _log_shares(logits: Values) -> Values:
    """The logarithm of the softmax of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _with_confusion(
    sketch: facts.OutputSketch, labels: NDArray[np.int64], chosen: NDArray[np.int64], classes: int
) -> facts.OutputSketch:
    sketch = replace(sketch, right=float(np.mean(labels == chosen)))
    if classes > MOST_UNITS:
        return sketch
    pairs, counts = np.unique(labels * classes + chosen, return_counts=True)
    found = ((int(pair // classes), int(pair % classes), int(n)) for pair, n in zip(pairs, counts, strict=True))
    return replace(sketch, confusion=tuple(found))


def _of_values(sketch: facts.OutputSketch, outputs: Values, targets: Values | None) -> facts.OutputSketch:
    """Adds how close rows of outputs are to their targets, compared with the mean of these targets."""
    if targets is None or targets.shape != outputs.shape or not np.isfinite(targets).all():
        return sketch
    kind = loss_kind(sketch.function)
    if kind.of_labels and np.isin(targets, (0, 1)).all():
        limit = 0.5 if kind.takes == "probabilities" else 0.0
        chosen = (outputs > limit).astype(np.int64).ravel()
        return _with_confusion(sketch, targets.astype(np.int64).ravel(), chosen, 2)
    apart_targets, apart_outputs = targets - targets.mean(axis=0), outputs - outputs.mean(axis=0)
    spread = float(np.mean(apart_targets**2))
    # Equal targets that were computed from differences with the outputs are apart by rounding alone.
    rounding = float(np.finfo(np.float32).eps) * max(np.abs(targets).max(), np.abs(outputs).max())
    spread = spread if spread > rounding**2 else 0.0
    both = float(np.sqrt(np.sum(apart_targets**2) * np.sum(apart_outputs**2)))
    correlation = float(np.sum(apart_targets * apart_outputs) / both) if both > 0 else None
    squared = float(np.mean((outputs - targets) ** 2))
    return replace(sketch, squared_error=squared, constant_error=spread, correlation=correlation)


def _of_targets(sketch: facts.TargetSketch, targets: Values, *, by_class: bool) -> facts.TargetSketch:
    """Adds the kind of targets that are no integers, and their moments."""
    zeros, ones = targets == 0, targets == 1
    sketch = replace(
        sketch,
        **_moments(targets),
        variance=float(targets.var()),
        zeros=float(np.mean(zeros)),
        ones=float(np.mean(ones)),
    )
    labels = bool((zeros | ones).all())
    if by_class:
        if not labels or not (targets.sum(axis=1) == 1).all():
            return replace(sketch, kind="shares")
        counts, distinct = most_common(targets.argmax(axis=1), _MOST_COUNTED)
        return replace(sketch, kind="one_hot", counts=counts, distinct=distinct)
    if labels:
        counts, distinct = most_common(targets.ravel(), 2)
        return replace(sketch, kind="labels", counts=counts, distinct=distinct)
    return replace(sketch, kind="values", whole=bool((targets == np.round(targets)).all()))


def _moments(rows: Values) -> dict[str, Any]:
    """Moments of all elements, and by unit; ``spread`` is over the rows: what differs between units does not count."""
    spreads = rows.std(axis=0)
    few = rows.shape[1] <= MOST_UNITS
    return {
        "min": float(rows.min()), "max": float(rows.max()), "mean": float(rows.mean()),
        "spread": float(np.sqrt(np.mean(spreads**2))),
        "units": facts.SketchedUnits(tuple(rows.mean(axis=0).tolist()), tuple(spreads.tolist())) if few else None,
    }  # fmt: skip
