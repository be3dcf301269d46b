"""The recorder: one thread per worker that turns finished steps into frames and writes them.

The training's thread only appends to a queue. Everything that costs (waiting for a device, averaging, merging,
encoding, writing, looking for a stop request) happens on this thread. The queue is bounded by bytes: under pressure
raw tensors are dropped first, then statistics and bitmaps, scalars and facts last; every drop is counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from watchglass.errors import WatchglassError
from watchglass.record.encoding import encode_steps, row_bytes
from watchglass.record.steps import OpenStep
from watchglass.records import TensorInfo

_log = logging.getLogger("watchglass")

#: Shares of the queue's bound beyond which a step loses its raw tensors and its statistics.
_RAW_SHARE, _STATISTICS_SHARE = 0.5, 0.75
#: Seconds between looks for a stop request, and the longest pause after a failed write.
_CONTROL_S, _BACKOFF_S = 0.2, 5.0


class FrameWriter(Protocol):
    """Where frames go: the store's segment writer, or a list in tests."""

    def write(self, frames: list[bytes]) -> None:
        """Write frames in order, all or none; raises StoreError when the store refuses."""

    def write_tensors(self, tensors: list[tuple[int, int, Any]]) -> list[dict[str, Any]]:
        """Write raw tensors ``(global_step, tensor_id, array)``; returns their index rows."""

    def close(self) -> None:
        """Nothing more will be written."""


class StopControl(Protocol):
    """Looks for a request to stop; called on the recorder's thread."""

    def poll(self, train_step: int) -> tuple[int, str] | None:
        """``(stop_at_step, reason)`` once a stop is committed; ``train_step`` is the last one seen."""


class Recorder:
    """Queues finished steps and writes them on a thread of its own.

    Args:
        writer: Makes the writer; called on the recorder's thread, at its start, so that opening files costs the
            training nothing.
        flush_interval_s: How often records are written.
        queue_bytes: Bound of what may wait, in estimated bytes.
        on_stop: Called on the recorder's thread with ``(stop_at_step, reason)`` once a stop is committed.

    ``put``, ``add_tensor`` and ``urgent`` are for the training's thread and never block.
    """

    def __init__(
        self,
        writer: Callable[[], FrameWriter],
        *,
        flush_interval_s: float,
        queue_bytes: int,
        on_stop: Callable[[int, str], None] = lambda step, reason: None,
    ) -> None:
        self._open_writer = writer
        self._flush_interval_s = flush_interval_s
        self._queue_bytes = queue_bytes
        self._control: StopControl | None = None
        self._on_stop = on_stop
        self._steps: deque[OpenStep] = deque()
        self._tensors: deque[TensorInfo] = deque()
        self._pending: list[bytes] = []
        # Each of these has one writing thread, so that no lock is needed.
        self._bytes_put = 0
        self._bytes_taken = 0
        self._train_step = -1
        self._failed = False
        self.dropped = {"raw": 0, "statistics": 0, "scalars": 0}
        self.bytes_written = 0
        self.cpu_ns = 0
        self._wake = threading.Event()
        self._closing: tuple[str, dict[str, Any]] | None = None
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether the thread has been started."""
        return self._thread is not None

    @property
    def pressure(self) -> bool:
        """Whether so much waits that statistics are being dropped: captures should become rarer."""
        return self._waiting() > _STATISTICS_SHARE * self._queue_bytes

    def start(self) -> None:
        """Start the thread; before the first training step there is none."""
        self._thread = threading.Thread(target=self._run, name="watchglass-recorder", daemon=True)
        self._thread.start()

    def watch(self, control: StopControl) -> None:
        """Look for a stop request from now on."""
        self._control = control

    def add_tensor(self, info: TensorInfo) -> None:
        """Announce what a tensor id means, before any row that uses it."""
        self._tensors.append(info)

    def put(self, step: OpenStep) -> None:
        """Queue a finished step, without what the queue has no room for; none once the thread has failed."""
        if self._failed:
            self.dropped["statistics"] += 1
            return
        waiting = self._waiting()
        records = step.records
        if records.raw and waiting > _RAW_SHARE * self._queue_bytes:
            self.dropped["raw"] += len(records.raw)
            records.raw = []
        if waiting > _STATISTICS_SHARE * self._queue_bytes:
            self.dropped["statistics"] += len(records.statistics) + len(records.units)
            records.statistics, records.units = [], []
        if waiting > self._queue_bytes:
            # The step's end must survive: without it the step would never be complete.
            self.dropped["scalars"] += len(records.scalars)
            records.scalars = []
        step.queued_bytes = row_bytes(records)
        self._bytes_put += step.queued_bytes
        self._train_step = max(self._train_step, step.train_step)
        self._steps.append(step)

    def urgent(self) -> None:
        """Write what is queued now instead of at the next interval."""
        self._wake.set()

    def close(self, status: str, counters: dict[str, Any], timeout_s: float = 30.0) -> bool:
        """Write everything that is queued and the worker's last record; returns whether that was done in time.

        Args:
            status: ``finished``, ``failed`` or ``stopped``.
            counters: What the capture cost, for the last record.
            timeout_s: Seconds to wait for the thread.
        """
        if self._thread is None:
            return True
        self._closing = (status, counters)
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _waiting(self) -> int:
        return self._bytes_put - self._bytes_taken

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:  # the training must not notice, whatever broke
            self.dropped["statistics"] += len(self._steps)
            _log.warning("watchglass: nothing more is recorded: %s: %s", type(error).__name__, error)
            self._failed = True
            self._steps.clear()

    def _write_until_closed(self) -> None:
        writer = self._open_writer()
        last_flush = time.monotonic()
        backoff_s = 0.0
        while True:
            closing = self._closing
            urgent = self._wake.wait(_CONTROL_S if closing is None else 0)
            self._wake.clear()
            self._look_for_stop()
            now = time.monotonic()
            if not (urgent or closing) and now - last_flush < max(self._flush_interval_s, backoff_s):
                continue
            last_flush = now
            done = self._flush(writer, closing)
            backoff_s = 0.0 if done else min(_BACKOFF_S, max(0.1, 2 * backoff_s))
            if closing is not None:
                writer.close()
                return

    def _look_for_stop(self) -> None:
        if self._control is None:
            return
        try:
            stop = self._control.poll(self._train_step)
        except WatchglassError as error:
            _log.warning("watchglass: no stop request can be seen any more: %s", error)
            stop, self._control = None, None
        if stop is not None:
            self._control = None
            self._on_stop(*stop)

    def _flush(self, writer: FrameWriter, closing: tuple[str, dict[str, Any]] | None) -> bool:
        started = time.thread_time_ns()
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        tensors = [self._tensors.popleft() for _ in range(len(self._tensors))]
        self._bytes_taken += sum(step.queued_bytes for step in steps)
        ending = None
        if closing is not None:
            ending = (closing[0], {**closing[1], "dropped": dict(self.dropped), "bytes_written": self.bytes_written})
        self._pending += encode_steps(steps, tensors, writer.write_tensors, ending)
        try:
            if self._pending:
                writer.write(self._pending)
                self.bytes_written += sum(map(len, self._pending))
            self._pending = []
            return True
        except WatchglassError as error:
            self._keep_what_fits(error)
            return False
        finally:
            self.cpu_ns += time.thread_time_ns() - started

    def _keep_what_fits(self, error: WatchglassError) -> None:
        size = sum(map(len, self._pending))
        _log.warning("watchglass: %s; %d bytes wait to be written again", error, size)
        while self._pending and size > self._queue_bytes:
            size -= len(self._pending.pop(0))
            self.dropped["statistics"] += 1
