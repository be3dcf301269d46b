"""Wall times of monotonic times, by the headers of segments, which pair the two clocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The latest time of a column of Arrow.
LATEST = (1 << 63) - 1


def wall_times(headers: Sequence[dict[str, Any]], monotonic_ns: NDArray[Any]) -> NDArray[np.datetime64]:
    """Wall times, datetime64[ns] in UTC, by the last header before each time; the epoch where no header pairs them.

    Args:
        headers: Headers of the segments of one writer.
        monotonic_ns: Times by its monotonic clock.
    """
    moments = np.minimum(monotonic_ns, LATEST).astype(np.int64)
    pairs = sorted(
        (header["monotonic_ns"], header["wall_ns"])
        for header in headers
        if _is_time(header.get("monotonic_ns")) and _is_time(header.get("wall_ns"))
    )
    begun, wall = np.array(pairs or [(0, 0)], np.int64).T
    at = np.maximum(np.searchsorted(begun, moments, "right") - 1, 0)
    found: NDArray[np.datetime64] = (wall[at] + moments - begun[at] if pairs else 0 * moments).view("datetime64[ns]")
    return found


def _is_time(value: object) -> bool:
    """Whether a value of a header, which is foreign JSON, is a number of nanoseconds."""
    return type(value) is int and 0 <= value < 1 << 62
