"""Facts about a process that trains, and about its recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class Resumed(DeclaredFact):
    """A run that continues from a checkpoint; determined once, at the first update.

    Attributes:
        start_step: Updates before this process; absent if unknown.
        source: `optimizer`, `scheduler`, `booster`, `given` or `unknown`.
    """

    KIND = "resumed"

    start_step: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Stacks(DeclaredFact):
    """Where all threads of the process stand.

    Attributes:
        step: The last step of the process.
        seconds: The silence.
        threads: The thread that trains first: its `name`, whether it `trains`, and `frames` of a file, a line and a
            function, the innermost first.
    """

    KIND = "stacks"
    WHEN = "after ten seconds without a step, and each time that the silence has doubled; with the profiler only"

    step: int
    seconds: float = 0.0
    threads: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class CaptureFault(DeclaredFact):
    """watchglass failed and records no more of this process; its source is the place.

    Attributes:
        error: Class and message.
    """

    KIND = "capture_fault"

    error: str = ""


@dataclass(frozen=True)
class ProfilerChanged(DeclaredFact):
    """Settings of the profiler that `watchglass profile` changed.

    Attributes:
        step: The TRAIN step that came next.
        enabled, sample_interval_s, module_times: The changed ones.
    """

    KIND = "profiler_changed"

    step: int
    enabled: bool | None = None
    sample_interval_s: float | None = None
    module_times: bool | None = None


@dataclass(frozen=True)
class RecordedInterval(DeclaredFact):
    """Of the TRAIN steps from here on, only some are recorded ([short steps](configuration.md#short-steps)).

    Attributes:
        interval: Those whose number is a multiple of it; the others have a number and no row.
    """

    KIND = "step_interval"
    WHEN = "on change"

    interval: int = 1


@dataclass(frozen=True)
class TraceNotKept(DeclaredFact):
    """The trace of a profiled window that was not written.

    Attributes:
        step: The first step of the window.
        reason: Why, as class and message of an error.
    """

    KIND = "trace_not_kept"

    step: int
    reason: str = ""
