"""Samples of system metrics: the course of one metric, an overview of all, and how much of the machine a run used."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.config import suggest
from watchglass.errors import InvalidValueError, UnknownNameError
from watchglass.run.clocks import wall_times
from watchglass.run.run_records import RunRecords
from watchglass.run.table import Table, needed
from watchglass.tables import MetricSeries, StreamPart, as_float64, layouts_of, metrics_in, read_layout, series_of

if TYPE_CHECKING:
    import pandas


#: A moment: of the monotonic clock in ns, or a wall time.
Moment = int | datetime | np.datetime64
#: Batches that a summary of a run reads; of a longer run it reads evenly spaced ones.
_SUMMARY_BATCHES = 2000


@dataclass(frozen=True, eq=False)
class Samples:
    """The course of one metric.

    Attributes:
        name: Name of the metric.
        unit: Unit of the values.
        stream: The stream that has it.
        instances: What each column of ``values`` is about, such as the numbers of cores; () for a single value.
        time_ns: Monotonic clock of the machine, int64[n]. The same clock as that of steps of workers on it, as long as
            the machine was not restarted.
        time: Wall time in UTC, datetime64[ns][n].
        values: float64[n], or float64[n, instances]; NaN where an instance was not read.
    """

    name: str
    unit: str
    stream: str
    instances: tuple[str, ...]
    time_ns: NDArray[np.int64]
    time: NDArray[np.datetime64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.time_ns)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the wall time as its index and a column for each instance.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        pandas = needed("pandas")
        index = pandas.DatetimeIndex(self.time, name="time").tz_localize("UTC")
        columns = list(self.instances) or [self.name]
        frame: Any = pandas.DataFrame(self.values.reshape(len(self), -1), index=index, columns=columns)
        return frame

    def __repr__(self) -> str:
        of = f" of {len(self.instances)} instances" if self.instances else ""
        return f"Samples({self.name!r}: {len(self)} times{of}, {self.unit or 'a number'}, stream {self.stream!r})"


@dataclass(frozen=True)
class Usage:
    """How much of one machine a run used; samples that are NaN or infinite do not count.

    Attributes:
        stream: The stream of the machine.
        cpu_mean: Mean of ``cpu.utilization`` in percent; NaN if unknown.
        cpu_p95: Its 95th percentile.
        memory_bytes: Greatest ``processes.memory``; NaN if unknown.
        gpu_mean: Mean of ``gpu.utilization`` over the GPUs that the run used; NaN without one.
        gpus: Number of these GPUs.
        whole: Whether all samples were read. Otherwise figures are of evenly spaced ones.
    """

    stream: str
    cpu_mean: float
    cpu_p95: float
    memory_bytes: float
    gpu_mean: float
    gpus: int
    whole: bool


def samples_of(run: RunRecords, name: str, stream: str | None, start: Moment | None, stop: Moment | None) -> Samples:
    """See :meth:`Run.samples`."""
    times = [np.empty(0, "datetime64[ns]")]
    found: list[MetricSeries] = []
    chosen, known = "", dict[str, None]()
    for each in _streams(run, stream):
        for part in _parts(run, each):
            rows = part.samples.rows(_clock(part, start, 0), _clock(part, stop, None))
            series = series_of(rows, name)
            if series.instances:
                chosen = each
                found.append(series)
                times.append(wall_times(part.tables.headers, series.time_ns))
            else:
                known |= dict.fromkeys(metrics_in(rows))
        if chosen:
            break
    if not found:
        within = "" if start is None and stop is None else " in that time"
        raise UnknownNameError(
            f"{run.location} has no samples of {name!r}{within}{suggest(name, list(known))}; "
            "run.samples() lists the metrics"
        )
    instances = tuple(dict.fromkeys(each for series in found for each in series.instances))
    column = {instance: place for place, instance in enumerate(instances)}
    values = np.full((sum(len(series.time_ns) for series in found), len(instances)), np.nan)
    begin = 0
    for series in found:
        values[begin : begin + len(series.time_ns), [column[each] for each in series.instances]] = series.values
        begin += len(series.time_ns)
    alone = instances == ("",)
    return Samples(
        name, found[0].unit, chosen, () if alone else instances,
        np.concatenate([series.time_ns for series in found]), np.concatenate(times),
        values[:, 0] if alone else values,
    )  # fmt: skip


def overview(run: RunRecords) -> Table:
    """The metrics of a run as a table, one row per stream and metric."""
    return Table("metrics", lambda: _overview(run))


@dataclass(frozen=True)
class MetricLevel:
    """How high a metric was over a whole run; samples that are NaN or infinite do not count."""

    stream: str  #: The stream of the machine.
    metric: str  #: Name of the metric.
    instance: str  #: What of several it is about, such as the number of a core; "" for a single value.
    unit: str  #: Unit of the numbers.
    max: float  #: Greatest value.
    p99: float  #: 99th percentile.
    p95: float  #: 95th percentile.
    p50: float  #: Median.
    min: float  #: Smallest value.
    mean: float  #: Mean.
    p5: float  #: 5th percentile.


def levels_of(run: RunRecords) -> list[MetricLevel]:
    """How high each metric of each machine was; those of single processes are left out."""
    found = []
    for stream in run.streams:
        tables = [part.samples.rows() for part in _parts(run, stream)]
        merged = np.concatenate(tables) if tables else np.empty(0)
        for name in metrics_in(merged) if len(merged) else ():
            if name.startswith("process."):
                continue
            series = series_of(merged, name)
            for instance, column in zip(series.instances, series.values.T, strict=True):
                if len(known := _finite(column)):
                    high, p99, p95, p50, p5, low = np.percentile(known, (100, 99, 95, 50, 5, 0)).tolist()
                    mean = float(known.mean())
                    found.append(MetricLevel(stream, name, instance, series.unit, high, p99, p95, p50, low, mean, p5))
    return found


class SampledMoment(NamedTuple):
    """All metrics of a machine at one time."""

    wall_ns: int  #: Wall time in UTC.
    row: Any  #: The row, which is decoded when it is asked for.

    def values(self) -> dict[str, dict[str, float]]:
        """By metric and instance, without NaN and without those of single processes."""
        found = {}
        for name, place in read_layout(str(self.row["layout"])).items():
            numbers = self.row["values"][place.first : place.stop]
            known = {one: float(value) for one, value in zip(place.instances, numbers, strict=False) if value == value}
            if known and not name.startswith("process."):
                found[name] = known
        return found


def sampled_after(run: RunRecords, stream: str, wall_ns: int) -> list[SampledMoment]:
    """The samples of a machine after a wall time, in their order."""
    found = []
    for part in _parts(run, stream):
        begin = _clock(part, np.datetime64(wall_ns, "ns"), 0)
        rows = part.samples.rows(begin)
        times = wall_times(part.tables.headers, rows["time_ns"].astype(np.int64)).astype(np.int64).tolist()
        found += [SampledMoment(at, row) for at, row in zip(times, rows, strict=True) if at > wall_ns]
    return sorted(found, key=lambda each: each.wall_ns)


def usage_of(run: RunRecords) -> list[Usage]:
    """How much of each machine the run used, in all its attempts; none without samples."""
    found = []
    for stream in run.streams:
        parts = _parts(run, stream)
        every = -(-sum(len(part.samples) for part in parts) // _SUMMARY_BATCHES) or 1
        rows = np.concatenate([part.samples.rows(every=every) for part in parts]) if parts else np.empty(0)
        if not len(rows):
            continue
        cpu = _finite(series_of(rows, "cpu.utilization").mean_of_instances)
        memory = _finite(series_of(rows, "processes.memory").values)
        gpu, taken = series_of(rows, "gpu.utilization"), series_of(rows, "gpu.processes")
        used = {name for name, column in zip(taken.instances, taken.values.T, strict=True) if (column > 0).any()}
        columns = [place for place, name in enumerate(gpu.instances) if name in used or not used]
        chosen = _finite(gpu.values[:, columns])
        found.append(
            Usage(
                stream,
                float(np.mean(cpu)) if len(cpu) else np.nan,
                float(np.percentile(cpu, 95)) if len(cpu) else np.nan,
                float(np.max(memory)) if len(memory) else np.nan,
                float(np.mean(chosen)) if len(chosen) else np.nan,
                len(columns),
                every == 1,
            )
        )
    return found


def long_form(rows: NDArray[Any]) -> tuple[NDArray[np.int64], list[str], list[str], list[str], NDArray[Any]]:
    """Rows of samples with one row for each time and value, in the order of times."""
    times, places, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    names: list[tuple[str, str, str]] = []
    for text, at in layouts_of(rows).items():
        whole = as_float64(rows["values"][at].tolist())
        first = len(names)
        names += [(name, one, place.unit) for name, place in read_layout(text).items() for one in place.instances]
        times.append(np.repeat(rows["time_ns"][at].astype(np.int64), whole.shape[1]))
        places.append(np.tile(np.arange(first, len(names)), len(at)))
        values.append(whole.ravel())
    time_ns, place, value = np.concatenate(times), np.concatenate(places), np.concatenate(values)
    order = np.argsort(time_ns, kind="stable")
    order = order[~np.isnan(value[order])]
    chosen = [names[each] for each in place[order].tolist()]
    metric, instance, unit = (list(column) for column in zip(*chosen, strict=True)) if chosen else ([], [], [])
    return time_ns[order], metric, instance, unit, value[order]


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def _streams(run: RunRecords, stream: str | None) -> list[str]:
    if stream is None:
        return run.streams
    if stream not in run.streams:
        raise UnknownNameError(f"{run.location} has no stream {stream!r}; it has {', '.join(run.streams) or 'none'}")
    return [stream]


def _parts(run: RunRecords, stream: str) -> list[StreamPart]:
    return [
        part for part in run.reading.streams.parts.get(stream, []) if run.fixed_attempt in (None, part.attempt)
    ]  # fmt: skip


def _clock(part: StreamPart, moment: Moment | None, default: int | None) -> Any:
    """A moment by the monotonic clock of a part."""
    if moment is None:
        return default
    if isinstance(moment, int):
        return moment
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidValueError(f"a time must have a time zone but got {moment}; use datetime.now(timezone.utc)")
        moment = np.datetime64(moment.astimezone(timezone.utc).replace(tzinfo=None), "ns")
    if not isinstance(moment, np.datetime64):
        raise InvalidValueError(f"a time must be a datetime, a datetime64 in UTC, or ns as an int but got {moment!r}")
    begun = wall_times(part.tables.headers, np.array([part.header.get("monotonic_ns", 0)]))[0]
    wall_ns = int(moment.astype("datetime64[ns]").astype(np.int64)) - int(begun.astype(np.int64))
    return max(0, wall_ns + int(part.header.get("monotonic_ns", 0)))


def _overview(run: RunRecords) -> Any:
    import pyarrow as pa

    rows: dict[str, list[Any]] = {
        name: [] for name in ("stream", "metric", "unit", "instances", "times", "mean", "p95", "max")
    }
    for stream in run.streams:
        tables = [part.samples.rows() for part in _parts(run, stream)]
        merged = np.concatenate(tables) if tables else np.empty(0)
        for name in metrics_in(merged) if len(merged) else ():
            series = series_of(merged, name)
            known = _finite(series.values)
            numbers = (known.mean(), np.percentile(known, 95), known.max()) if len(known) else (None, None, None)
            row = (stream, name, series.unit, len(series.instances), len(series.time_ns), *numbers)
            for column, value in zip(rows.values(), row, strict=True):
                column.append(value)
    types = [pa.string()] * 3 + [pa.int64()] * 2 + [pa.float64()] * 3
    return pa.table({name: pa.array(column, kind) for (name, column), kind in zip(rows.items(), types, strict=True)})
