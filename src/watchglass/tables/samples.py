"""Samples of metrics: rows that are read from the store when needed, and the series of a metric in rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.records import SAMPLES
from watchglass.store import Frame, Problem, Store, decode_rows, dtype_of
from watchglass.tables.payloads import Payloads
from watchglass.tables.problems import Problems

_LATEST = (1 << 63) - 1
#: Longest layout that is read, in characters: a machine with a thousand cores has some ten thousand.
_MOST_CHARACTERS = 1 << 18


@dataclass(frozen=True)
class MetricPlace:
    """Where the values of a metric are in a row."""

    unit: str  #: Unit of the values.
    instances: tuple[str, ...]  #: What each value is about, such as the numbers of cores; ``("",)`` for a single one.
    first: int  #: Index of the first value.

    @property
    def stop(self) -> int:
        """Index after the last value."""
        return self.first + len(self.instances)


@dataclass(frozen=True)
class MetricSeries:
    """The values of one metric over time."""

    name: str  #: Name of the metric.
    unit: str  #: Unit of the values.
    instances: tuple[str, ...]  #: What each column is about; ``("",)`` for a metric with one value.
    time_ns: NDArray[np.int64]  #: Monotonic clock of the machine, int64[n], ascending.
    #: float64[n, instances]; NaN where an instance has no value at a time. Times without any value are left out.
    values: NDArray[np.float64]

    @property
    def mean_of_instances(self) -> NDArray[np.float64]:
        """The mean over instances at each time, float64[n]."""
        if not len(self.values):
            return np.empty(0)
        known = np.isfinite(self.values)
        with np.errstate(invalid="ignore"):  # a time at which all values are infinite has no mean
            return np.asarray(np.where(known, self.values, 0).sum(1) / known.sum(1))


@lru_cache(maxsize=16)
def read_layout(text: str) -> Mapping[str, MetricPlace]:
    """The metrics of a layout by name, in their order; none where it is not one."""
    found: dict[str, MetricPlace] = {}
    first = 0
    try:
        metrics = json.loads(text) if len(text) <= _MOST_CHARACTERS else []
        for name, unit, *rest in metrics:
            instances = tuple(map(str, rest[0])) if rest else ("",)
            found[str(name)] = MetricPlace(str(unit), instances, first)
            first += len(instances)
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return {}
    return found if len(found) == len(metrics) else {}  # a name that stands twice would have two places


def layouts_of(rows: NDArray[Any]) -> dict[str, NDArray[np.intp]]:
    """The places of the rows with each layout; rows whose number of values is another one are left out."""
    found: dict[str, list[int]] = {}
    for place, (text, values) in enumerate(zip(rows["layout"].tolist(), rows["values"].tolist(), strict=True)):
        metrics = read_layout(text)
        if metrics and len(values) == list(metrics.values())[-1].stop:
            found.setdefault(text, []).append(place)
    return {text: np.array(places, np.intp) for text, places in found.items()}


def metrics_in(rows: NDArray[Any]) -> dict[str, MetricPlace]:
    """The metrics of rows by name; the instances of each as in the first layout that has it."""
    found: dict[str, MetricPlace] = {}
    for text in layouts_of(rows):
        found = {**read_layout(text), **found}
    return found


def as_float64(values: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The values of rows of one length, float64[rows, values]; without the warning that some NaN give."""
    with np.errstate(invalid="ignore"):
        return np.stack(values).astype(np.float64)


def series_of(rows: NDArray[Any], name: str) -> MetricSeries:
    """The series of a metric in rows of :data:`~watchglass.records.SAMPLES`; one without rows where none has it."""
    parts: list[tuple[NDArray[np.int64], tuple[str, ...], NDArray[np.float64]]] = []
    unit, instances = "", dict[str, None]()
    for text, places in layouts_of(rows).items():
        place = read_layout(text).get(name)
        if place is not None:
            unit = unit or place.unit
            instances |= dict.fromkeys(place.instances)
            columns = as_float64([each[place.first : place.stop] for each in rows["values"][places]])
            parts.append((rows["time_ns"][places].astype(np.int64), place.instances, columns))
    column = {instance: number for number, instance in enumerate(instances)}
    times = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    values = np.full((len(times), len(column)), np.nan)
    begin = 0
    for part_times, part_instances, part_values in parts:
        values[begin : begin + len(part_times), [column[each] for each in part_instances]] = part_values
        begin += len(part_times)
    order = np.argsort(times, kind="stable")
    order = order[~np.isnan(values[order]).all(1)] if len(column) else order[:0]
    return MetricSeries(name, unit, tuple(column), times[order], values[order])


class StoredSamples:
    """The samples of one stream by one clock, read from the store when needed. For one thread.

    Args:
        store: Where payloads were left; None where none are.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._payloads = Payloads(store)
        self._frames: list[tuple[int, int, Frame]] = []
        self._problems = Problems()

    @property
    def problems(self) -> list[Problem]:
        """Frames with invalid content that were read so far; they are left out."""
        return self._problems.all()

    def __len__(self) -> int:
        return len(self._frames)

    def snapshot(self) -> StoredSamples:
        """A copy of the present state, which later frames do not change."""
        found = StoredSamples.__new__(StoredSamples)
        found._payloads, found._problems, found._frames = self._payloads, self._problems, list(self._frames)
        return found

    def add(self, frame: Frame, start_ns: int, stop_ns: int) -> None:
        """Take in a frame between two watermarks, where the format requires its rows to be."""
        self._payloads.newest = frame.source or self._payloads.newest
        self._frames.append((start_ns, stop_ns, self._payloads.keep(frame)))

    def rows(self, start_ns: int = 0, stop_ns: int | None = None, *, every: int = 1) -> NDArray[Any]:
        """The rows of a half-open range of times, by time.

        Args:
            start_ns: The first time.
            stop_ns: The time after the last one; None for no end.
            every: Read only every ``every``-th frame.
        """
        end_ns = _LATEST if stop_ns is None else stop_ns
        chosen = [each for each in self._frames if each[0] < end_ns and each[1] > start_ns][::every]
        self._payloads.ahead([frame for _, _, frame in chosen])
        found = [self._decoded(frame, max(first, start_ns), min(stop, end_ns)) for first, stop, frame in chosen]
        return np.concatenate([np.empty(0, dtype_of(SAMPLES)), *found])

    def pieces(self, count: int) -> Iterator[NDArray[Any]]:
        """All rows by time, in pieces of at least this number of rows; the last may be shorter."""
        waiting: list[NDArray[Any]] = []
        for first_ns, until_ns, frame in self._frames:
            waiting.append(self._decoded(frame, first_ns, until_ns))
            if sum(map(len, waiting)) >= count:
                yield np.concatenate(waiting)
                waiting = []
        if waiting:
            yield np.concatenate(waiting)

    def _decoded(self, frame: Frame, start_ns: int, stop_ns: int) -> NDArray[Any]:
        try:
            rows = decode_rows(SAMPLES, bytes(self._payloads.get(frame)))
        except DamagedDataError as error:
            self._problems.add(frame, error)
            return np.empty(0, dtype_of(SAMPLES))
        times = rows["time_ns"]
        inside = (times >= start_ns) & (times < stop_ns)
        return rows if inside.all() else rows[inside]
