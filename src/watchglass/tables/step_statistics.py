"""Statistics of many tensors of one step as columns, so that a rule judges thousands of tensors in one NumPy line."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from watchglass.config import EXACT_REDUCTIONS
from watchglass.errors import InvalidValueError
from watchglass.records import (
    DERIVED_FIELDS,
    REDUCTIONS as REDUCTION_ROWS,
    STATISTIC_FIELDS,
    Reduction,
    RowKind,
    TensorInfo,
    count,
)
from watchglass.stats import Histograms, derived, quantiles, stored_fields
from watchglass.tables.catalog import Catalog
from watchglass.tables.histograms import LazyHistograms
from watchglass.tables.selection import Selection
from watchglass.tables.tensor_group import TensorGroup

Column = npt.NDArray[np.float64]
_Found = TypeVar("_Found")
#: Reductions that are recorded only where a collection requests them, with a function of the recorded number.
EXACT: dict[str, tuple[Reduction, Callable[[Column], Column]]] = {
    name: (which, np.abs if name == "abs_prod" else np.asarray) for name, which in EXACT_REDUCTIONS.items()
}
#: All reductions by name: stored, derived and exact ones.
REDUCTIONS = (*STATISTIC_FIELDS, *DERIVED_FIELDS, *EXACT)


def check_reduction(name: str) -> None:
    """Raise :class:`InvalidValueError` unless there is such a reduction."""
    if name not in REDUCTIONS:
        raise InvalidValueError(f"a reduction must be one of {', '.join(REDUCTIONS)} but got {name!r}")


def exact_of(rows: Mapping[RowKind, Sequence[Any]]) -> dict[tuple[int, Reduction], float]:
    """The exact reductions among the rows of a step, by tensor id and reduction."""
    return {(row.tensor.tensor_id, row.reduction): row.value for row in rows.get(REDUCTION_ROWS, ())}


class Readable:
    """The statistics that the views of a run hold, and those that the present rule may read. For one thread.

    A rule sees the same data with any other rules: statistics that it has not declared are refused, also where another
    rule needs them.

    Attributes:
        fields: The stored columns that are read of each row; None where no rows are read.
        histograms: Whether histograms are read before a rule is called.
        rule: Name of the rule that is called.
        declared: What it may read: ``"ids"`` for any row at all, names of columns, ``"histogram"``; None for all.
    """

    def __init__(self, fields: Sequence[str] | None = STATISTIC_FIELDS) -> None:
        self.fields, self.histograms = fields, False
        self.rule = ""
        self.declared: frozenset[str] | None = None

    def add(self, declared: frozenset[str]) -> None:
        """Read what one more rule has declared."""
        if "ids" in declared:
            self.fields = stored_fields((*(self.fields or ()), *declared))
            self.histograms = self.histograms or "histogram" in declared

    def check(self, name: str) -> None:
        """Raise :class:`InvalidValueError` unless this may be read."""
        if self.declared is None or name in self.declared:
            return
        if "ids" not in self.declared:
            raise InvalidValueError(
                f"{self.rule} reads statistics of tensors but its needs declare none; add what it reads to its needs: "
                "Needs(statistics=(...))"
            )
        raise InvalidValueError(
            f"{self.rule} reads the statistic {name!r} but does not declare it; add it to its needs: "
            f"Needs(statistics=({name!r}, ...))"
        )


#: For views without a rule.
_EVERYTHING = Readable()


class _Named:
    """A column by its own name, as an attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Statistics, owner: type) -> Column:
        instance._readable.check(self._name)
        return instance._column(self._name)


class Statistics:
    """Columns over tensors: one row per tensor, one float64 array per statistic.

    Stored: ``count, nan, posinf, neginf, zero, min, max, sum, abs_sum, m2, l2`` (see STATISTIC_FIELDS). Derived:
    ``nonfinite, finite`` (counts), ``mean, abs_mean, variance, std, rms`` over the finite values and ``zero_ratio``
    (0 to 1); NaN where a tensor has no finite value. ``nonzero_abs_mean`` is the mean absolute value over the values
    that are not exactly zero, NaN where there is none: what a sparse gradient (an embedding, inputs with many zeros)
    carries where it carries anything. Others come by name, see :meth:`reduction`.

    A column is computed once for all tensors of a step, even if a rule reads only some, and is read-only. So are
    columns of the catalog, which many steps share. A rule that declares the statistics it needs can read no others.

    Attributes:
        ids: Tensor ids, uint32[n].
        exact: Exact reductions by tensor id and reduction, of all tensors of the step.
    """

    count, nan, posinf, neginf, zero = _Named(), _Named(), _Named(), _Named(), _Named()
    min, max, sum, abs_sum, m2, l2 = _Named(), _Named(), _Named(), _Named(), _Named(), _Named()
    nonfinite, finite = _Named(), _Named()
    mean, abs_mean, variance, std, rms, zero_ratio = _Named(), _Named(), _Named(), _Named(), _Named(), _Named()
    nonzero_abs_mean = _Named()

    def __init__(
        self,
        catalog: Catalog,
        ids: npt.NDArray[np.uint32],
        values: npt.NDArray[np.float64],
        calls: npt.NDArray[np.uint32] | None = None,
        sampled: npt.NDArray[np.bool_] | None = None,
        histograms: LazyHistograms | None = None,
        exact: Mapping[tuple[int, Reduction], float] | None = None,
        readable: Readable = _EVERYTHING,
    ) -> None:
        self._catalog, self._readable = catalog, readable
        self.ids = ids
        self._values: npt.NDArray[np.float64] | None = values
        self._calls, self._sampled = calls, sampled
        self._histograms = histograms
        self.exact: Mapping[tuple[int, Reduction], float] = exact if exact is not None else {}
        self._columns: dict[str, Column] = {}
        self._group: TensorGroup | None = None
        # Of a part: the rows it was taken from, and which of them it has.
        self._whole: Statistics | None = None
        self._index: npt.NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Statistics({count(len(self), 'tensor')})"

    @property
    def values(self) -> npt.NDArray[np.float64]:
        """The matrix, float64[n, 11], columns in the order of STATISTIC_FIELDS."""
        for name in STATISTIC_FIELDS:
            self._readable.check(name)
        if self._values is None:
            assert self._whole is not None
            self._values = self._whole.values[self._index]
        return self._values

    @property
    def calls(self) -> npt.NDArray[np.uint32]:
        """How often each tensor was seen in the step (calls of a shared module, micro-batches), uint32[n]."""
        if self._calls is None:
            whole = self._whole
            self._calls = np.ones(len(self), np.uint32) if whole is None else whole.calls[self._index]
        return self._calls

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Which rows were computed from a sample of the tensor, bool[n]."""
        if self._sampled is None:
            whole = self._whole
            self._sampled = np.zeros(len(self), np.bool_) if whole is None else whole.sampled[self._index]
        return self._sampled

    @property
    def group(self) -> TensorGroup:
        """The tensors of the rows, the same object for the same tensors."""
        if self._group is None:
            self._group = self._catalog.group(self.ids)
        return self._group

    @property
    def tensors(self) -> list[TensorInfo]:
        """The catalog row of each row."""
        return list(self.group.infos)

    @property
    def names(self) -> list[str]:
        """The name of each row."""
        return list(self.group.names)

    @property
    def histograms(self) -> Histograms:
        """The histogram of each row; an empty one (``seen`` is 0) where none was captured."""
        self._readable.check("histogram")
        if self._histograms is None and self._whole is not None and self._whole._histograms is not None:
            assert self._index is not None
            self._histograms = self._whole._histograms.take(self._index)
        return self._histograms.get() if self._histograms is not None else Histograms.none(len(self))

    def quantile(self, q: float) -> Column:
        """A quantile (0 to 1) of the finite elements of each tensor, float64[n]; NaN for rows without a histogram.

        Right within a factor of 1.5, between minimum and maximum; see :func:`watchglass.stats.quantiles`.

        Raises:
            InvalidValueError: The quantile is not from 0 to 1.
        """
        unread = np.full(len(self), np.nan)
        fields = self._readable.fields or ()
        rows = [self._column(name) if name in fields else unread for name in STATISTIC_FIELDS]
        return quantiles(self.histograms, np.stack(rows, axis=1), q)[:, 0]

    def reduction(self, name: str) -> Column:
        """Any of :data:`REDUCTIONS` by name, float64[n].

        NaN where a tensor has no finite value, and for ``median``, ``prod``, ``abs_median``, ``abs_min`` and
        ``abs_prod`` where no collection requested them.

        Raises:
            InvalidValueError: There is no such reduction.
        """
        check_reduction(name)
        if name not in EXACT:
            self._readable.check(name)
            return self._column(name)
        which, finish = EXACT[name]
        found = [self.exact.get((tensor_id, which), np.nan) for tensor_id in self.ids.tolist()]
        return finish(np.array(found, np.float64))

    def remembered(self, name: str, build: Callable[[], _Found]) -> _Found:
        """The result of ``build``, worked out once for these tensors, which most steps have in common.

        Args:
            name: Name of the result.
            build: May look only at the tensors.
        """
        return self.group.answers.get(("of rule", name), build)

    def where(self, mask: npt.NDArray[np.bool_]) -> Statistics:
        """The rows at which ``mask`` (bool[n]) is true, in the same order; these themselves where all are."""
        return self if mask.all() else self._take(np.flatnonzero(mask))

    def select(self, selection: Selection) -> Statistics:
        """The rows of the tensors that a selection takes, in the same order; these themselves where it takes all."""
        return self.part(selection, lambda: np.flatnonzero(self._catalog.mask(self.ids, selection)))

    def in_layer_order(self) -> Statistics:
        """The same rows by the position of their module in the model, first layer first; ties keep their order."""
        return self.part("in layer order", lambda: np.argsort(self.column_of("layer_index", np.int64), kind="stable"))

    def column_of(self, attribute: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """An attribute of the tensors' catalog rows as a column, read-only: ``"layer_index"``, ``"trainable"``.

        Args:
            attribute: Any of :class:`~watchglass.records.TensorInfo`.
            dtype: Of the column; what NumPy makes of the values if None.
        """

        def build() -> npt.NDArray[Any]:
            found = np.array([getattr(info, attribute) for info in self.group.infos], dtype)
            found.flags.writeable = False
            return found

        return self.group.answers.get(("column", attribute, dtype), build)

    def row(self, name: str) -> int | None:
        """Index of the tensor with this name, or None."""
        info = self._catalog.by_name(name)
        return self.group.row(info.tensor_id) if info is not None else None

    def _column(self, name: str) -> Column:
        found = self._columns.get(name)
        if found is None:
            if self._whole is not None:
                found = self._whole._column(name)[self._index]
            elif self._values is not None and name in (fields := self._readable.fields or ()):
                found = self._values[:, fields.index(name)]
            else:
                found = derived(name, self._column)
            # Several rules look at it.
            found.flags.writeable = False
            self._columns[name] = found
        return found

    def part(self, key: Hashable, build: Callable[[], npt.NDArray[np.intp]]) -> Statistics:
        """Some of the rows, chosen by properties of their tensors, which steps have in common.

        Args:
            key: Identifies the choice; the same key takes the same rows of the same tensors.
            build: Returns the rows once, intp[m]. May look only at the tensors.
        """
        part = self.group.part(key, build)
        if part.is_whole:
            return self
        return self._take(part.rows, part.group)

    def _take(self, index: npt.NDArray[np.intp], group: TensorGroup | None = None) -> Statistics:
        taken = Statistics.__new__(Statistics)
        whole = self if self._whole is None else self._whole
        taken._catalog, taken._readable, taken.exact = self._catalog, self._readable, self.exact
        taken.ids = group.ids if group is not None else self.ids[index]
        taken._values = taken._calls = taken._sampled = taken._histograms = None
        taken._columns, taken._group = {}, group
        taken._whole, taken._index = whole, index if self._index is None else self._index[index]
        return taken
