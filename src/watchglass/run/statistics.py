"""Statistics of many tensors of one step as columns, so that a rule judges thousands of tensors in one NumPy line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from watchglass.config import EXACT_REDUCTIONS
from watchglass.errors import InvalidValueError
from watchglass.records import STATISTIC_FIELDS, Reduction, TensorInfo
from watchglass.run.catalog import Catalog
from watchglass.run.histograms import LazyHistograms
from watchglass.stats import DERIVED, Histograms, column, finite_count, quantiles

Column = npt.NDArray[np.float64]
_Found = TypeVar("_Found")
#: Reductions that are recorded only where a collection asks for them, and what becomes of the recorded number.
EXACT: dict[str, tuple[Reduction, Callable[[Column], Column]]] = {
    name: (which, np.abs if name == "abs_prod" else np.asarray) for name, which in EXACT_REDUCTIONS.items()
}
#: All reductions that can be asked for by name: stored, derived and exact ones.
REDUCTIONS = (*STATISTIC_FIELDS, *DERIVED, *EXACT)


_FINITE = ("count", "nan", "posinf", "neginf")
#: Stored columns that derived ones are made from; all for those that are not listed.
_SOURCES = {
    "mean": ("sum", *_FINITE), "abs_mean": ("abs_sum", *_FINITE), "variance": ("m2", *_FINITE), "std": ("m2", *_FINITE),
    "rms": ("l2", *_FINITE), "zero_ratio": ("zero", *_FINITE), "nonfinite": _FINITE, "l1": ("abs_sum",),
    "abs_l1": ("abs_sum",), "abs_l2": ("l2",), "abs_max": ("min", "max"),
}  # fmt: skip


def stored_fields(names: Iterable[str]) -> tuple[str, ...]:
    """The stored columns from which these reductions come, in their order; none for exact reductions."""
    needed: set[str] = set()
    for name in names:
        if name not in EXACT:
            needed.update((name,) if name in STATISTIC_FIELDS else _SOURCES.get(name, STATISTIC_FIELDS))
    return tuple(name for name in STATISTIC_FIELDS if name in needed)


def check_reduction(name: str) -> None:
    """Raise :class:`InvalidValueError` unless there is such a reduction."""
    if name not in REDUCTIONS:
        raise InvalidValueError(f"a reduction must be one of {', '.join(REDUCTIONS)} but got {name!r}")


class _Named:
    """A stored or derived column, as an attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Statistics, owner: type) -> Column:
        return column(instance.values, self._name)


class _Finite:
    """How many elements are finite, as an attribute."""

    def __get__(self, instance: Statistics, owner: type) -> Column:
        return np.asarray(finite_count(instance.values))


class _NonzeroAbsMean:
    """``nonzero_abs_mean`` as an attribute."""

    def __get__(self, instance: Statistics, owner: type) -> Column:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(instance.abs_sum / (instance.finite - instance.zero))


class Statistics:
    """Columns over tensors: one row per tensor, one float64 array per statistic.

    Stored: ``count, nan, posinf, neginf, zero, min, max, sum, abs_sum, m2, l2`` (see STATISTIC_FIELDS). Derived:
    ``nonfinite, finite`` (counts), ``mean, abs_mean, variance, std, rms`` over the finite values and ``zero_ratio``
    (0 to 1); NaN where a tensor has no finite value. ``nonzero_abs_mean`` is the mean of absolutes over the values
    that are not exactly zero, NaN where there is none: what a sparse gradient (an embedding, inputs with many zeros)
    carries where it carries anything. Others come by name, see :meth:`reduction`.

    Attributes:
        ids: Tensor ids, uint32[n].
        values: The matrix, float64[n, 11], columns in the order of STATISTIC_FIELDS.
        calls: How often each tensor was seen in the step (calls of a shared module, micro-batches), uint32[n].
        sampled: Which rows were computed from a sample of the tensor, bool[n].
    """

    count, nan, posinf, neginf, zero = _Named(), _Named(), _Named(), _Named(), _Named()
    min, max, sum, abs_sum, m2, l2 = _Named(), _Named(), _Named(), _Named(), _Named(), _Named()
    nonfinite, finite = _Named(), _Finite()
    mean, abs_mean, variance, std, rms, zero_ratio = _Named(), _Named(), _Named(), _Named(), _Named(), _Named()
    nonzero_abs_mean = _NonzeroAbsMean()

    def __init__(
        self,
        catalog: Catalog,
        ids: npt.NDArray[np.uint32],
        values: npt.NDArray[np.float64],
        calls: npt.NDArray[np.uint32] | None = None,
        sampled: npt.NDArray[np.bool_] | None = None,
        histograms: LazyHistograms | None = None,
        exact: Mapping[tuple[int, Reduction], float] | None = None,
    ) -> None:
        self.ids = ids
        self.values = values
        self.calls = calls if calls is not None else np.ones(len(ids), dtype=np.uint32)
        self.sampled = sampled if sampled is not None else np.zeros(len(ids), dtype=np.bool_)
        self._histograms = histograms
        self._exact = exact if exact is not None else {}
        self._catalog = catalog
        self._tensors: list[TensorInfo] | None = None

    @classmethod
    def empty(cls, catalog: Catalog) -> Statistics:
        """No rows."""
        return cls(catalog, np.zeros(0, dtype=np.uint32), np.zeros((0, len(STATISTIC_FIELDS))))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Statistics({len(self)} tensors)"

    @property
    def exact(self) -> Mapping[tuple[int, Reduction], float]:
        """Exact reductions by tensor id and reduction, of all tensors of the step."""
        return self._exact

    @property
    def tensors(self) -> list[TensorInfo]:
        """The catalog row of each row."""
        if self._tensors is None:
            self._tensors = [self._catalog[int(i)] for i in self.ids]
        return self._tensors

    @property
    def names(self) -> list[str]:
        """The name of each row."""
        return [info.name for info in self.tensors]

    @property
    def histograms(self) -> Histograms:
        """The histogram of each row; an empty one (``seen`` is 0) where none was captured."""
        return self._histograms.get() if self._histograms is not None else Histograms.none(len(self))

    def quantile(self, q: float) -> Column:
        """A quantile (0 to 1) of the finite elements of each tensor, float64[n]; NaN for rows without a histogram.

        Right within a factor of 1.5, between minimum and maximum; see :func:`watchglass.stats.quantiles`.

        Raises:
            InvalidValueError: The quantile is not from 0 to 1.
        """
        return quantiles(self.histograms, self.values, q)[:, 0]

    def reduction(self, name: str) -> Column:
        """Any of :data:`REDUCTIONS` by name, float64[n].

        NaN where a tensor has no finite value, and for ``median``, ``prod``, ``abs_median``, ``abs_min`` and
        ``abs_prod`` where they were not asked for.

        Raises:
            InvalidValueError: There is no such reduction.
        """
        check_reduction(name)
        if name not in EXACT:
            return column(self.values, name)
        which, finish = EXACT[name]
        found = [self._exact.get((tensor_id, which), np.nan) for tensor_id in self.ids.tolist()]
        return finish(np.array(found, np.float64))

    def remembered(self, name: str, build: Callable[[], _Found]) -> _Found:
        """What ``build`` gives, worked out once for these tensors: steps come with the same ones again and again.

        Args:
            name: Says what it is.
            build: May look at the tensors and at nothing else.
        """
        found: _Found = self._catalog.remembered((name, self.ids.tobytes()), build)
        return found

    def where(self, mask: npt.NDArray[np.bool_]) -> Statistics:
        """The rows at which ``mask`` (bool[n]) is true, in the same order."""
        return self._take(np.flatnonzero(mask))

    def in_layer_order(self) -> Statistics:
        """The same rows by the position of their module in the model, first layer first; ties keep their order."""
        positions = np.array([info.layer_index for info in self.tensors], dtype=np.int64)
        return self._take(np.argsort(positions, kind="stable"))

    def row(self, name: str) -> int | None:
        """Index of the tensor with this name, or None."""
        info = self._catalog.by_name(name)
        if info is None:
            return None
        found = np.flatnonzero(self.ids == info.tensor_id)
        return int(found[0]) if len(found) else None

    def _take(self, index: npt.NDArray[np.intp]) -> Statistics:
        histograms = self._histograms.take(index) if self._histograms is not None else None
        columns = (self.ids[index], self.values[index], self.calls[index], self.sampled[index])
        taken = Statistics(self._catalog, *columns, histograms, self._exact)
        if self._tensors is not None:
            taken._tensors = [self._tensors[int(i)] for i in index]
        return taken
