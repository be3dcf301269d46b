"""Encoded frames that wait for a store which refuses them: what stays in memory and what goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Sized

from watchglass.store import (
    FrameKind,
    decode_facts,
    decode_raw_index,
    decode_reductions,
    decode_scalars,
    decode_statistics,
    decode_step_ends,
    decode_units,
    scan,
)

#: What goes first where there is no room, what it is counted as, and how many of these a frame holds. What ids mean
#: and the beginning and end of a worker stay: without the first, nothing that is written later could be read.
_ORDER: tuple[tuple[FrameKind, str, Callable[[bytes], Sized]], ...] = (
    (FrameKind.RAW, "raw", decode_raw_index),
    (FrameKind.STATISTICS, "statistics", lambda payload: decode_statistics(payload, histograms=False)),
    (FrameKind.REDUCTIONS, "statistics", decode_reductions),
    (FrameKind.UNITS, "statistics", decode_units),
    (FrameKind.SCALARS, "scalars", decode_scalars),
    (FrameKind.FACTS, "facts", decode_facts),
    (FrameKind.STEP_ENDS, "steps", decode_step_ends),
)


def fitting(frames: Sequence[bytes], most_bytes: int) -> tuple[list[bytes], Counter[str]]:
    """The frames that may stay, in their order, and how much of what is lost with the others.

    Args:
        frames: Encoded frames, the oldest first.
        most_bytes: What those that stay may take together.
    """
    lost: Counter[str] = Counter()
    size = sum(map(len, frames))
    if size <= most_bytes:
        return list(frames), lost
    found = [scan(frame).frames[0] for frame in frames]
    gone: set[int] = set()
    for kind, name, rows in _ORDER:
        for index, frame in enumerate(found):
            if size > most_bytes and frame.kind == kind:
                size -= len(frames[index])
                gone.add(index)
                lost[name] += len(rows(frame.payload))
    return [frame for index, frame in enumerate(frames) if index not in gone], lost
