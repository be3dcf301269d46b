"""Rows and facts of one worker as they were stored, to be looked up by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import Fact, RowKind
from watchglass.run.row_log import RowLog
from watchglass.store import decode_facts, dtype_of

#: So many frames of facts are known again when they come twice; more than wait while a store refuses them.
_FACTS_SEEN = 4096


class StoredRows:
    """Rows of one kind. For one thread.

    Args:
        kind: The kind, keyed by step or by time.

    Attributes:
        kind: The same.
        log: The rows; another one after each :meth:`add`.
    """

    def __init__(self, kind: RowKind) -> None:
        self.kind = kind
        self.log = RowLog(dtype_of(kind), kind.key.value)

    def add(self, rows: NDArray[Any]) -> None:
        """Take in the rows of a frame."""
        self.log = self.log.and_then(rows)

    def all(self) -> NDArray[Any]:
        """All of them by key, else in the order in which they arrived; of those that stand twice the last one."""
        rows = self.log.rows
        keys = [rows[name] for name in (*reversed(self.kind.unique or ()), self.kind.key.value)]
        if self.kind.unique is not None and len(rows):
            order = np.lexsort(keys)
            last = np.any([column[order[1:]] != column[order[:-1]] for column in keys], axis=0)
            rows = rows[np.sort(order[np.append(last, True)])]
        return rows[np.argsort(rows[self.kind.key.value], kind="stable")]

    def of_tensor(self, tensor_id: int) -> NDArray[Any]:
        """All rows of a tensor, in the order in which they arrived."""
        rows = self.log.rows
        return rows[np.flatnonzero(rows["tensor_id"] == tensor_id)]

    def steps_of(self, tensor_id: int) -> set[int]:
        """Global steps that have a row of a tensor."""
        return set(self.of_tensor(tensor_id)["global_step"].tolist())

    def ids_of(self, global_steps: NDArray[np.uint64]) -> set[int]:
        """Ids of the tensors that have a row of any of these steps."""
        rows = self.log.rows
        return set(np.unique(rows["tensor_id"][np.isin(rows["global_step"], global_steps)]).tolist())

    def forget(self, before: int) -> None:
        """Drop the rows of earlier steps."""
        self.log = self.log.without(before)


class StoredFacts:
    """Facts by step. For one thread."""

    def __init__(self) -> None:
        self._by_step: dict[int, list[Fact]] = {}
        self._seen: dict[int, None] = {}

    def add(self, payload: bytes, left_out: list[DamagedDataError]) -> list[Fact]:
        """Take in the facts of a frame; returns those that are new, and ``left_out`` gets what makes no sense."""
        # Facts have no key by which the last one could count, but a write that failed halfway and was repeated has the
        # same frames again.
        key = hash(payload)
        if key in self._seen:
            return []
        self._seen[key] = None
        if len(self._seen) > _FACTS_SEEN:
            del self._seen[next(iter(self._seen))]
        facts = decode_facts(payload, left_out)
        for fact in facts:
            self._by_step.setdefault(fact.global_step, []).append(fact)
        return facts

    def at(self, global_step: int) -> list[Fact]:
        """Facts of a step, of the run for -1."""
        return list(self._by_step.get(global_step, ()))

    def all(self) -> list[Fact]:
        """All of them in the order of steps."""
        return [fact for step in sorted(self._by_step) for fact in self._by_step[step]]

    def drop(self, global_steps: Iterable[int]) -> None:
        """Drop the facts of these steps."""
        for step in global_steps:
            self._by_step.pop(step, None)

    def forget(self, before: int) -> None:
        """Drop the facts of earlier steps; those of the run stay."""
        drop_before(self._by_step, before)


def drop_before(rows: dict[int, Any], global_step: int) -> None:
    """Drop what belongs to steps before one."""
    for step in [step for step in rows if 0 <= step < global_step]:
        del rows[step]
