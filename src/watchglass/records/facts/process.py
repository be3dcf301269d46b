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


@dataclass(frozen=True)
class CaptureInterval(DeclaredFact):
    """The interval of captures that the [budget](configuration.md#what-the-budget-chooses) chooses from the next step.

    Attributes:
        interval, captures_per_doubling: Steps between two captures, and captures in each doubling of the step number.
    """

    KIND = "capture_interval"
    WHEN = "on change"

    interval: int
    captures_per_doubling: float


@dataclass(frozen=True)
class CaptureCost(DeclaredFact):
    """Cost of capture so far, in case the process is killed: the counters that it reports when it leaves.

    Attributes:
        counters: By name.
    """

    KIND = "capture_cost"
    WHEN = "every ten seconds"

    counters: Mapping[str, Any]

    def to_data(self) -> dict[str, Any]:
        """The counters themselves."""
        return dict(self.counters)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> CaptureCost:
        """What :meth:`to_data` gave."""
        return cls(data)


@dataclass(frozen=True)
class CaptureOutOfMemory(DeclaredFact):
    """Tensors of the role in its source are not captured from this step on.

    Attributes:
        error: Class and message.
    """

    KIND = "capture_out_of_memory"

    error: str = ""


@dataclass(frozen=True)
class CollectionUnmatched(DeclaredFact):
    """A collection that matches nothing.

    Attributes:
        collection, near: Its name, and similar names.
    """

    KIND = "collection_unmatched"

    collection: str
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dropped(DeclaredFact):
    """Records that could not be written.

    Attributes:
        what: How many there are, by what they are (`raw`, `tensors`); the `tensor_id` or `kind` of a single one.
        reason: Why.
    """

    KIND = "dropped"

    what: Mapping[str, Any]
    reason: str = ""

    def to_data(self) -> dict[str, Any]:
        """Both together."""
        return {**self.what, "reason": self.reason}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Dropped:
        """What :meth:`to_data` gave."""
        return cls({name: each for name, each in data.items() if name != "reason"}, str(data.get("reason", "")))
