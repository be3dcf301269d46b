"""Rows of streams, until the rules of a run have seen them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from watchglass.errors import DamagedDataError
from watchglass.records import ROW_KINDS, Observation, RowKind
from watchglass.rules import Windows
from watchglass.store import Frame, Problem, decode_rows, describe, dtype_of
from watchglass.tables import Streams, Written


class Streamed:
    """The rows of streams that were read and not shown yet, in their stored form.

    For one thread.

    Args:
        windows: The windows of rules.
        attempt: Only rows of this attempt; all if None.
    """

    def __init__(self, windows: Sequence[Windows], attempt: int | None = None) -> None:
        self._attempt = attempt
        self._lengths = {each.length_ns for each in windows}
        self._kinds = {name for each in windows for name in each.kinds}
        self._streams = Streams()
        self._damaged: list[Problem] = []
        self._lost: set[tuple[str, int]] = set()

    @property
    def attempts(self) -> set[int]:
        """Attempts that a stream has written about."""
        found = {part.attempt for parts in self._streams.parts.values() for part in parts}
        return found if self._attempt is None else found & {self._attempt}

    @property
    def problems(self) -> list[Problem]:
        """Invalid frames, which are omitted."""
        return self._streams.problems + self._damaged

    def ingest(self, stream: str, frame: Frame) -> None:
        """Takes in one frame."""
        self._streams.ingest(stream, frame)

    def due(
        self, attempt: int, before: tuple[int, Mapping[str, Any]] | None = None, *, rest: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Watermarks that end a window, as data of observations; take each before the next.

        Args:
            attempt: The attempt.
            before: Only those up to a time by another clock, which this header pairs with wall time; None for all.
            rest: Also those that end no window.
        """
        for stream, parts in sorted(self._streams.parts.items()):
            limits = [math.inf if before is None else before[0] + between(before[1], part.header) for part in parts]
            written = [
                p.written_by(limit) if p.attempt == attempt else 0 for p, limit in zip(parts, limits, strict=True)
            ]
            for number, part in enumerate(parts):
                if part.attempt != attempt:
                    continue
                until_ns = written[number]
                # A clock has ended once there are rows by the next one; with its attempt it ends anyway.
                followed = 0 < until_ns == part.watermark_ns and any(written[number + 1 : number + 2])
                lost = followed and (stream, number) not in self._lost
                ends = any(until_ns // length > part.taken_ns // length for length in self._lengths)
                if ends or lost or (rest and until_ns > part.taken_ns):
                    more = {"lost": True} if lost else {}
                    yield {"stream": stream, "clock": number, "time_ns": until_ns, **more}

    def going_on(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """For each stream that has not ended its attempt, and the data of the observation of its end."""
        for stream, parts in sorted(self._streams.parts.items()):
            number, part = len(parts) - 1, parts[-1]
            if part.watermark_ns > 0 and (stream, number) not in self._lost:
                yield part.attempt, {"stream": stream, "clock": number, "time_ns": part.watermark_ns, "lost": True}

    def take(self, seen: Observation) -> Written | None:
        """The rows of a stream up to the watermark of an observation, which any program may have written; or None."""
        stream, number, until_ns = (seen.data.get(name) for name in ("stream", "clock", "time_ns"))
        parts = self._streams.parts.get(stream, ()) if isinstance(stream, str) else ()
        if type(number) is not int or type(until_ns) is not int or not 0 <= number < len(parts):
            return None
        part, first_ns = parts[number], parts[number].taken_ns
        if part.attempt != seen.attempt:
            return None
        frames, lost = part.take(until_ns), seen.data.get("lost") is True
        (self._lost.add if lost else self._lost.discard)((str(stream), number))
        tables: dict[str, list[Any]] = {}
        for frame in frames:
            kind = ROW_KINDS.get(frame.kind)
            if kind is not None and kind.name in self._kinds and frame.schema == 1:
                tables.setdefault(kind.name, []).append(self._rows(kind, frame, first_ns, part.taken_ns))
        rows = {name: np.concatenate(found) for name, found in tables.items()}
        return Written(seen.attempt, str(stream), number, part.taken_ns, rows, lost)

    def end(self, attempt: int) -> Iterator[Written]:
        """The ends of all streams of an attempt."""
        for stream, parts in sorted(self._streams.parts.items()):
            for number, part in enumerate(parts):
                if part.attempt == attempt:
                    yield Written(attempt, stream, number, part.taken_ns, lost=True)

    def _rows(self, kind: RowKind, frame: Frame, start_ns: int, stop_ns: int) -> Any:
        """The rows of a frame between its two watermarks, where the format requires them to be."""
        try:
            rows = decode_rows(kind, frame.payload)
        except DamagedDataError as error:
            self._damaged.append(describe(frame, error))
            return np.empty(0, dtype_of(kind))
        return rows[(rows["time_ns"] >= start_ns) & (rows["time_ns"] < stop_ns)]


def between(clock: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The difference between two monotonic clocks that headers pair with wall time; inf where they do not."""
    if all(clock.get(name) == other.get(name) for name in ("host", "boot_id")):
        return 0
    try:
        begun_ns, other_begun_ns = (int(header["wall_ns"]) - int(header["monotonic_ns"]) for header in (clock, other))
    except (KeyError, TypeError, ValueError):
        return math.inf
    return begun_ns - other_begun_ns
