"""What watching cost and dropped, in sentences, from the counters that a worker left behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watchglass.view.text import count, duration, size


def capture_lines(counters: Mapping[str, Any]) -> Iterator[str]:
    """One line each for the cost in the training's steps, for what was written, and for what was dropped.

    Args:
        counters: As in a worker's ``left`` event; whatever is missing or no number is left out.
    """
    callbacks, training = _number(counters, "callback_ns"), _number(counters, "train_ns")
    if callbacks is not None and training:
        share = f"{100 * callbacks / training:.2g} %"
        text = f"watching took {share} of the steps' {duration(training / 1e9)}"
        recorder = _number(counters, "recorder_cpu_ns") or 0.0
        if recorder >= 0.05e9:
            text += f", and {duration(recorder / 1e9)} of a thread beside them"
        yield text
    interval, written = _number(counters, "interval"), _number(counters, "bytes_written")
    parts = [
        f"statistics every {count(int(interval), 'step')}" if interval and interval > 1 else "",
        f"{size(written)} written" if written is not None else "",
    ]
    if any(parts):
        yield ", ".join(filter(None, parts))
    dropped = counters.get("dropped")
    for kind, amount in dropped.items() if isinstance(dropped, Mapping) else ():
        if isinstance(amount, int) and amount > 0:
            yield f"{amount:,} {_KINDS.get(kind, kind)} dropped, for the disk or the machine was too slow"


_KINDS = {"raw": "raw tensors", "statistics": "statistics", "scalars": "scalars"}


def _number(counters: Mapping[str, Any], name: str) -> float | None:
    value = counters.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
