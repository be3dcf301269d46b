"""The last two windows of training steps: what a rule about time reports must be in both of them."""

from __future__ import annotations

from typing import Any

from watchglass.records import count

#: First steps, which start workers, allocate the state of the optimizer and fill caches; they are not judged.
FIRST = 8

#: Numbers of a step.
Row = list[float]


def empty() -> dict[str, Any]:
    """No steps yet: a rule's state."""
    return {"seen": 0, "counted": 0, "rows": []}


def note_step(windows: dict[str, Any]) -> bool:
    """Note a training step. Returns whether it may be judged, which the first ones may not."""
    windows["seen"] += 1
    return bool(windows["seen"] > FIRST)


def add(windows: dict[str, Any], row: Row, length: int) -> list[list[Row]]:
    """Add the numbers of a step that is judged.

    Args:
        windows: Those of the rule.
        row: The numbers.
        length: Steps of a window.

    Returns:
        The rows of the last two windows, the older one first, if the step completes the later one; else [].
    """
    rows = windows["rows"]
    rows.append(row)
    del rows[: -2 * length]
    windows["counted"] += 1
    return [rows[:length], rows[length:]] if not windows["counted"] % length and len(rows) == 2 * length else []


def of_short_run(windows: dict[str, Any], length: int, enough: int) -> list[Row]:
    """The rows of a run at its end, if it was too short for two windows and has enough steps; else []."""
    return list(windows["rows"]) if enough <= windows["counted"] < 2 * length else []


def halves(rows: list[Row]) -> list[list[Row]]:
    """A short run as two windows; the later one has the odd step. [] without rows."""
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]] if rows else []


def too_few(windows: dict[str, Any], enough: int) -> str:
    """Why a run with training steps cannot be judged: it has too few of them; "" if it can."""
    few = windows["seen"] > 0 and windows["counted"] < enough
    return f"the run has {count(windows['seen'], 'training step')}; {FIRST + enough} are needed" if few else ""
