"""The recorder: one thread per worker that turns finished steps into frames and writes them.

The training thread only appends to a queue, see :mod:`watchglass.record.step_queue`. Everything that costs (waiting
for a device, averaging, merging, encoding, writing, looking for changes) happens on this thread.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from watchglass.config import TIMING, Timing
from watchglass.control import Commit, Listener, Mailbox
from watchglass.errors import ForkedError, StoreError, WatchglassError
from watchglass.record.backlog import Backlog
from watchglass.record.flight_recorder import FlightRecorder
from watchglass.record.frame_writer import FrameWriter, Opening
from watchglass.record.open_steps import CapturedRecords, OpenStep
from watchglass.record.recording_cost import ObservedCost, ThreadTime
from watchglass.record.steady_rows import SteadyRow
from watchglass.record.step_encoding import encode_ending
from watchglass.record.step_queue import StepQueue
from watchglass.records import Failure, Mode, TensorInfo
from watchglass.store import encode_facts

_log = logging.getLogger("watchglass")

#: Most rows that wait to be copied: the capacity of the flight recorder.
_MOST_ROWS = 1024


class WorkerEnding(NamedTuple):
    """The last record of a worker."""

    status: str  #: ``finished``, ``failed`` or ``stopped``.
    counters: dict[str, Any]  #: What the capture cost.
    failure: Failure | None  #: What ended the run; None for an orderly end or an unknown reason.
    late: CapturedRecords  #: What was recorded after the last step.


class Recorder:
    """Queues finished steps and writes them on a separate thread.

    Args:
        writer: Makes the writer. Called at the start of the recorder's thread, so that opening files costs the training
            thread nothing, and again while the store is unreachable.
        flush_interval_s: How often records are written; None for the writer's interval.
        queue_bytes: Bound of the queue in estimated bytes. The bare ends of steps may take as much again, and the raw
            tensors of one step may exceed it.
        on_commit: Called on the recorder's thread with each change that is committed.
        on_look: Called on the recorder's thread a few times a second, once the writer is open. An exception is logged,
            and it is not called again.
        timing: How long it waits.

    ``put``, ``put_row``, ``drop``, ``add_tensor``, ``add_fact`` and ``urgent`` are for the training thread and never
    block.
    """

    def __init__(
        self,
        writer: Opening,
        *,
        flush_interval_s: float | None,
        queue_bytes: int,
        on_commit: Callable[[Commit], None] = lambda commit: None,
        on_look: Callable[[], None] = lambda: None,
        timing: Timing = TIMING,
    ) -> None:
        self._opening, self._timing = writer, timing
        self._flush_interval_s = flush_interval_s
        # Seconds that closing the writer may take in addition; None until it is open.
        self._unhurried_s: float | None = None
        self._wake = threading.Event()
        self.flight = FlightRecorder()  #: Records that survive this process.
        self._queue = StepQueue(queue_bytes, self.flight, self._wake)
        #: Methods of the queue itself: the training thread calls the first two at every step.
        self.put, self.put_row = self._queue.put, self._queue.put_row
        self.add_tensor, self.add_fact = self._queue.add_tensor, self._queue.add_fact
        self._kept: tuple[list[OpenStep | SteadyRow], list[TensorInfo]] = ([], [])
        self._whole_kept = 0
        self._backlog = Backlog(queue_bytes)
        self._listener = Listener(on_commit)
        self._on_look: Callable[[], None] | None = on_look
        self.row_ids = (0, 0)  #: Tensor ids of the loss and the learning rate of rows; set before the first row.
        self.work = ThreadTime()  #: CPU time of the thread.
        self.observed = ObservedCost()  #: How much longer captured steps took than their neighbours.
        self._has_ended = False
        self._last_train = -1  # the last TRAIN step so far, by its global step
        self._closing: WorkerEnding | None = None
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether the thread has been started."""
        return self._thread is not None

    @property
    def pressure(self) -> bool:
        """Whether the queue is so full that captures should become rarer."""
        return self._queue.pressure

    @property
    def peak_bytes(self) -> int:
        """Most bytes in the queue at once."""
        return self._queue.peak_bytes

    @property
    def dropped(self) -> dict[str, int]:
        """Number of rows dropped so far, by sort."""
        return {kind: number + self._backlog.lost[kind] for kind, number in self._queue.dropped.items()}

    def start(self) -> None:
        """Start the thread; before the first training step there is none."""
        self._thread = threading.Thread(target=self._run, name="watchglass-recorder", daemon=True)
        self._thread.start()

    def listen(self, mailbox: Mailbox) -> None:
        """Look for changes in this mailbox from now on."""
        self._listener.listen(mailbox)

    def drop(self) -> None:
        """Count a step that the caller discards."""
        self._queue.dropped["steps"] += 1

    def urgent(self) -> None:
        """Write the queue now instead of at the next interval."""
        self._wake.set()

    def close(
        self, status: str, counters: dict[str, Any], failure: Failure | None = None,
        late: CapturedRecords | None = None, timeout_s: float = 30.0,
    ) -> bool:  # fmt: skip
        """Write everything that is queued and the worker's last record; returns whether that was done in time.

        Args:
            status: ``finished``, ``failed`` or ``stopped``.
            counters: What the capture cost, for the last record.
            failure: What ended the run, if known.
            late: What was recorded after the last step: it counts as records of the last TRAIN step.
            timeout_s: Seconds to wait for the thread, in addition to the time for an unreachable or slow store.
        """
        if self._thread is None:
            return True
        self._closing = WorkerEnding(status, counters, failure, late or CapturedRecords())
        self._wake.set()
        began_s, reported = time.monotonic(), False
        while self._thread.is_alive():
            is_open, waited_s = self._unhurried_s is not None, time.monotonic() - began_s
            left_s = timeout_s + (self._unhurried_s or 0.0 if is_open else self._opening.patience_s) - waited_s
            if left_s <= 0:
                return False
            if waited_s >= self._timing.silent_end_s and not reported and not is_open:
                reported = True
                _log.warning(
                    "watchglass: the training run is over and its store is still unreachable; retrying for at most "
                    "%.0f s. Ctrl-C stops retrying and discards the records", left_s,
                )  # fmt: skip
            self._thread.join(self._timing.end_look_s)
        return True

    def report(self) -> dict[str, Any]:
        """Cost of recording, bytes written and rows dropped so far; on any thread."""
        return {
            "recorder_cpu_ns": self.work.cpu_ns,
            "observed_extra_ns": self.observed.extra_ns(),
            "bytes_written": self._backlog.bytes_written,
            "dropped": self.dropped,
        }

    # -- on the recorder's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write_until_closed()
        except Exception as error:  # no fault of watchglass may reach the training thread
            self._backlog.lost["steps"] += self._queue.shut() + len(self._kept[0])
            self._kept = ([], [])
            _log.warning("watchglass: recording stopped: %s: %s", type(error).__name__, error)
            with suppress(Exception):
                self._backlog.give_up()
            self.flight.close(discard=False)

    def _write_until_closed(self) -> None:
        try:
            opened = self._open()
        except Exception:
            self._opening.abandon()
            raise
        self._unhurried_s = opened.closing_s
        try:
            self._write_with(opened)
        except Exception:
            self._listener.close()
            with suppress(Exception):
                opened.close()
            raise

    def _open(self) -> FrameWriter:
        """The writer, as soon as the store allows it; one more attempt is made once the run is over.

        Raises:
            StoreError: The last one, once the patience after the end of the run is used up.
            WatchglassError: Others at once: waiting does not cure them.
        """
        pause_s, given_up_s = 0.0, math.inf
        reported = over = False
        while True:
            if self._closing is not None and not over:
                over, pause_s, given_up_s = True, 0.0, time.monotonic() + self._opening.patience_s
            try:
                return self._opening()
            except ForkedError:
                raise
            except StoreError as error:
                now = time.monotonic()
                if over and now >= given_up_s:
                    raise
                if not reported:
                    reported = True
                    _log.warning("watchglass: %s; retrying, records are buffered in memory", error)
            first_s, longest_s = self._timing.open_pauses_s
            pause_s = min(longest_s, max(first_s, 2 * pause_s))
            until_s = min(now + pause_s, given_up_s)
            while time.monotonic() < until_s and (self._closing is not None) is over:
                self._wake.wait(until_s - time.monotonic())
                self._wake.clear()

    def _write_with(self, writer: FrameWriter) -> None:
        if writer.rings is not None:
            self.flight.open(writer.rings)
        last_flush = last_look = time.monotonic()
        interval_s = writer.flush_s if self._flush_interval_s is None else self._flush_interval_s
        urgent_s = min(writer.urgent_s, interval_s)
        backoff_s, urgent = 0.0, False
        given_up_s: float | None = None
        while True:
            # Each wake-up takes time from the training thread. Rows are in the flight recorder already, so it sleeps
            # longer while only rows arrive.
            pause_s = self._timing.flight_copy_s if self._keep() else self._timing.recorder_look_s
            closing = self._closing
            urgent |= self._wake.wait(pause_s if closing is None else backoff_s * (given_up_s is not None))
            self._wake.clear()
            now = time.monotonic()
            if closing is not None and given_up_s is None:
                given_up_s = now + writer.patience_s
            if closing or now - last_look >= self._timing.recorder_look_s:
                last_look = now
                self._look()
            # Where writes are rare, the queue must not fill up between them.
            wait_s = backoff_s or (0.0 if self._queue.fills else urgent_s if urgent else interval_s)
            if closing is None and now - last_flush < wait_s:
                continue
            last_flush, urgent = now, False
            done = self._flush(writer, closing)
            first_s, longest_s = self._timing.write_pauses_s
            backoff_s = 0.0 if done else min(longest_s, max(first_s, 2 * backoff_s))
            if given_up_s is not None and (done or now >= given_up_s):
                self._listener.close()
                self.flight.close(discard=writer.close() and done)
                return

    def _look(self) -> None:
        if self._on_look is not None:
            try:
                self._on_look()
            except Exception as error:
                self._on_look = None
                _log.warning("watchglass: %s: %s; recording continues", type(error).__name__, error)
        self._listener.look(self._queue.train_step)

    def _keep(self) -> bool:
        """Copy the queue into the flight recorder; returns whether it held whole steps."""
        if self._queue.whole_put == self._whole_kept and len(self._queue) < _MOST_ROWS:
            return False
        started = time.thread_time_ns()
        put = self._queue.whole_put
        steps, tensors = self._queue.take()
        self.flight.keep(steps, tensors)
        self._whole_kept = put
        self._kept[0].extend(steps)
        self._kept[1].extend(tensors)
        self.work.done(started, steps)
        return True

    def _flush(self, writer: FrameWriter, closing: WorkerEnding | None) -> bool:
        started = time.thread_time_ns()
        last_steps, last_tensors = self._queue.take()
        steps, tensors = [*self._kept[0], *last_steps], [*self._kept[1], *last_tensors]
        self._kept = ([], [])
        self._queue.let_go(steps)
        self.observed.add(steps)
        backlog = self._backlog
        # Before the steps: rules are shown facts of the run with the next step that ends.
        facts = self._queue.take_facts()
        if facts:
            backlog.add(encode_facts(facts))
        backlog.add_steps(steps, tensors, writer, self.row_ids, self._more(steps, closing))
        try:
            backlog.write(writer)
            if closing is not None and not self._has_ended:
                # Written last, so that it includes the cost of everything before.
                self.work.done(started, steps)
                started, steps, self._has_ended = time.thread_time_ns(), [], True
                backlog.add(encode_ending(closing.status, {**closing.counters, **self.report()}, closing.failure))
                backlog.write(writer)
            return True
        except WatchglassError as error:
            self.flight.keep(last_steps, last_tensors)
            backlog.keep_what_fits(error)
            return False
        finally:
            self.work.done(started, steps)
            if backlog.bytes_written:
                self.work.warm()

    def _more(self, steps: Sequence[OpenStep | SteadyRow], closing: WorkerEnding | None) -> list[OpenStep]:
        """What was recorded after the last step, as records of the last TRAIN step; once."""
        trained = (each for each in reversed(steps) if isinstance(each, tuple) or each.mode is Mode.TRAIN)
        self._last_train = next((_number(each) for each in trained), self._last_train)
        if closing is None or closing.late.is_empty or self._last_train < 0:
            return []
        self._closing = closing._replace(late=CapturedRecords())
        closing.late.take_saved()
        return [OpenStep(self._last_train, Mode.TRAIN, 0, 0, 0, records=closing.late)]


def _number(step: OpenStep | SteadyRow) -> int:
    return int(step[0]) if isinstance(step, tuple) else step.global_step
