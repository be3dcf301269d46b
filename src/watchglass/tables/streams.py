"""The rows of streams: keyed by time, from writers that are not workers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from copy import copy
from operator import itemgetter
from typing import Any

from watchglass.errors import DamagedDataError
from watchglass.records import SAMPLES
from watchglass.store import Frame, FrameKind, Problem, Store, decode_header, decode_watermark, describe, layout
from watchglass.tables.samples import StoredSamples
from watchglass.tables.worker_tables import WorkerTables


class StreamPart:
    """The rows of one stream by one clock, in one attempt. For one thread.

    Rows count once a watermark follows them. So a batch counts once, also where its first write was torn or repeated.
    Batches wait until a reader takes them.

    Attributes:
        attempt: The attempt of the rows.
        header: The first header, which pairs their clock with wall time.
        tables: The rows and headers that :meth:`settle` took, without samples.
        samples: The samples that it took, read when needed.
        watermark_ns: No row with an earlier time will come; 0 before the first batch.
        taken_ns: All earlier rows were taken.
    """

    def __init__(self, attempt: int, header: Mapping[str, Any], store: Store | None = None) -> None:
        self.attempt, self.header = attempt, header
        self.tables = WorkerTables()
        self.samples = StoredSamples(store)
        self.watermark_ns = self.taken_ns = 0
        self._open: list[Frame] = []
        self._batches: list[tuple[int, list[Frame]]] = []

    def ingest(self, frame: Frame) -> None:
        """Take in one frame.

        Raises:
            DamagedDataError: It is an invalid watermark.
        """
        if frame.kind == FrameKind.HEADER:
            self._open = []  # the writer repeats a torn write
            self._batches.append((self.watermark_ns, [frame]))
        elif frame.kind != FrameKind.WATERMARK:
            self._open.append(frame)
        else:
            batch, self._open = self._open, []
            until_ns = decode_watermark(frame.payload)
            if until_ns > self.watermark_ns:
                self.watermark_ns = until_ns
                self._batches.append((until_ns, batch))

    def written_by(self, limit_ns: float) -> int:
        """The last watermark at or before a time."""
        place = bisect_right(self._batches, limit_ns, key=itemgetter(0))
        return self._batches[place - 1][0] if place else self.taken_ns

    def take(self, until_ns: float) -> list[Frame]:
        """The frames of all batches up to a watermark that were not taken yet."""
        self.taken_ns = self.written_by(until_ns)
        place = bisect_right(self._batches, until_ns, key=itemgetter(0))
        taken, self._batches = self._batches[:place], self._batches[place:]
        return [frame for _, batch in taken for frame in batch]

    def settle(self) -> None:
        """Take everything into the tables."""
        before_ns, waiting, self._batches, self.taken_ns = self.taken_ns, self._batches, [], self.watermark_ns
        for until_ns, frames in waiting:
            for frame in frames:
                if frame.kind == SAMPLES.number:
                    self.samples.add(frame, before_ns, until_ns)
                else:
                    self.tables.ingest(frame)
            before_ns = until_ns


class Streams:
    """All streams of a run. For one thread.

    Args:
        store: Where payloads were left; None where none are.

    Attributes:
        parts: The rows of each, by name: a part for each attempt and clock, in the order in which they began.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self.parts: dict[str, list[StreamPart]] = {}
        self._clocks: dict[str, tuple[object, ...]] = {}
        self._problems: list[Problem] = []

    @property
    def problems(self) -> list[Problem]:
        """Invalid frames, which are omitted, and the batches that writers of streams lost."""
        found = list(self._problems)
        for name, parts in self.parts.items():
            for part in parts:
                found += part.tables.problems + part.samples.problems
                found += [
                    Problem(layout.stream(name), 0, f"{event.get('batches')} batches of rows were lost by its writer")
                    for event in part.tables.lifecycle
                    if event["event"] == "lost"
                ]
        return found

    def snapshot(self) -> Streams:
        """A copy of the present state, which later frames do not change."""
        found = copy(self)
        found._problems = list(self._problems)
        found.parts = {name: [copy(part) for part in parts] for name, parts in self.parts.items()}
        for part in (part for parts in found.parts.values() for part in parts):
            part.tables, part.samples = part.tables.snapshot(), part.samples.snapshot()
        return found

    def ingest(self, stream: str, frame: Frame) -> None:
        """Take in one frame of a stream."""
        parts = self.parts.setdefault(stream, [])
        try:
            if frame.kind == FrameKind.HEADER:
                header = decode_header(frame.payload)
                clock = tuple(header.get(name) for name in ("attempt", "host", "boot_id"))
                if type(clock[0]) is not int or clock[0] < 0:
                    raise DamagedDataError(
                        f"the header of a stream must name an attempt but has {ascii(clock[0])[:80]}"
                    )
                if clock != self._clocks.get(stream):
                    self._clocks[stream] = clock
                    parts.append(StreamPart(clock[0], header, self._store))
            if parts:
                parts[-1].ingest(frame)
        except DamagedDataError as error:
            self._problems.append(describe(frame, error))
