"""Samples of input tensors: the recorder's thread makes a hash and a sketch of them.

Which elements are taken depends on the number of elements alone, so equal tensors give equal samples, independent of
their strides, device and address. They are runs of neighbours spread over the whole tensor, their starts scattered
within equal parts: no period of the data (image rows, channels) can hide from all of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import Arrays, Elements
from watchglass.record import Readback
from watchglass.records import facts
from watchglass.stats import column_correlations

#: Runs, and elements of a run. Smaller tensors are taken whole.
_RUNS, _RUN = 256, 16
LIMIT = _RUNS * _RUN
#: Numbers of elements whose positions are remembered.
_REMEMBERED = 64
#: Knuth's multiplier: scatters the starts without a random generator, which must not be touched.
_SCATTER = 2654435761
_MOST_CHANNELS, _MOST_COMMON = 64, 5
#: Tokens and columns of an embedding whose gradients are noted.
MOST_TOKENS_OF_TABLE, _MOST_COLUMNS = 4096, 64
#: Features of a table whose correlations are computed, the absolute correlation that counts, and rows that are kept.
LEAST_FEATURES, MOST_FEATURES, CORRELATED = 3, 256, 0.95
_LEAST_ROWS, _MOST_ROWS = 16, 512
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass
class Sample:
    """Some elements of one tensor, copied."""

    path: str  #: Where in the model's arguments it was, ``"0"``, ``"input_ids"``.
    shape: tuple[int, ...]  #: Of the tensor.
    dtype: str  #: Its name.
    size: int  #: Elements of the sample.
    taken: Elements  #: Their copies.
    rows: int = 0  #: Number of rows that it consists of; 0 for runs of elements.

    @classmethod
    def of(
        cls, arrays: Arrays, array: Any, path: str = "", index: NDArray[np.int64] | None = None,
        shape: tuple[int, ...] | None = None, rows: int = 0,
    ) -> Sample:  # fmt: skip
        """Copies elements of an array.

        Args:
            arrays: Reads it.
            array: The array.
            path: Where it was.
            index: Their flat positions; None for those that depend on their number alone.
            shape: The shape of the sample, if it stands for that and not for the array.
            rows: Number of rows that they make.

        Raises:
            Exception: It holds no numbers that can be read.
        """
        about = arrays.describe(array)
        total = math.prod(about.shape)
        index = positions(total) if index is None else index
        return cls(path, shape or about.shape, about.dtype, len(index), arrays.take(array, index), rows)

    @classmethod
    def of_first_rows(cls, arrays: Arrays, array: Any, rows: int, numbers: int, tokens: int) -> Sample | None:
        """Parts of the first rows of an array, equal for equal rows; None of one that has none.

        Args:
            arrays: Reads it.
            array: A batch of samples.
            rows: Most rows.
            numbers: Most elements of a row, spread over it.
            tokens: Most elements of a row of integers, the first ones in a row.
        """
        about = arrays.describe(array)
        total = math.prod(about.shape)
        if not about.shape or not total:
            return None
        count, length = min(rows, about.shape[0]), total // about.shape[0]
        in_order = len(about.shape) == 2 and "float" not in about.dtype
        index = _row_positions(count, length, 1 if in_order else -(-length // numbers), tokens if in_order else length)
        return cls("", about.shape, about.dtype, len(index), arrays.take(array, index), count)

    @property
    def total(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    def octets(self) -> NDArray[np.uint8]:
        """The sample's bytes; waits for a device. For the recorder's thread."""
        return np.ascontiguousarray(self.taken.received()).reshape(-1).view(np.uint8)

    def varied(self) -> int:
        """Number of elements unlike the usual one. Near zero, equal samples prove nothing."""
        if not self.size:
            return 0
        octets = self.octets()
        # Bits, not numbers: NaN is like NaN. As few comparisons as the size of an element allows.
        words = octets.view(f"u{min(8, octets.size // self.size)}").reshape(self.size, -1)
        usual = (0, self.size // 2, self.size - 1)  # one of them is, where nearly all are the same
        return min(int(np.count_nonzero((words != words[index]).any(axis=1))) for index in usual)

    def values(self) -> NDArray[np.float64] | None:
        """The elements as float64; None for complex numbers."""
        values = self.taken.numbers().reshape(-1)
        return values.astype(np.float64) if values.dtype.kind != "c" else None

    def table(self) -> NDArray[np.float64] | None:
        """Whole rows of a tensor with two axes; None for others."""
        rows = self.rows or (self.shape[0] if len(self.shape) == 2 and self.size == self.total else 0)
        values = self.values() if rows and len(self.shape) == 2 and self.size else None
        return None if values is None else values.reshape(rows, -1)

    def sketch(
        self, correlations: Correlations | None = None, gradients: NDArray[Any] | Readback | None = None
    ) -> facts.InputSketch | None:
        """A summary of the values: moments and quantiles of numbers, the most common ones of integers.

        Args:
            correlations: Adds correlations between the features of a table, over its rows and earlier ones.
            gradients: Norms of the gradients of the first tokens of an embedding that takes it.
        """
        values = self.values()
        if values is None or not self.size:
            return None
        finite = np.isfinite(values)
        nonfinite = int(values.size - finite.sum())
        sketch = facts.InputSketch(self.path, tuple(self.shape), self.dtype, self.total, self.size, nonfinite)
        if not finite.any():
            return sketch
        sketch = replace(sketch, zeros=int((values == 0).sum()))
        if self.dtype.startswith(("int", "uint", "bool")):
            counts, distinct = most_common(values, _MOST_COMMON)
            return replace(
                sketch,
                min=int(values.min()),
                max=int(values.max()),
                distinct=distinct,
                most_common=tuple((value, count / values.size) for value, count in counts),
                padding=_padding(self.table(), gradients),
            )
        table = self.table() if correlations is not None else None
        return replace(
            sketch,
            mean=float(values[finite].mean()),
            std=float(values[finite].std()),
            quantiles=tuple(np.quantile(values[finite], QUANTILES).tolist()),
            correlations=correlations.with_rows(table) if correlations is not None and table is not None else None,
            channels=self._channels(np.where(finite, values, 0.0)),
        )

    def _channels(self, values: NDArray[np.float64]) -> facts.SketchedUnits | None:
        axis = _channel_axis(self.shape)
        if axis is None or self.shape[axis] > _MOST_CHANNELS:
            return None
        number = self.shape[axis]
        taken = np.arange(self.size) if self.rows else positions(self.total)
        channel = np.unravel_index(taken, self.shape)[axis]
        count = np.maximum(np.bincount(channel, minlength=number), 1)
        mean = np.bincount(channel, values, number) / count
        spread = np.bincount(channel, (values - mean[channel]) ** 2, number) / count
        return facts.SketchedUnits(tuple(mean.tolist()), tuple(np.sqrt(spread).tolist()), axis)


class Correlations:
    """Correlations between the features of a table, over the latest rows of its batches. For the recorder's thread."""

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] | None = None

    def with_rows(self, table: NDArray[np.float64]) -> facts.Correlated | None:
        """Adds rows; returns the share of pairs of features that are :data:`CORRELATED`.

        Args:
            table: float64[rows, features].

        Returns:
            None for too few features that vary, or too few rows.
        """
        table = table[np.isfinite(table).all(axis=1)]
        if self._rows is not None and self._rows.shape[1] == table.shape[1]:
            table = np.concatenate([self._rows, table])
        self._rows = table = table[-_MOST_ROWS:]
        varies = table.std(axis=0) > 1e-12 if len(table) else np.zeros(table.shape[1], bool)
        features = int(varies.sum())
        if features < LEAST_FEATURES or table.shape[1] > MOST_FEATURES or len(table) < _LEAST_ROWS:
            return None
        above = np.abs(column_correlations(table[:, varies])) > CORRELATED
        pairs = features * (features - 1)
        return facts.Correlated(float((above.sum() - features) / pairs), features, len(table))


def hash_of(samples: Sequence[Sample]) -> str:
    """16 hexadecimal digits over shapes, dtypes and sampled bytes."""
    digest = hashlib.blake2b(digest_size=8)
    for part in samples:
        digest.update(f"{part.path}|{part.dtype}|{part.shape}|".encode())
        digest.update(part.octets().tobytes())
    return digest.hexdigest()


def first_of_each_kind(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of floats and the first of integers."""
    floats = [taken for taken in samples if "float" in taken.dtype]
    integers = [taken for taken in samples if "int" in taken.dtype]
    return [*floats[:1], *integers[:1]]


def hashed(batches: Sequence[Sequence[Sample]]) -> facts.BatchInputs:
    """The fact about some batches. For the recorder's thread."""
    first = batches[0]
    return facts.BatchInputs(
        tuple(hash_of(samples) for samples in batches),
        # For each batch the tensor that varies most, and of these the least: near 0, equal hashes prove nothing.
        int(min(max((taken.varied() for taken in samples), default=0) for samples in batches)),
        {taken.path: tuple(taken.shape) for taken in first},
        sum(taken.size for taken in first),
        sum(taken.total for taken in first),
    )


@functools.lru_cache(_REMEMBERED)
def positions(total: int, limit: int = LIMIT) -> NDArray[np.int64]:
    """Flat indices of the sampled elements of ``total``, ascending.

    Args:
        total: Elements of the tensor.
        limit: Elements of the sample, a multiple of 16.
    """
    if total <= limit:
        return np.arange(total)
    runs = limit // _RUN
    part = total // runs
    number = np.arange(runs)
    starts = number * part + number * _SCATTER % (part - _RUN + 1)
    return np.asarray((starts[:, None] + np.arange(_RUN)[None, :]).reshape(-1))


@functools.lru_cache(_REMEMBERED)
def _row_positions(rows: int, length: int, stride: int, most: int) -> NDArray[np.int64]:
    """Flat indices of every ``stride``-th of the first ``most`` elements of the first rows of this length."""
    return np.asarray((np.arange(rows)[:, None] * length + np.arange(length)[:most:stride]).reshape(-1))


def token_positions(tokens: int, columns: int) -> NDArray[np.int64]:
    """Flat indices of some columns of the first tokens of an embedding, whose gradients are noted."""
    index = np.arange(min(tokens, MOST_TOKENS_OF_TABLE))[:, None] * columns + rows_of(columns, _MOST_COLUMNS)
    return np.asarray(index.reshape(-1))


def rows_of(total: int, number: int) -> NDArray[np.int64]:
    """Ascending numbers of ``number`` rows among ``total``, scattered."""
    if total <= number:
        return np.arange(total)
    part = total // number
    index = np.arange(number)
    return index * part + index * _SCATTER % part


def table_positions(shape: tuple[int, ...]) -> NDArray[np.int64] | None:
    """Flat indices of some whole rows of a table; None of other tensors, of small ones and of those with long rows."""
    if len(shape) != 2 or math.prod(shape) <= LIMIT or shape[1] > LIMIT:
        return None
    rows = rows_of(shape[0], max(4, 4 * LIMIT // shape[1]))
    return np.asarray((rows[:, None] * shape[1] + np.arange(shape[1])).reshape(-1))


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Axis of channels or features: 1 of images unless they are laid out with colours last, else the last."""
    if len(shape) < 2:
        return None
    if len(shape) < 4:
        return len(shape) - 1
    return len(shape) - 1 if shape[-1] in (1, 3, 4) and shape[1] not in (1, 3, 4) else 1


def most_common(values: NDArray[Any], most: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """The most common integers with their counts, most frequent first, and how many different ones there are."""
    distinct, counts = np.unique(values, return_counts=True)
    common = np.argsort(-counts, kind="stable")[:most]
    return tuple((int(distinct[i]), int(counts[i])) for i in common), int(distinct.size)


def _padding(
    table: NDArray[np.float64] | None, gradients: NDArray[Any] | Readback | None
) -> facts.SketchedPadding | None:
    """The token that rows end with (or begin with), and how much of them it fills without a gap."""
    if table is None or min(table.shape) < 2:
        return None
    found = []
    for side, rows in (("right", table[:, ::-1]), ("left", table)):
        token = most_common(rows[:, 0], 1)[0][0][0]
        # Of each row the length of the run of this token.
        runs = np.cumprod(rows == token, axis=1).sum(axis=1)
        found.append(facts.SketchedPadding(token, side, float(runs.mean() / table.shape[1]), float(np.mean(runs > 0))))
    padding = max(found, key=lambda each: each.share)
    if gradients is not None:
        norms = gradients if isinstance(gradients, np.ndarray) else gradients.resolve()
        positive = norms[norms > 0]  # None after a NaN reached the gradient.
        if positive.size and 0 <= padding.token < len(norms):
            return replace(padding, gradient=float(norms[padding.token] / np.median(positive)))
    return padding
