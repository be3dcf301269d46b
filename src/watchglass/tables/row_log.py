"""Logs of rows: one that a reader holds never changes, and one that continues it shares its memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import STEPS, Mode, StepEnd
from watchglass.store import dtype_of, step_ends


class _Memory:
    """The memory of rows, and the number of its used places."""

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.rows, self.used, self.lock = np.empty(size, dtype), 0, Lock()


class RowLog:
    """Rows of one dtype in the order in which they arrived. Never changes; for any number of threads.

    Attributes:
        rows: The rows; not to be written to.
        key: The field that rows are looked up by.
        origin: The same object for a log and all that continue it.
    """

    def __init__(self, dtype: np.dtype[Any], key: str) -> None:
        self.key, self.origin = key, object()
        self._hold(_Memory(0, dtype), 0, 0, ascending=True)

    def __len__(self) -> int:
        return len(self.rows)

    def and_then(self, rows: NDArray[Any]) -> RowLog:
        """This log and more rows behind it."""
        if not len(rows):
            return self
        keys = rows[self.key]
        later = not len(self) or keys[0] >= self.rows[self.key][-1]
        ascending = self._ascending and bool(later and (keys[1:] >= keys[:-1]).all())
        memory, end = self._memory, self._end + len(rows)
        with memory.lock:
            # Where another log continues this one already, or the memory is full, the rows are copied.
            fits = memory.used == self._end and end <= len(memory.rows)
            if fits:
                memory.used = end
        if not fits:
            end = len(self) + len(rows)
            memory = _Memory(end + end // 4 + 16, self.rows.dtype)
            memory.rows[: len(self)], memory.used = self.rows, end
        memory.rows[end - len(rows) : end] = rows
        return self._of(memory, end - len(self) - len(rows), end, ascending=ascending)

    def first(self, count: int) -> RowLog:
        """The first rows."""
        if count == len(self):
            return self
        begin = self._end - len(self)
        return self._of(self._memory, begin, begin + count, ascending=self._ascending)

    def without(self, before: int) -> RowLog:
        """The rows with this key or a higher one."""
        keys = self.rows[self.key]
        if self._ascending:
            begin = self._end - len(self) + bisect_left(keys, before, key=int)
            return self._of(self._memory, begin, self._end, ascending=True)
        return self._of(_Memory(0, self.rows.dtype), 0, 0, ascending=True).and_then(self.rows[keys >= before])

    def at(self, key: int) -> NDArray[Any]:
        """The rows with a key, in the order in which they arrived."""
        if not len(self.rows):
            return self.rows
        keys, order = self._by_key
        low = bisect_left(keys, key, key=int)
        high = bisect_right(keys, key, low, key=int)
        return self.rows[low:high] if order is None else self.rows[order[low:high]]

    def of_tensor(self, tensor_id: int) -> NDArray[Any]:
        """The rows of a tensor, in the order in which they arrived."""
        return self.rows[np.flatnonzero(self.rows["tensor_id"] == tensor_id)]

    def unique(self, fields: Sequence[str] | None) -> NDArray[Any]:
        """The rows by key; of rows that agree in key and these fields the last that arrived, or all rows for None."""
        rows = self.rows
        if fields is not None and len(rows):
            columns = [rows[name] for name in (*reversed(fields), self.key)]
            order = np.lexsort(columns)
            last = np.any([column[order[1:]] != column[order[:-1]] for column in columns], axis=0)
            rows = rows[np.sort(order[np.append(last, True)])]
        return rows[np.argsort(rows[self.key], kind="stable")]

    @property
    def least(self) -> int:
        """The least key of some rows."""
        keys = self.rows[self.key]
        return int(keys[0] if self._ascending else keys.min())

    @cached_property
    def latest(self) -> NDArray[Any]:
        """The rows by key, only the last that arrived for each."""
        keys, order = self._by_key
        rows = self.rows if order is None else self.rows[order]
        last = np.ones(len(rows), bool)
        last[:-1] = keys[1:] != keys[:-1]
        return rows if last.all() else rows[last]

    @cached_property
    def _by_key(self) -> tuple[NDArray[Any], NDArray[np.intp] | None]:
        """Keys, ascending, and the places of their rows; None where they are in order."""
        keys = self.rows[self.key]
        order = None if self._ascending else np.argsort(keys, kind="stable")
        return keys if order is None else keys[order], order

    def _of(self, memory: _Memory, begin: int, end: int, *, ascending: bool) -> RowLog:
        """A log of other rows, or of other memory, with the same key and origin."""
        log = RowLog.__new__(RowLog)
        log.key, log.origin = self.key, self.origin
        log._hold(memory, begin, end, ascending=ascending)
        return log

    def _hold(self, memory: _Memory, begin: int, end: int, *, ascending: bool) -> None:
        """Take the rows from ``begin`` to ``end`` of a memory."""
        self._memory, self._end, self._ascending = memory, end, ascending
        self.rows: NDArray[Any] = memory.rows[begin:end]


class StepEnds(Mapping[int, StepEnd]):
    """Ends of steps by global step, ascending; of a step that ended twice the last one. Never changes."""

    def __init__(self, log: RowLog | None = None, trained: tuple[int, int] | None = None) -> None:
        #: These ends as rows of :data:`~watchglass.records.STEPS`, in the order in which they arrived.
        self.log = log if log is not None else RowLog(dtype_of(STEPS), "global_step")
        self.trained = trained  #: The least and the greatest TRAIN step; None without one.

    def and_then(self, rows: NDArray[Any]) -> StepEnds:
        """These and more of them."""
        steps, trained = rows["mode_step"][rows["mode"] == Mode.TRAIN], self.trained
        if len(steps):
            low, high = int(steps.min()), int(steps.max())
            trained = (low, high) if trained is None else (min(low, trained[0]), max(high, trained[1]))
        return StepEnds(self.log.and_then(rows), trained)

    def without(self, before: int) -> StepEnds:
        """Those of steps that are not before this one."""
        return StepEnds(self.log.without(before), self.trained)

    def __getitem__(self, global_step: int) -> StepEnd:
        rows = self.log.at(global_step)
        if not len(rows):
            raise KeyError(global_step)
        return step_ends(rows[-1:])[0]

    def __contains__(self, global_step: object) -> bool:
        return isinstance(global_step, int) and len(self.log.at(global_step)) > 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.log.latest["global_step"].tolist())

    def __len__(self) -> int:
        return len(self.log.latest)
