"""Which rows of which tables belong to a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

_Table = TypeVar("_Table")


class StepIndex(Generic[_Table]):
    """Tables as they arrived, and for each step the ranges of rows that belong to it."""

    def __init__(self) -> None:
        self._tables: list[tuple[int, _Table]] = []
        self._ranges: dict[int, list[tuple[_Table, int, int]]] = {}

    def add(self, table: _Table, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Add a table of which it is known where its steps are: ``(step, first row, row behind the last)``."""
        for step, start, stop in ranges:
            self._ranges.setdefault(step, []).append((table, start, stop))
        if ranges:
            self._tables.append((max(ranges)[0], table))

    def at(self, step: int) -> Sequence[tuple[_Table, int, int]]:
        """The (table, start, stop) of a step."""
        return self._ranges.get(step, ())

    def tables(self) -> list[_Table]:
        """All tables, in the order in which they arrived."""
        return [table for _, table in self._tables]

    def forget(self, before: int) -> list[_Table]:
        """Drop the ranges of earlier steps; a table goes with the last of its steps. Returns those that stay."""
        for step in [step for step in self._ranges if step < before]:
            del self._ranges[step]
        self._tables = [(last, table) for last, table in self._tables if last >= before]
        return self.tables()
