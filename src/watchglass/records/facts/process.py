"""Facts about a process that trains: its recording, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchglass.records.fact import DeclaredFact


class Resumed(DeclaredFact):
    """A run that continues from a checkpoint; determined once, at the first update."""

    KIND = "resumed"

    start_step: int | None = None
    source: str = ""  #: `optimizer`, `scheduler`, `booster`, `given` or `unknown`


class Stacks(DeclaredFact):
    """Where all threads of the process stand."""

    KIND = "stacks"

    step: int
    seconds: float = 0.0
    threads: tuple[Mapping[str, Any], ...] = ()


class CaptureFault(DeclaredFact):
    """watchglass failed and records no more of this process; its source is the place."""

    KIND = "capture_fault"

    error: str = ""


class ProfilerChanged(DeclaredFact):
    """Settings of the profiler that `watchglass profile` changed."""

    KIND = "profiler_changed"

    step: int
    enabled: bool | None = None
    sample_interval_s: float | None = None
    module_times: bool | None = None


class RecordedInterval(DeclaredFact):
    """Of the TRAIN steps from here on, only some are recorded."""

    KIND = "step_interval"

    interval: int = 1  #: steps


class TraceNotKept(DeclaredFact):
    """The trace of a profiled window that was not written."""

    KIND = "trace_not_kept"

    step: int
    reason: str = ""


class CaptureInterval(DeclaredFact):
    """The interval of captures that the budget chooses, from the next step on."""

    KIND = "capture_interval"

    interval: int  #: steps
    captures_per_doubling: float


class CaptureCost(DeclaredFact):
    """Cost of capture so far, in case the process is killed: the counters that it reports when it leaves."""

    KIND = "capture_cost"

    counters: Mapping[str, Any]


class CaptureOutOfMemory(DeclaredFact):
    """Tensors of the role in its source are not captured from this step on."""

    KIND = "capture_out_of_memory"

    error: str = ""


class CollectionUnmatched(DeclaredFact):
    """A collection that matches nothing."""

    KIND = "collection_unmatched"

    collection: str
    near: tuple[str, ...] = ()


class Dropped(DeclaredFact):
    """Records that could not be written."""

    KIND = "dropped"

    what: Mapping[str, Any]
    reason: str = ""


class AllocatorMemory(DeclaredFact):
    """Memory of a GPU that PyTorch's allocator has reserved, what tensors use of it, and retries."""

    KIND = "allocator"
    NEEDED_BY = ""
    COST = "some microseconds at captured steps on a GPU; nothing without one"

    device: int | None = None
    reserved: int | None = None  #: bytes
    allocated: int | None = None  #: bytes
    retries: int | None = None
    out_of_memory: int | None = None


class HeldGraphs(DeclaredFact):
    """Graphs of earlier steps that something still holds, and the number of Python's memory blocks."""

    KIND = "held_memory"
    NEEDED_BY = ""
    COST = "two microseconds at captured steps, and 0.2 ms for each million of Python's memory blocks"

    pid: int
    graphs: int
    held: int
    blocks: int | None = None
