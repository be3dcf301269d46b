"""Reads sources of system metrics at an interval and writes them as rows of a stream."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from watchglass.config import Clock
from watchglass.errors import StoreError
from watchglass.profile.metrics import Metric, MetricReading, MetricSource
from watchglass.records import NOTES, SAMPLES, RowKind
from watchglass.store import StreamWriter

_NAN = float("nan")
_SECOND = 1_000_000_000
#: A wall clock that moves by more than this against the monotonic one was set.
_CLOCK_STEP_NS = _SECOND
#: Pauses of a source that failed: the first, the longest.
_RETRY_S = (1.0, 60.0)
#: Most flush intervals of the store for which a batch waits, and the share of the time since the start.
_LONGEST_BATCH, _BATCH_SHARE = 20, 0.05
#: Bits of a 32-bit number that are dropped unless its metric is exact.
_DROPPED_BITS = 11


@dataclass
class _SourceState:
    """A source, and when it is read."""

    source: MetricSource  #: The source.
    due_ns: int = 0  #: When it is read next, by the monotonic clock.
    interval_ns: int = 0  #: Time between two readings.
    cost_ns: float = 0.0  #: Processor time of a reading, a moving mean.
    readings: Sequence[MetricReading] = ()  #: Its last readings.
    fresh: bool = False  #: Whether they belong to the present sample.
    failures: int = 0  #: How often it has failed since it last succeeded.
    slower: bool = False  #: Whether a note has reported that it is read at a longer interval.


@dataclass
class _Batch:
    """Rows that are not written yet."""

    rows: dict[RowKind, list[tuple[object, ...]]] = field(default_factory=lambda: {SAMPLES: [], NOTES: []})
    begun_ns: int = 0


class Sampler:
    """Samples sources and writes the rows in batches. For one thread; holds the stream until :meth:`close`.

    The stream notes a source that fails. The sampler tries it again after a pause; the other sources continue.

    Args:
        sources: The sources.
        writer: The stream; closed by this object.
        interval_s: Seconds between samples.
        flush_s: Seconds between the first batches; later ones are longer.
        clock: The time.
        cost_ns: Processor time of this thread, in ns.
    """

    def __init__(
        self,
        sources: Sequence[MetricSource],
        writer: StreamWriter,
        interval_s: float,
        *,
        flush_s: float = 0.5,
        clock: Clock = time,
        cost_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._writer, self._clock, self._cost_ns = writer, clock, cost_ns
        self._interval_ns, self._flush_ns = int(interval_s * _SECOND), int(flush_s * _SECOND)
        self._states = [_SourceState(source, interval_ns=self._interval_ns) for source in sources]
        self._samples = True
        self._begun_ns = self._due_ns = clock.monotonic_ns()
        self._offset_ns = clock.time_ns() - self._begun_ns
        self._batch = _Batch(begun_ns=self._begun_ns)
        self._layout: tuple[tuple[Metric, ...], str, NDArray[np.bool_], NDArray[np.intp]] | None = None

    @property
    def wait_s(self) -> float:
        """Seconds until the next sample is due; infinite while it pauses."""
        return max(0.0, (self._due_ns - self._clock.monotonic_ns()) / _SECOND) if self._samples else math.inf

    def change(self, interval_s: float | None, samples: bool | None) -> None:
        """Sample at another interval, pause or go on; None changes nothing. The next sample is due at once.

        Args:
            interval_s: Seconds between samples.
            samples: Whether to sample.
        """
        if interval_s is not None:
            self._interval_ns = int(interval_s * _SECOND)
            self.note("sampler", "interval", f"from now on samples come every {interval_s:g} s")
        if samples is not None and samples is not self._samples:
            self._samples = samples
            self.note("sampler", "resumed" if samples else "paused", "by request")
        self._due_ns = self._clock.monotonic_ns()
        for state in self._states:
            state.interval_ns, state.due_ns = self._interval_ns, self._due_ns
        if not self._samples:
            self.flush()

    def note(self, source: str, event: str, message: str) -> None:
        """State something in the stream, at the present time."""
        self._batch.rows[NOTES].append((self._clock.monotonic_ns(), source, event, message))

    def sample(self) -> None:
        """Read all sources that are due, and write the batch if it is due. Raises nothing but errors of programming."""
        now_ns = self._clock.monotonic_ns()
        # A late sample (a suspended machine, a busy one) is not caught up on.
        self._due_ns += max(1, (now_ns - self._due_ns) // self._interval_ns + 1) * self._interval_ns
        self._look_at_clock(now_ns)
        for state in self._states:
            state.fresh = now_ns >= state.due_ns
            if state.fresh:
                self._read(state, now_ns)
        self._add_row(now_ns)
        age_ns = now_ns - self._begun_ns
        longest_ns = min(_LONGEST_BATCH * self._flush_ns, max(self._flush_ns, int(_BATCH_SHARE * age_ns)))
        if now_ns - self._batch.begun_ns >= longest_ns:
            self.flush()

    def flush(self) -> None:
        """Write the batch. While the store refuses, the writer keeps the last ones in memory."""
        batch, self._batch = self._batch, _Batch(begun_ns=self._clock.monotonic_ns())
        if any(batch.rows.values()):
            try:
                self._writer.write(batch.rows)
            except StoreError:
                pass  # the next batch, or the end, writes it; the stream records what was lost

    def close(self) -> None:
        """Write the rest, and release stream and sources."""
        self.flush()
        self._writer.close()
        for state in self._states:
            state.source.close()

    def _read(self, state: _SourceState, now_ns: int) -> None:
        source, begun_ns = state.source, self._cost_ns()
        try:
            state.readings = source.read(now_ns)
        except Exception as error:  # vanished files, drivers that fail: the other sources go on
            state.fresh = False
            pause_s = min(_RETRY_S[0] * 2**state.failures, _RETRY_S[1])
            state.due_ns = now_ns + max(state.interval_ns, int(pause_s * _SECOND))
            if not state.failures:
                message = " ".join(str(error).split())  # those of AMD SMI have several lines
                self.note(source.name, "failed", f"{type(error).__name__}: {message}"[:500])
            state.failures += 1
            return
        if state.failures:
            state.failures = 0
            self.note(source.name, "returned", "it is read again")
        cost_ns = self._cost_ns() - begun_ns
        # The first reading pays for what is read once.
        state.cost_ns = cost_ns if not state.cost_ns else 0.8 * state.cost_ns + 0.2 * cost_ns
        if source.core_share is not None:
            state.interval_ns = max(self._interval_ns, int(state.cost_ns / source.core_share))
            if state.interval_ns > 2 * self._interval_ns and not state.slower:
                state.slower = True
                self.note(
                    source.name, "slower",
                    f"one reading takes {state.cost_ns / 1e6:.1f} ms of processor time, so it is read every "
                    f"{state.interval_ns / _SECOND:.1f} s",
                )  # fmt: skip
        # Half an interval early: a due time just after a sample would wait for the next one.
        state.due_ns = now_ns + state.interval_ns - self._interval_ns // 2

    def _add_row(self, now_ns: int) -> None:
        # A metric without any remaining instance has no values.
        shown = [(state, reading) for state in self._states for reading in state.readings if len(reading.values)]
        if not any(state.fresh and state.readings for state in self._states):
            return
        layout, exact, order = self._layout_of(tuple(reading.metric for _, reading in shown))
        values = np.array(
            [value if state.fresh else _NAN for state, reading in shown for value in reading.values], np.float32
        )
        self._batch.rows[SAMPLES].append((now_ns, layout, _rounded(values[order], exact)))

    def _layout_of(self, metrics: tuple[Metric, ...]) -> tuple[str, NDArray[np.bool_], NDArray[np.intp]]:
        """The text of a layout, which of its values keep all bits, and where each is; computed where metrics change.

        A metric of several sources (GPUs of two vendors) has the instances of all of them. Without instances it is that
        of the last source.
        """
        if self._layout is None or self._layout[0] != metrics:
            joined: dict[str, tuple[Metric, list[str], list[int]]] = {}
            place = 0
            for metric in metrics:
                known = joined.get(metric.name)
                if known is None or not (known[1] and metric.instances):
                    known = joined[metric.name] = metric, [], []
                _, instances, places = known
                instances += metric.instances
                places += range(place, place := place + max(1, len(metric.instances)))
            names = [[m.name, m.unit, whose] if whose else [m.name, m.unit] for m, whose, _ in joined.values()]
            exact = [m.exact for m, _, places in joined.values() for _ in places]
            order = [each for _, _, places in joined.values() for each in places]
            text = json.dumps(names, separators=(",", ":"))
            self._layout = metrics, text, np.array(exact, bool), np.array(order, np.intp)
        return self._layout[1:]

    def _look_at_clock(self, now_ns: int) -> None:
        offset_ns = self._clock.time_ns() - now_ns
        moved_ns, self._offset_ns = offset_ns - self._offset_ns, offset_ns
        if abs(moved_ns) > _CLOCK_STEP_NS:
            self.note("sampler", "clock", f"the wall clock was set by {moved_ns / _SECOND:+.1f} s")


def _rounded(values: NDArray[np.float32], exact: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The numbers, those that are not exact rounded to fewer bits; NaN and infinity stay."""
    bits = values.view(np.uint32)
    short = (bits + np.uint32(1 << (_DROPPED_BITS - 1))) & np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF)
    return np.where(exact | ~np.isfinite(values), values, short.view(np.float32))
