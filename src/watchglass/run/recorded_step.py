"""Everything recorded at one complete step, frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import CompactedError, StepNotRecordedError, UnknownNameError
from watchglass.records import RAW, SCALARS, UNITS, Fact, Mode, Role, RowKind, StepEnd, TensorInfo, UnitKind, count
from watchglass.run.markup import page
from watchglass.run.numbering.steps import StepPlace
from watchglass.stats import Histograms
from watchglass.store import Store, as_numbers
from watchglass.tables import (
    Catalog,
    Histogram,
    LazyHistograms,
    Selection,
    Statistics,
    StatisticsRows,
    WorkerTables,
    as_array,
    exact_of,
    stored_tensor,
)


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """One complete step of one worker, frozen: nothing that is recorded or read later changes it. :meth:`Run.step`.

    Attributes:
        worker: Name of the worker.
        attempt: The attempt that recorded it.
        mode: TRAIN, EVAL or PREDICT.
        step: Number of the step among those of its mode.
        global_step: Number of the step among all of the worker, over the attempts that count.
        train_step: The TRAIN step itself, or the last one begun before this step; -1 for none.
        seconds: How long it took.
        scalars: Name -> value.
        facts: The facts of the step.
    """

    worker: str
    attempt: int
    mode: Mode
    step: int
    global_step: int
    train_step: int
    seconds: float
    scalars: Mapping[str, float]
    facts: tuple[Fact, ...]
    _store: Store
    _catalog: Catalog
    _rows: Statistics
    _found: Mapping[RowKind, Sequence[Any]]

    @classmethod
    def of(
        cls,
        store: Store,
        worker: str,
        tables: WorkerTables,
        end: StepEnd,
        place: StepPlace,
        again: Callable[[], StatisticsRows] | None,
    ) -> RecordedStep:
        """The step that ``tables`` of an attempt hold at ``place``; ``end`` numbers it as a step of the run.

        Histograms are decoded on demand. Where the run was compacted by then, ``again`` reads its statistics once
        more; without it the error stays.
        """
        catalog = tables.catalog.snapshot()
        number = place.global_step
        rows: StatisticsRows = tables.statistics.at(number)
        rows = rows.take(catalog.mask(rows.ids))
        if rows.histograms is not None:
            rows = rows._replace(histograms=LazyHistograms(partial(_histograms, rows.ids, rows.histograms, again)))
        found = tables.step_rows(number, catalog)
        return cls(
            worker, place.attempt, end.mode, end.mode_step, end.global_step, end.train_step,
            (end.end_ns - end.start_ns) / 1e9, {row.tensor.name: row.value for row in found.get(SCALARS, ())},
            tuple(tables.facts(number)), store, catalog, Statistics(catalog, *rows, exact_of(found)), found,
        )  # fmt: skip

    def __repr__(self) -> str:
        parts = [
            count(len(self.scalars), "scalar"),
            f"{count(len(self._rows), 'tensor')} captured",
            f"{len(self._found.get(RAW, ()))} whole",
        ]
        return f"RecordedStep({self.mode.name} step {self.step} of {self.worker}: {', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = list(self.scalars.items())
        title = f"{self.mode.name} step {self.step} of {self.worker}"
        note = f"global step {self.global_step}, {self.seconds:.3g} s, {count(len(self._rows), 'tensor')} captured"
        return page(title, note, ("scalar", "value"), rows)

    @cached_property
    def names(self) -> list[str]:
        """Names of everything recorded here: scalars, tensors with statistics, whole tensors; in order of ids."""
        names = {info.name for i in self._rows.ids.tolist() if (info := self._catalog.get(i)) is not None}
        for kind, rows in self._found.items():
            names.update(row.tensor.name for row in rows if kind.of_tensors)
        return [name for name in self._catalog.names if name in names]

    def statistics(
        self, role: Role | str | None = None, *, module: str | None = None, regex: str | None = None,
        names: tuple[str, ...] = (), collection: str | None = None,
    ) -> Statistics:  # fmt: skip
        """Statistics, histograms and quantiles of the tensors captured here that match, as columns; empty for none.

        Arguments as for :meth:`Run.tensor_names`, and ``names``: only these.

        Raises:
            InvalidValueError: The role is unknown, or the regular expression is invalid.
        """
        selection = Selection(role, tuple(names), module, regex, collection)
        return self._rows.where(self._catalog.mask(self._rows.ids, selection))

    def value(self, name: str, *, as_float32: bool = False) -> Any:
        """The value of a scalar, or a whole tensor as by :meth:`Tensor.value`.

        Raises:
            UnknownNameError: There is no such name.
            StepNotRecordedError: Neither was recorded here, or the whole tensor was removed since.
        """
        if name in self.scalars:
            return self.scalars[name]
        info = self._info(name)
        place = next((row for row in self._found.get(RAW, ()) if row.tensor.name == info.name), None)
        if place is None:
            raise StepNotRecordedError(f"no value of {name} was recorded at {self._here}; statistics() has its numbers")
        stored = stored_tensor(self._store, place, name, self._here)
        return as_numbers(stored) if as_float32 else as_array(stored)

    def reduction(self, tensor: str, name: str) -> float:
        """One number of a tensor, from :data:`~watchglass.tables.REDUCTIONS`, as far as it was recorded.

        Raises:
            UnknownNameError: There is no such tensor.
            StepNotRecordedError: It was not captured here.
            InvalidValueError: There is no such reduction.
        """
        row = self._row(tensor)
        return float(self._rows.reduction(name)[row])

    def histogram(self, name: str) -> Histogram:
        """How the elements of a tensor were spread.

        Raises:
            UnknownNameError: There is no such tensor.
            StepNotRecordedError: No histogram of it was captured here.
        """
        row = self._row(name)
        found = self._rows.where(np.arange(len(self._rows)) == row)
        if not found.histograms.seen[0]:
            raise StepNotRecordedError(
                f"no histogram of {name} was captured at {self._here}; to record it set save_histogram=True in a "
                "collection"
            )
        return Histogram.of(found.histograms, found.values[0])

    def units(self, kind: UnitKind = UnitKind.INACTIVE) -> dict[str, NDArray[np.bool_]]:
        """The bitmaps of a kind recorded here: tensor name -> one boolean per unit."""
        return {row.tensor.name: row.flags for row in self._found.get(UNITS, ()) if row.kind is kind}

    @property
    def _here(self) -> str:
        return f"{self.mode.name} step {self.step}"

    def _info(self, name: str) -> TensorInfo:
        info = self._catalog.by_name(name)
        if info is None:
            raise UnknownNameError(f"{self.worker} has no tensor {name!r}{suggest(name, self._catalog.names)}")
        return info

    def _row(self, name: str) -> int:
        self._info(name)
        row = self._rows.row(name)
        if row is None:
            raise StepNotRecordedError(
                f"no statistics of {name} were captured at {self._here}; it has {_some(self._rows.names)}"
            )
        return row


def _histograms(
    ids: NDArray[np.uint32], histograms: LazyHistograms, again: Callable[[], StatisticsRows] | None
) -> Histograms:
    """Histograms of the tensors ``ids``, in their order."""
    try:
        return histograms.get()
    except CompactedError:
        if again is None:
            raise
        rows = again()
        if rows.histograms is None:
            return Histograms.none(len(ids))
        order = np.argsort(rows.ids)
        return rows.histograms.get().take(order[np.searchsorted(rows.ids, ids, sorter=order)])


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "") or "none"
