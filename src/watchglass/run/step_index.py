"""Which rows of which tables belong to a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Table = TypeVar("_Table")


class StepIndex(Generic[_Table]):
    """Tables as they arrived, and for each step the ranges of rows that belong to it."""

    def __init__(self) -> None:
        self._tables: list[tuple[int, _Table]] = []
        self._ranges: dict[int, list[tuple[_Table, int, int]]] = {}

    def add(self, table: _Table, steps: NDArray[np.uint64]) -> None:
        """Add a table whose rows belong to ``steps``; a run of equal steps is one range."""
        if not len(steps):
            return
        edges = [0, *(np.flatnonzero(steps[1:] != steps[:-1]) + 1).tolist(), len(steps)]
        for start, stop in pairwise(edges):
            self._ranges.setdefault(int(steps[start]), []).append((table, start, stop))
        self._tables.append((int(steps.max()), table))

    def at(self, step: int) -> Sequence[tuple[_Table, int, int]]:
        """The (table, start, stop) of a step."""
        return self._ranges.get(step, ())

    def tables(self) -> list[_Table]:
        """All tables, in the order in which they arrived."""
        return [table for _, table in self._tables]

    def forget(self, before: int) -> None:
        """Drop the ranges of earlier steps; a table goes with the last of its steps."""
        for step in [step for step in self._ranges if step < before]:
            del self._ranges[step]
        self._tables = [(last, table) for last, table in self._tables if last >= before]
