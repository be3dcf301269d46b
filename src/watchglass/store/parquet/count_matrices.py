"""Histograms of one tensor at many steps as a matrix, bins by steps, so that what hardly changes compresses well.

Neighbouring steps of a tensor fill nearly the same bins with nearly the same counts. A matrix has a row for each key
that occurs at any of its steps and a column for each step, 0 where that step has no such bin. The file has the
differences along each row, zigzag-coded (0, -1, 1, -2, ... become 0, 1, 2, 3, ...) and split into planes of bytes,
lowest first: high planes are nearly all 0. docs/run-format.md compares this with other encodings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.stats import Histograms
from watchglass.store.encoding.histogram_columns import check_histograms, planes_of

#: Most cells of a matrix: decoding takes some 40 bytes for each.
MAX_CELLS = 1 << 22
#: Most cells of all matrices of a row group.
MAX_GROUP_CELLS = 1 << 25
#: Most steps of a matrix.
MAX_STEPS = 1 << 16
#: Steps of a matrix, as far as its cells allow. More steps save nothing, and a reader of one step decodes the matrix.
_STEPS = 1024
_PLANES = 8


class Matrix(NamedTuple):
    """One matrix as the file has it."""

    steps: int  #: Number of its columns.
    keys: bytes  #: Its keys, ascending, as little-endian int16.
    #: Bytes of its cells, row after row: all lowest bytes, then all second ones, up to the last that is not 0.
    planes: bytes


def encode(
    histograms: Histograms, runs: Sequence[tuple[int, int]], most_cells: int = MAX_CELLS
) -> Iterator[tuple[int, Matrix]]:
    """Matrices of histograms, each with its first row; together they cover the ranges that have any bin.

    Args:
        histograms: Of n rows.
        runs: Half-open ranges of rows of one tensor each, in ascending order.
        most_cells: Four times the most cells of a matrix of several steps.
    """
    for begin, end in runs:
        at = begin
        while at < end:
            stop = _fitting(histograms, at, end, most_cells)
            if histograms.offsets[stop] > histograms.offsets[at]:
                yield at, _matrix(histograms, at, stop)
            at = stop


def decode(matrices: Sequence[tuple[int, Matrix]], seen: NDArray[np.uint64]) -> Histograms:
    """The histograms in the matrices, of as many rows as ``seen`` has.

    Args:
        matrices: Each with its first row; in ascending order.
        seen: Number of elements in the histogram of each row.

    Raises:
        DamagedDataError: They are no result of :func:`encode`.
    """
    sizes = np.zeros(len(seen), np.int64)
    keys, counts = [np.zeros(0, np.int16)], [np.zeros(0, np.uint64)]
    behind, total = 0, 0
    for begin, matrix in matrices:
        total += matrix.steps * (len(matrix.keys) // 2)
        if total > MAX_GROUP_CELLS:
            raise DamagedDataError(f"histograms have {total} cells; at most {MAX_GROUP_CELLS} are read at a time")
        if begin < behind or begin + matrix.steps > len(seen):
            raise DamagedDataError(f"histograms of {matrix.steps} steps do not fit the rows they are of")
        behind = begin + matrix.steps
        of_keys, cells = _cells(matrix)
        columns, rows = np.nonzero(cells.T)
        sizes[begin:behind] = np.bincount(columns, minlength=matrix.steps)
        keys.append(of_keys[rows])
        counts.append(cells[rows, columns].astype(np.uint64))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    found = Histograms(seen, offsets, np.concatenate(keys), np.concatenate(counts))
    check_histograms(found)
    return found


def _fitting(histograms: Histograms, begin: int, end: int, most_cells: int) -> int:
    """The last row + 1 of a matrix that begins at ``begin``."""
    stop = min(end, begin + _STEPS)
    while stop - begin > 1:
        keys = histograms.keys[histograms.offsets[begin] : histograms.offsets[stop]]
        if len(np.unique(keys)) * (stop - begin) <= most_cells // 4:
            break
        stop = begin + (stop - begin) // 2
    return stop


def _matrix(histograms: Histograms, begin: int, stop: int) -> Matrix:
    first, last = histograms.offsets[begin], histograms.offsets[stop]
    keys, rows = np.unique(histograms.keys[first:last], return_inverse=True)
    columns = np.repeat(np.arange(stop - begin), np.diff(histograms.offsets[begin : stop + 1]))
    cells = np.zeros((len(keys), stop - begin), np.int64)
    cells[rows.reshape(-1), columns] = histograms.counts[first:last].astype(np.int64)
    differences = np.diff(cells, axis=1, prepend=0)
    folded = ((differences << 1) ^ (differences >> 63)).astype("<u8").reshape(-1)
    planes = b"".join(plane.tobytes() for plane in planes_of(folded))
    return Matrix(stop - begin, keys.astype("<i2").tobytes(), planes)


def _cells(matrix: Matrix) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """(keys, counts[keys, steps]) of a matrix, which is checked."""
    steps, number = matrix.steps, len(matrix.keys) // 2
    cells = steps * number
    sound = 1 <= steps <= MAX_STEPS and number >= 1 and len(matrix.keys) % 2 == 0 and cells <= MAX_CELLS
    planes = len(matrix.planes) // cells if sound else 0
    if not sound or not 1 <= planes <= _PLANES or planes * cells != len(matrix.planes):
        raise DamagedDataError(
            f"histograms of {steps} steps and {number} bins cannot have {len(matrix.planes)} bytes of counts"
        )
    folded = np.zeros(cells, np.uint64)
    for plane in range(planes):
        part = np.frombuffer(matrix.planes, np.uint8, cells, plane * cells).astype(np.uint64)
        folded |= part << np.uint64(8 * plane)
    differences = (folded >> np.uint64(1)).astype(np.int64) ^ -(folded & np.uint64(1)).astype(np.int64)
    counts = np.cumsum(differences.reshape(number, steps), axis=1)
    if (counts < 0).any():
        raise DamagedDataError("a bin of a histogram has a negative count")
    return np.frombuffer(matrix.keys, "<i2").astype(np.int16), counts
