"""Encoded frames that the store has not taken yet, within a bound of memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence, Sized
from functools import partial
from typing import Any

from watchglass.errors import StoreError, WatchglassError
from watchglass.record.frame_writer import FrameWriter
from watchglass.record.open_steps import OpenStep, no_rows_lost
from watchglass.record.steady_rows import SteadyRow
from watchglass.record.step_encoding import encode_singly, encode_steps
from watchglass.records import STEPS, Encoding, RowKind, TensorInfo, of_steps
from watchglass.store import RawTensor, decode_rows, decode_statistics, scan

_log = logging.getLogger("watchglass")


def _rows_in(kind: RowKind, payload: bytes) -> Sized:
    """The rows of a frame."""
    if kind.encoding is Encoding.STATISTICS:
        return decode_statistics(payload, histograms=False)
    return decode_rows(kind, payload)


class Backlog:
    """Frames that the store has not taken yet, in order. For the recorder's thread.

    Args:
        most_bytes: Most bytes that stay in memory while the store refuses them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._frames: list[bytes] = []
        self._refused = self._faulty = False
        self.bytes_written = 0  #: Bytes that the writer took so far, raw tensors included.
        self.lost = no_rows_lost()  #: How many rows were lost between steps and store, by sort.

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the frames."""
        return sum(map(len, self._frames))

    def add(self, frame: bytes) -> None:
        """Add one frame."""
        self._frames.append(frame)

    def add_steps(
        self,
        steps: Sequence[OpenStep | SteadyRow],
        tensors: Sequence[TensorInfo],
        writer: FrameWriter,
        steady_ids: tuple[int, int],
        more: Sequence[OpenStep] = (),
    ) -> None:
        """Add the frames of steps, and of more records of known ones; their raw tensors are written at once.

        A step that cannot be encoded is lost alone; it is counted and logged, and recording continues.
        """
        write_tensors = partial(self._write_tensors, writer)
        try:
            self._frames += encode_steps(steps, tensors, write_tensors, steady_ids=steady_ids, more=more)
        except Exception as error:
            frames, lost = encode_singly(steps, tensors, write_tensors, steady_ids=steady_ids, more=more)
            self._frames += frames
            self.lost["steps"] += lost
            if not self._faulty:
                self._faulty = True
                _log.warning(
                    "watchglass: %d of %d steps cannot be recorded and are omitted. Similar steps will be omitted and "
                    "only counted: %s: %s", lost, len(steps), type(error).__name__, error,
                )  # fmt: skip

    def write(self, writer: FrameWriter) -> None:
        """Write everything.

        Raises:
            WatchglassError: The store refused; all of it is kept, see :meth:`keep_what_fits`.
        """
        if self._frames:
            writer.write(self._frames)
            self.bytes_written += self.waiting_bytes
            self._frames = []
        if self._refused:
            self._refused = False
            _log.info("watchglass: records are being written again")

    def keep_what_fits(self, error: WatchglassError) -> None:
        """The store refused: discard and count what exceeds the bound; log it once."""
        if not self._refused:
            self._refused = True
            _log.warning("watchglass: %s; %d bytes are buffered in memory, retrying", error, self.waiting_bytes)
        self._lose_beyond(self._most_bytes)

    def give_up(self) -> None:
        """Nothing more will be written: discard all frames and count them as lost."""
        self._lose_beyond(0)
        self._frames = []

    def _lose_beyond(self, most_bytes: int) -> None:
        self._frames, lost = fitting(self._frames, most_bytes)
        for kind, number in lost.items():
            self.lost[kind] += number

    def _write_tensors(self, writer: FrameWriter, tensors: list[tuple[int, RawTensor]]) -> list[dict[str, Any]]:
        try:
            rows = writer.write_tensors(tensors)
        except StoreError:
            self.lost["raw"] += len(tensors)  # the encoder records that as a fact and continues
            raise
        self.bytes_written += sum(int(tensor.array.nbytes) for _, tensor in tensors)
        return rows


def fitting(frames: Sequence[bytes], most_bytes: int) -> tuple[list[bytes], Counter[str]]:
    """The frames that may stay, in order, and how many rows of each sort are lost with the others.

    Args:
        frames: Encoded frames, the oldest first.
        most_bytes: Most bytes that they may take together.
    """
    lost: Counter[str] = Counter()
    size = sum(map(len, frames))
    if size <= most_bytes:
        return list(frames), lost
    found = [scan(frame).frames[0] for frame in frames]
    gone: set[int] = set()
    # The catalog, and the first and last event of a worker, always stay: without the catalog no later row can be read.
    for kind in sorted((*of_steps(), STEPS), key=lambda kind: kind.given_up):
        for index, frame in enumerate(found):
            if size > most_bytes and frame.kind == kind.number:
                size -= len(frames[index])
                gone.add(index)
                lost[kind.given_up.name.lower()] += len(_rows_in(kind, frame.payload))
    return [frame for index, frame in enumerate(frames) if index not in gone], lost
