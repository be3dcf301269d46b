"""Which rows of which tables belong to a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Table = TypeVar("_Table")


class StepIndex(Generic[_Table]):
    """Tables as they arrived, and for each step the ranges of rows that belong to it."""

    def __init__(self) -> None:
        self._tables: list[tuple[int, _Table]] = []
        self._ranges: dict[int, list[tuple[_Table, int, int]]] = {}
        # What nobody has asked for a step of yet: many a run is opened for the course of one tensor.
        self._new: list[tuple[_Table, NDArray[np.int64], NDArray[np.int64]]] = []

    def add(self, table: _Table, steps: NDArray[np.uint64]) -> None:
        """Add a table whose rows belong to ``steps``; a run of equal steps is one range."""
        if not len(steps):
            return
        edges = np.concatenate([[0], np.flatnonzero(steps[1:] != steps[:-1]) + 1])
        self._new.append((table, steps[edges], np.append(edges, len(steps))))
        self._tables.append((int(steps.max()), table))

    def add_ranges(self, table: _Table, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Add a table of which it is known where its steps are: ``(step, first row, row behind the last)``."""
        self._index()
        for step, start, stop in ranges:
            self._ranges.setdefault(step, []).append((table, start, stop))
        if ranges:
            self._tables.append((max(ranges)[0], table))

    def _index(self) -> None:
        for table, steps, edges in self._new:
            bounds = edges.tolist()
            for step, start, stop in zip(steps.tolist(), bounds, bounds[1:], strict=False):
                found = self._ranges.get(step)
                if found is None:
                    self._ranges[step] = [(table, start, stop)]
                else:
                    found.append((table, start, stop))
        self._new.clear()

    def at(self, step: int) -> Sequence[tuple[_Table, int, int]]:
        """The (table, start, stop) of a step."""
        self._index()
        return self._ranges.get(step, ())

    def tables(self) -> list[_Table]:
        """All tables, in the order in which they arrived."""
        return [table for _, table in self._tables]

    def forget(self, before: int) -> list[_Table]:
        """Drop the ranges of earlier steps; a table goes with the last of its steps. Returns those that stay."""
        self._index()
        for step in [step for step in self._ranges if step < before]:
            del self._ranges[step]
        self._tables = [(last, table) for last, table in self._tables if last >= before]
        return self.tables()
