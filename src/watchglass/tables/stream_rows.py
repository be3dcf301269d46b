"""Rows of a stream in a stretch of time, as steps and windows show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import ROW_KINDS
from watchglass.store import dtype_of
from watchglass.tables.samples import MetricSeries, series_of


@dataclass(frozen=True, kw_only=True)
class StreamRows:
    """The rows that a stream wrote in a stretch of time; abstract, see :class:`~watchglass.tables.Window`."""

    stream: str  #: Name of the stream.
    #: Number of the clock of the stream: another machine, or a restarted one, has another clock. Times of different
    #: clocks cannot be compared.
    clock: int
    start_ns: int  #: Its start by the monotonic clock of the writer, a multiple of the length.
    end_ns: int  #: Its end, exclusive.
    lost: bool = False  #: Whether it is shorter than its length, because the stream has ended.
    #: The rows by kind; kinds without rows are left out.
    tables: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def rows(self, kind: str) -> NDArray[Any]:
        """The rows of a kind by time, a structured array with the fields that the kind declares; may be empty."""
        if kind in self.tables:
            return self.tables[kind]
        return np.empty(0, next(dtype_of(each) for each in ROW_KINDS.values() if each.name == kind))

    def samples(self, metric: str) -> MetricSeries:
        """The samples of a metric in this stretch of time; a series without times where there are none."""
        return series_of(self.rows("samples"), metric)
