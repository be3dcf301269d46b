"""Silences: no step is completed for much longer than steps usually take."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

from watchglass.records import facts, rounded
from watchglass.stats import median
from watchglass.tables import JointStep, Tick

#: Times between steps of which the median is taken.
_LAST = 64
#: First steps in which a compiled model may stand still this many times as long: its graphs are compiled when they are
#: first needed, also after the first step (captured steps have their own, and so have other shapes and evaluations).
_COMPILING, _TIMES = 64, 10


class LongSilence(NamedTuple):
    """A time without steps that is longer than all limits."""

    late: list[str]  #: The workers that have completed no step for `limit_s` seconds, sorted.
    limit_s: float  #: The longest of the limits.
    usual_s: float  #: The median time between steps; 0 after the first step.
    message: str  #: Which workers are late, for how long, and since which step.


def note_step(gaps: MutableMapping[str, Any], step: JointStep) -> None:
    """Note the time since the step before.

    Args:
        gaps: A rule's state, empty at first: the seconds between the ends of the last steps, the longest of all, and
            the end of the last step.
        step: The step.
    """
    if gaps:
        seconds = max(0.0, (step.first.end_ns - gaps["ended_ns"]) / 1e9)
        gaps["between_s"] = [*gaps["between_s"][1 - _LAST :], seconds]
        gaps["longest_s"] = max(gaps["longest_s"], seconds)
    else:
        gaps.update(between_s=[], longest_s=0.0)
    gaps["ended_ns"] = step.first.end_ns


def silence_at(
    gaps: MutableMapping[str, Any], tick: Tick, *, threshold: float, factor: float, pauses: float
) -> LongSilence | None:
    """The silence at a tick; None before the first step, and while it is shorter than a limit.

    Args:
        gaps: What :func:`note_step` noted.
        tick: The tick.
        threshold: Least seconds without a step.
        factor: Least multiple of the median time between steps.
        pauses: Least multiple of the longest time between steps. Unless it is 0, all limits are ten times as long in
            the first 64 steps of a compiled model.
    """
    if tick.last is None or not gaps:
        return None
    usual = median(gaps["between_s"]) if gaps["between_s"] else 0.0
    first = tick.last.first if isinstance(tick.last, JointStep) else tick.last
    model = first.latest_fact(facts.ModelDescription)
    compiling = model is not None and model.compiled and first.model_step < _COMPILING
    limit = max(threshold, factor * usual, pauses * gaps["longest_s"]) * (_TIMES if compiling and pauses else 1)
    late = sorted(worker for worker, seconds in tick.seconds.items() if seconds >= limit)
    have = "has" if len(late) == 1 else "have"
    since = f"for {rounded(tick.silent_s)} s after step {tick.last.mode_step}"
    return LongSilence(late, limit, usual, f"{', '.join(late[:4])} {have} completed no step {since}") if late else None
