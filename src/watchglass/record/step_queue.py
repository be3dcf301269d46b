"""The queue between training thread and recorder: ended steps wait here, within a bound of bytes.

Under pressure raw tensors are dropped first, then statistics and bitmaps, then scalars and facts, and whole steps last;
every drop is counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from watchglass.record.flight_recorder import FlightRecorder
from watchglass.record.open_steps import CapturedRecords, OpenStep, no_rows_lost
from watchglass.record.steady_rows import STEADY_ROW_BYTES, SteadyRow
from watchglass.record.step_encoding import queued_bytes
from watchglass.records import Fact, GivenUp, TensorInfo
from watchglass.store import ABSENT

#: Shares of the queue's bound. Beyond them a step loses its raw tensors, then its statistics, its scalars and facts,
#: and at last itself. The first is a share of all bytes. The others are shares of the bytes without raw tensors,
#: because a single raw tensor may be larger than the queue, and dropping numbers would not make room for it.
_RAW_SHARE, _STATISTICS_SHARE, _SCALARS_SHARE, _STEP_SHARE = 0.5, 0.75, 1, 2
#: Share beyond which the queue is written at once instead of at the next interval.
_EARLY_SHARE = 0.125


class StepQueue:
    """Finished steps that wait for the recorder's thread, with their catalog rows and facts.

    The training thread puts, the recorder's thread takes. Each counter has one writer, so no lock is needed.

    Args:
        queue_bytes: Bound in estimated bytes; the bare ends of steps may take as much again.
        flight: Gets a row of each TRAIN step at once.
        wake: Set to make the thread write before the next interval.
    """

    def __init__(self, queue_bytes: int, flight: FlightRecorder, wake: threading.Event) -> None:
        self._queue_bytes = queue_bytes
        self._most_bytes = _STEP_SHARE * queue_bytes
        self._flight, self._wake = flight, wake
        self._steps: deque[OpenStep | SteadyRow] = deque()
        self._tensors: deque[TensorInfo] = deque()
        self._facts: deque[Fact] = deque()
        # Raw tensors by themselves, everything else together.
        self._bytes_put = self._bytes_taken = 0
        self._raw_bytes_put = self._raw_bytes_taken = 0
        self._shut = False
        self.train_step = -1  #: The last TRAIN step that was put, -1 before the first.
        self.whole_put = 0  #: How many steps with records were put.
        self.peak_bytes = 0  #: Most bytes in the queue at once, rows not counted.
        self.dropped = no_rows_lost()  #: How many rows were dropped here, by sort.

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def waiting_bytes(self) -> int:
        """Estimated bytes that were put and not released yet; on any thread."""
        return self._bytes_put - self._bytes_taken + self._raw_bytes_put - self._raw_bytes_taken

    @property
    def pressure(self) -> bool:
        """Whether the queue is so full that captures should become rarer."""
        return self.waiting_bytes > _STATISTICS_SHARE * self._queue_bytes

    @property
    def fills(self) -> bool:
        """Whether the queue is so full that it should be written before the next interval."""
        return self.waiting_bytes > _EARLY_SHARE * self._queue_bytes

    # -- for the training thread --------------------------------------------------------------------------------

    def put(self, step: OpenStep) -> None:
        """Queue a finished step, without the parts that do not fit."""
        self.train_step = max(self.train_step, step.train_step)
        numbers_bytes, records = self._bytes_put - self._bytes_taken, step.records
        records.take_saved()
        if self._shut or numbers_bytes > self._most_bytes:
            self.dropped["steps"] += 1
            self._flight.finished(step)
            return
        if self.waiting_bytes > _RAW_SHARE * self._queue_bytes:
            self._shorten(records, numbers_bytes / self._queue_bytes)
        step.queued_bytes, raw_bytes = queued_bytes(records)
        step.queued_raw_bytes = raw_bytes
        self._bytes_put += step.queued_bytes
        self._raw_bytes_put += raw_bytes
        self.peak_bytes = max(self.peak_bytes, self.waiting_bytes)
        self._steps.append(step)
        self.whole_put += 1
        if raw_bytes and self.fills:
            # Tensors fill the queue many times in a flush interval.
            self._wake.set()
        self._flight.finished(step)

    def put_row(self, row: tuple[Any, ...]) -> None:
        """Queue the fields of a :class:`SteadyRow`."""
        self.train_step = row[1]
        if type(row[4]) is float:
            self._flight.row(*row[:7])
        else:  # a loss on its way from a device
            self._flight.row(row[0], row[1], row[2], row[3], ABSENT, row[5], row[6])
        if self._shut or self._bytes_put - self._bytes_taken > self._most_bytes:
            self.dropped["steps"] += 1
            return
        self._bytes_put += STEADY_ROW_BYTES
        self._steps.append(row)  # type: ignore[arg-type]

    def add_tensor(self, info: TensorInfo) -> None:
        """Queue the catalog row of a tensor, before any row that uses its id."""
        self._flight.name_tensor(info)
        if not self._shut:
            self._tensors.append(info)

    def add_fact(self, fact: Fact) -> None:
        """Queue a fact of a step that has ended already."""
        if not self._shut:
            self._facts.append(fact)

    def _shorten(self, records: CapturedRecords, share: float) -> None:
        """Drop the parts that a queue filled to this share cannot hold; the end of the step stays and completes it."""
        numbers = GivenUp.STATISTICS if share > _STATISTICS_SHARE else GivenUp.RAW
        most = GivenUp.FACTS if share > _SCALARS_SHARE else numbers
        for sort, number in records.give_up(most).items():
            self.dropped[sort.name.lower()] += number

    # -- for the recorder's thread --------------------------------------------------------------------------------

    def take(self) -> tuple[list[OpenStep | SteadyRow], list[TensorInfo]]:
        """Steps and catalog rows of the queue; their bytes count until :meth:`let_go`."""
        # Steps first: a tensor is announced before the step that has it.
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        return steps, [self._tensors.popleft() for _ in range(len(self._tensors))]

    def take_facts(self) -> list[Fact]:
        """Facts of the queue."""
        return [self._facts.popleft() for _ in range(len(self._facts))]

    def let_go(self, steps: Sequence[OpenStep | SteadyRow]) -> None:
        """Release the bytes of steps that were taken."""
        whole = [step for step in steps if isinstance(step, OpenStep)]
        self._bytes_taken += (len(steps) - len(whole)) * STEADY_ROW_BYTES + sum(step.queued_bytes for step in whole)
        self._raw_bytes_taken += sum(step.queued_raw_bytes for step in whole)

    def shut(self) -> int:
        """Close the queue and discard its content; returns how many steps were in it."""
        self._shut = True
        lost = len(self._steps)
        self._steps.clear()
        self._tensors.clear()
        self._facts.clear()
        self._bytes_taken, self._raw_bytes_taken = self._bytes_put, self._raw_bytes_put
        return lost
