"""The recorder: one thread per worker that turns finished steps into frames and writes them.

The training's thread only appends to a queue. Everything that costs (waiting for a device, averaging, merging,
encoding, writing, looking for a stop request) happens on this thread. The queue is bounded by bytes: under pressure
raw tensors are dropped first, then statistics and bitmaps, then scalars and facts, and whole steps last; every drop is
counted.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from watchglass.errors import StoreError, WatchglassError
from watchglass.record.backlog import fitting
from watchglass.record.encoding import ROW_BYTES, encode_ending, encode_singly, encode_steps, row_bytes
from watchglass.record.flight import FlightRecorder
from watchglass.record.observed import ObservedCost
from watchglass.record.opening import FrameWriter, Opening, StopControl, has_ended, open_patiently
from watchglass.record.steps import OpenStep, SteadyRow, StepRecords
from watchglass.records import Fact, TensorInfo
from watchglass.store import RawTensor, encode_facts

_log = logging.getLogger("watchglass")

#: Shares of the queue's bound beyond which a step loses its raw tensors, its statistics, its scalars and facts, and
#: beyond which it is lost itself.
_RAW_SHARE, _STATISTICS_SHARE, _SCALARS_SHARE, _STEP_SHARE = 0.5, 0.75, 1, 2
#: Share beyond which what waits is written at once instead of at the next interval.
_EARLY_SHARE = 0.125
#: Seconds between copies for the flight recorder, looks for a stop request, and the longest pause after a failed write.
_KEEP_S, _CONTROL_S, _BACKOFF_S = 0.05, 0.2, 5.0
#: So many rows may wait: the flight recorder has them already, but not for ever.
_MOST_ROWS = 1024


class Recorder:
    """Queues finished steps and writes them on a thread of its own.

    Args:
        writer: Makes the writer; called on the recorder's thread, at its start, so that opening files costs the
            training nothing, and again as long as the store is away.
        flush_interval_s: How often records are written; None leaves it to the writer.
        queue_bytes: Bound of what may wait, in estimated bytes; the bare ends of steps may take as much again.
        on_stop: Called on the recorder's thread with ``(stop_at_step, reason)`` once a stop is committed.

    ``put``, ``drop``, ``add_tensor``, ``add_fact`` and ``urgent`` are for the training's thread and never block.
    """

    def __init__(
        self,
        writer: Opening,
        *,
        flush_interval_s: float | None,
        queue_bytes: int,
        on_stop: Callable[[int, str], None] = lambda step, reason: None,
    ) -> None:
        self._opening = writer
        self._flush_interval_s = flush_interval_s
        # Seconds that closing may take longer for what has a limit of its own; None until the writer is open.
        self._unhurried_s: float | None = None
        self._queue_bytes = queue_bytes
        self._most_bytes = _STEP_SHARE * queue_bytes
        self._control: StopControl | None = None
        self._on_stop = on_stop
        self._steps: deque[OpenStep | SteadyRow] = deque()
        self._tensors: deque[TensorInfo] = deque()
        self._facts: deque[Fact] = deque()
        self._kept: tuple[list[OpenStep | SteadyRow], list[TensorInfo]] = ([], [])
        self._pending: list[bytes] = []
        # Each of these has one writing thread, so that no lock is needed.
        self._bytes_put = 0
        self._bytes_taken = 0
        self._whole_put = 0
        self._whole_kept = 0
        self._train_step = -1
        #: Tensor ids of the loss and the learning rate of rows; set before the first row.
        self.row_ids = (0, 0)
        self._failed = self._refused = self._faulty = self._blind = False
        self.flight = FlightRecorder()
        self._dropped = {"raw": 0, "statistics": 0, "scalars": 0, "facts": 0, "steps": 0}
        # The same, counted by the thread.
        self._lost = dict(self._dropped)
        self.bytes_written = 0
        #: What the thread has worked; the part of it that captured steps caused; and what any step costs it.
        self.cpu_ns = 0
        self.captures_cpu_ns = self.step_cpu_ns = 0.0
        self._quiet_cpu_ns = self._quiet_steps = 0
        self._has_encoded = self._has_ended = False
        #: Most bytes that waited at once, and what captured steps took longer than their neighbours.
        self.peak_bytes = 0
        self.observed = ObservedCost()
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
        self.flight.name_tensor(info)
        self._tensors.append(info)

    @property
    def dropped(self) -> dict[str, int]:
        """How much was dropped so far, by what it was."""
        return {kind: number + self._lost[kind] for kind, number in self._dropped.items()}

    def drop(self) -> None:
        """Count a step that whoever would put it has no room for."""
        self._dropped["steps"] += 1

    def add_fact(self, fact: Fact) -> None:
        """Write a fact of a step that has ended already."""
        self._facts.append(fact)

    def put(self, step: OpenStep) -> None:
        """Queue a finished step, without what the queue has no room for."""
        self._train_step = max(self._train_step, step.train_step)
        waiting, records = self._waiting(), step.records
        if self._failed or waiting > self._most_bytes:
            self._dropped["steps"] += 1
            self.flight.finished(step)
            return
        if waiting > _RAW_SHARE * self._queue_bytes:
            self._shorten(records, waiting / self._queue_bytes)
        step.queued_bytes = row_bytes(records)
        self._bytes_put += step.queued_bytes
        self.peak_bytes = max(self.peak_bytes, self._waiting())
        if records.raw and self._waiting() > _EARLY_SHARE * self._queue_bytes:
            # Tensors fill the queue many times in a flush interval.
            self._wake.set()
        self._steps.append(step)
        self._whole_put += 1
        self.flight.finished(step)

    def put_row(self, row: tuple[int, int, int, int, Any, float, float]) -> None:
        """Queue the fields of a :class:`SteadyRow`."""
        self._train_step = row[1]
        self.flight.row(*row)
        if self._failed or self._bytes_put - self._bytes_taken > self._most_bytes:
            self._dropped["steps"] += 1
            return
        self._bytes_put += ROW_BYTES
        self._steps.append(row)  # type: ignore[arg-type]

    def _shorten(self, records: StepRecords, share: float) -> None:
        """Drop what a queue that is full to this share has no room for; the step's end stays, which makes it whole."""
        dropped = self._dropped
        dropped["raw"] += len(records.raw)
        records.raw = []
        if share > _STATISTICS_SHARE:
            rows = sum(len(captured.ids) for captured in records.statistics)
            dropped["statistics"] += rows + len(records.units) + len(records.reductions)
            records.statistics, records.units, records.reductions = [], [], []
        if share > _SCALARS_SHARE:
            dropped["scalars"] += len(records.scalars)
            dropped["facts"] += len(records.facts)
            records.scalars, records.facts = [], []

    def urgent(self) -> None:
        """Write what is queued now instead of at the next interval."""
        self._wake.set()

    def close(self, status: str, counters: dict[str, Any], timeout_s: float = 30.0) -> bool:
        """Write everything that is queued and the worker's last record; returns whether that was done in time.

        Args:
            status: ``finished``, ``failed`` or ``stopped``.
            counters: What the capture cost, for the last record.
            timeout_s: Seconds to wait for the thread, beside what a store that is away or slow may take.
        """
        if self._thread is None:
            return True
        self._closing = (status, counters)
        self._wake.set()
        return has_ended(self._thread, lambda: timeout_s + self._more_s(), lambda: self._unhurried_s is not None)

    def _more_s(self) -> float:
        return self._opening.patience_s if self._unhurried_s is None else self._unhurried_s

    def _waiting(self) -> int:
        return self._bytes_put - self._bytes_taken

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:  # the training must not notice, whatever broke
            self._lost["steps"] += len(self._steps) + len(self._kept[0])
            _log.warning("watchglass: nothing more is recorded: %s: %s", type(error).__name__, error)
            self._failed = True
            self._steps.clear()
            self.flight.close(discard=False)

    def _write_until_closed(self) -> None:
        opened = open_patiently(self._opening, self._wake, lambda: self._closing is not None)
        self._unhurried_s = opened.closing_s
        try:
            self._write_with(opened)
        except Exception:
            self._stop_looking()
            with suppress(Exception):
                opened.close()
            raise

    def _write_with(self, writer: FrameWriter) -> None:
        if writer.rings is not None:
            self.flight.open(writer.rings)
        last_flush = last_look = time.monotonic()
        interval_s = writer.flush_s if self._flush_interval_s is None else self._flush_interval_s
        urgent_s = min(writer.urgent_s, interval_s)
        backoff_s, urgent = 0.0, False
        given_up_s: float | None = None
        while True:
            # Every time this thread wakes it takes the training's time: while only rows come, which are kept already,
            # it sleeps longer.
            pause_s = _KEEP_S if self._keep() else _CONTROL_S
            closing = self._closing
            urgent |= self._wake.wait(pause_s if closing is None else backoff_s * (given_up_s is not None))
            self._wake.clear()
            now = time.monotonic()
            if closing is not None and given_up_s is None:
                given_up_s = now + writer.patience_s
            if closing or now - last_look >= _CONTROL_S:
                last_look = now
                self._look_for_stop()
            # Where writing is rare, what waits must not fill the queue until then.
            full = self._waiting() > _EARLY_SHARE * self._queue_bytes
            wait_s = backoff_s or (0.0 if full else urgent_s if urgent else interval_s)
            if closing is None and now - last_flush < wait_s:
                continue
            last_flush, urgent = now, False
            done = self._flush(writer, closing)
            backoff_s = 0.0 if done else min(_BACKOFF_S, max(0.1, 2 * backoff_s))
            if given_up_s is not None and (done or now >= given_up_s):
                self._stop_looking()
                self.flight.close(discard=writer.close() and done)
                return

    def _keep(self) -> bool:
        """Copy what waits to where it survives this process; returns whether there were whole steps."""
        if self._whole_put == self._whole_kept and len(self._steps) < _MOST_ROWS:
            return False
        started = time.thread_time_ns()
        put = self._whole_put
        steps, tensors = self._take()
        self.flight.keep(steps, tensors)
        self._whole_kept = put
        self._kept[0].extend(steps)
        self._kept[1].extend(tensors)
        self._worked(started, steps)
        return True

    def _take(self) -> tuple[list[OpenStep | SteadyRow], list[TensorInfo]]:
        # Steps first: a tensor is announced before the step that has it.
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        return steps, [self._tensors.popleft() for _ in range(len(self._tensors))]

    def _look_for_stop(self) -> None:
        if self._control is None:
            return
        try:
            stop = self._control.poll(self._train_step)
        except Exception as error:
            # A store may come back, and whoever asks for a stop again is heard then.
            if not self._blind:
                self._blind = True
                _log.warning("watchglass: no stop request can be seen at present: %s", error)
            return
        self._blind = False
        if stop is not None:
            self._stop_looking()
            self._on_stop(*stop)

    def _stop_looking(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _flush(self, writer: FrameWriter, closing: tuple[str, dict[str, Any]] | None) -> bool:
        started = time.thread_time_ns()
        last_steps, last_tensors = self._take()
        steps, tensors = [*self._kept[0], *last_steps], [*self._kept[1], *last_tensors]
        self._kept = ([], [])
        self._bytes_taken += sum(step.queued_bytes if isinstance(step, OpenStep) else ROW_BYTES for step in steps)
        self.observed.add(steps)
        write_tensors = functools.partial(self._write_tensors, writer)
        self._pending += self._encoded(steps, tensors, write_tensors)
        if self._facts:
            self._pending.append(encode_facts([self._facts.popleft() for _ in range(len(self._facts))]))
        try:
            self._write(writer)
            if closing is not None and not self._has_ended:
                # Told last, so that it holds what all this took.
                self._worked(started, steps)
                started, steps, self._has_ended = time.thread_time_ns(), [], True
                self._pending.append(encode_ending(closing[0], {**closing[1], **self.report()}))
                self._write(writer)
            return True
        except WatchglassError as error:
            self.flight.keep(last_steps, last_tensors)
            self._keep_what_fits(error)
            return False
        finally:
            self._worked(started, steps)
            self._has_encoded |= self.bytes_written > 0

    def _encoded(
        self,
        steps: Sequence[OpenStep | SteadyRow],
        tensors: Sequence[TensorInfo],
        write_tensors: Callable[[list[tuple[int, RawTensor]]], list[dict[str, Any]]],
    ) -> list[bytes]:
        """Frames of all this; a step that cannot be encoded is lost alone, counted and told, and recording goes on."""
        try:
            return encode_steps(steps, tensors, write_tensors, steady_ids=self.row_ids)
        except Exception as error:
            frames, lost = encode_singly(steps, tensors, write_tensors, steady_ids=self.row_ids)
            self._lost["steps"] += lost
            if not self._faulty:
                self._faulty = True
                _log.warning(
                    "watchglass: %d of %d steps cannot be recorded and are left out, and so will others like them, "
                    "which only counters tell: %s: %s", lost, len(steps), type(error).__name__, error,
                )  # fmt: skip
            return frames

    def _worked(self, started_ns: int, steps: Sequence[OpenStep | SteadyRow]) -> None:
        """Account for what was done for these steps since ``started_ns``, on the clock of this thread."""
        spent_ns = time.thread_time_ns() - started_ns
        self.cpu_ns += spent_ns
        if any(isinstance(step, OpenStep) and step.due for step in steps):
            # The first time imports Arrow, which is no capture's fault.
            more_ns = max(0.0, spent_ns - len(steps) * self.step_cpu_ns)
            self.captures_cpu_ns += more_ns if self._has_encoded else 0.0
        elif steps:
            self._quiet_cpu_ns += spent_ns
            self._quiet_steps += len(steps)
            self.step_cpu_ns = self._quiet_cpu_ns / self._quiet_steps

    def _write(self, writer: FrameWriter) -> None:
        if self._pending:
            writer.write(self._pending)
            self.bytes_written += sum(map(len, self._pending))
            self._pending = []
        if self._refused:
            self._refused = False
            _log.info("watchglass: records are being written again")

    def _write_tensors(self, writer: FrameWriter, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        try:
            rows = writer.write_tensors(tensors)
        except StoreError:
            self._lost["raw"] += len(tensors)  # the encoder says so in a fact, and goes on
            raise
        self.bytes_written += sum(int(tensor.array.nbytes) for _, tensor in tensors)
        return rows

    def report(self) -> dict[str, Any]:
        """What recording has cost, written and dropped so far; on any thread."""
        return {
            "recorder_cpu_ns": self.cpu_ns,
            "observed_extra_ns": self.observed.extra_ns(),
            "bytes_written": self.bytes_written,
            "dropped": self.dropped,
        }

    def _keep_what_fits(self, error: WatchglassError) -> None:
        if not self._refused:
            self._refused = True
            _log.warning("watchglass: %s; %d bytes wait to be written again", error, sum(map(len, self._pending)))
        self._pending, lost = fitting(self._pending, self._queue_bytes)
        for kind, number in lost.items():
            self._lost[kind] += number
