"""Courses of a statistic of many tensors, read in pieces, kept in little memory, and continued as the run goes on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.errors import UnknownNameError
from watchglass.records import Mode

if TYPE_CHECKING:
    from watchglass.run import Run

#: The share of units that were zero in the whole step, where a course is not of a reduction.
INACTIVE = "inactive"
#: Rows of statistics that are read at once: some 15 MB.
_ROWS_AT_ONCE = 1 << 16
#: Most steps of tensors whose quantiles are kept.
_QUANTILES = 20_000
#: Least number of steps that a matrix has room for.
_ROOM = 64


class TensorCourse(NamedTuple):
    """One number of several tensors over training steps.

    Attributes:
        steps: The steps at which any of them was captured, int64[n], ascending.
        values: float64[n, tensors]: infinite where a tensor had elements that are not finite, NaN where it was not
            captured.
    """

    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


class Courses:
    """Courses of the first worker of one run, whose steps must keep their numbers. For any number of threads.

    Args:
        most_bytes: Those asked for least recently are dropped beyond so many bytes; the newest stays in any case.
    """

    def __init__(self, most_bytes: int = 64_000_000) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, tuple[str, ...]], _Growing] = OrderedDict()
        self._quantiles: OrderedDict[tuple[str, int], npt.NDArray[np.float64]] = OrderedDict()

    def of(self, run: Run, names: Sequence[str], reduction: str) -> TensorCourse:
        """The course of a reduction of some tensors.

        Args:
            run: The run, or a snapshot of it; an earlier one adds nothing.
            names: Names of its tensors.
            reduction: One of :data:`~watchglass.tables.REDUCTIONS`, or :data:`INACTIVE`.
        """
        key = (reduction, tuple(names))
        with self._lock:
            found = self._kept.setdefault(key, _Growing(key[1], reduction))
            self._kept.move_to_end(key)
        course = found.read_on(run)
        with self._lock:
            while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)
        return course

    def quantiles(
        self, run: Run, name: str, steps: npt.NDArray[np.int64], wanted: Sequence[float]
    ) -> npt.NDArray[np.float64]:
        """Quantiles of a tensor at some training steps, float64[n, wanted]; NaN where there is no histogram.

        Always the same ones are wanted of a tensor.
        """
        found = np.full((len(steps), len(wanted)), np.nan)
        tensor = run.tensor(name)
        for place, step in enumerate(steps.tolist()):
            known = self._quantiles.get((name, step))
            if known is None:
                try:
                    known = tensor.histogram(step).quantile(wanted)
                except UnknownNameError:
                    known = found[place]
                with self._lock:
                    self._quantiles[name, step] = known
                    while len(self._quantiles) > _QUANTILES:
                        self._quantiles.popitem(last=False)
            found[place] = known
        return found


class _Growing:
    """One course, with room for further steps."""

    def __init__(self, names: tuple[str, ...], reduction: str) -> None:
        self._names, self._reduction = names, reduction
        self._lock = threading.Lock()
        self._count = 0
        self._steps = np.empty(0, np.int64)
        self._values = np.empty((0, len(names)))

    @property
    def nbytes(self) -> int:
        return self._steps.nbytes + self._values.nbytes

    def read_on(self, run: Run) -> TensorCourse:
        """All of it, with the steps that are new."""
        with self._lock:
            numbers = run.worker().numbers(Mode.TRAIN)
            known = int(self._steps[self._count - 1]) if self._count else -1
            if self._names and len(numbers) and numbers.last > known:
                steps = np.array(numbers.within(known + 1, numbers.last + 1), np.int64)
                at_once = max(1, _ROWS_AT_ONCE // len(self._names))
                for begin in range(0, len(steps), at_once):
                    piece = steps[begin : begin + at_once]
                    self._add(run, int(piece[0]), int(piece[-1]) + 1)
            # Later steps are written behind these rows, or into other arrays.
            return TensorCourse(self._steps[: self._count], self._values[: self._count])

    def _add(self, run: Run, first: int, stop: int) -> None:
        read = _inactive if self._reduction == INACTIVE else _statistics
        at, column, values = read(run, self._names, self._reduction, (first, stop))
        if not len(at):
            return
        steps, row = np.unique(at, return_inverse=True)
        end = self._count + len(steps)
        if end > len(self._steps):
            room = max(_ROOM, end + end // 4)
            self._steps = np.concatenate([self._steps[: self._count], np.zeros(room - self._count, np.int64)])
            more = np.full((room - self._count, len(self._names)), np.nan)
            self._values = np.concatenate([self._values[: self._count], more])
        self._steps[self._count : end] = steps
        self._values[self._count + row, column] = values
        self._count = end


#: Of cells: their steps, places of their tensors, and numbers, in any order.
_Cells = tuple[npt.NDArray[np.int64], npt.NDArray[np.intp], npt.NDArray[np.float64]]


def _statistics(run: Run, names: Sequence[str], reduction: str, steps: tuple[int, int]) -> _Cells:
    fields = (reduction, "nonfinite")
    table = run.statistics(names=names, fields=fields, steps=steps).to_arrow()
    if not len(table):
        return np.empty(0, np.int64), np.empty(0, np.intp), np.empty(0)
    tensors = table["tensor"].unify_dictionaries().combine_chunks()
    places = {name: place for place, name in enumerate(names)}
    column = np.array([places[name] for name in tensors.dictionary.to_numpy(zero_copy_only=False).tolist()], np.intp)
    values, broken = (table[field].to_numpy().astype(np.float64) for field in fields)
    return table["step"].to_numpy(), column[tensors.indices.to_numpy()], np.where(broken > 0, np.inf, values)


def _inactive(run: Run, names: Sequence[str], reduction: str, steps: tuple[int, int]) -> _Cells:
    courses = [run.tensor(name).inactive_units(steps=steps) for name in names]
    column = np.repeat(np.arange(len(names)), [len(at) for at, _ in courses])
    return np.concatenate([at for at, _ in courses]), column, np.concatenate([values for _, values in courses])
