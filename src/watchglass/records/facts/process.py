"""Facts about a process that trains: its recording, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact


class Resumed(DeclaredFact, kind="resumed"):
    """A run that continues from a checkpoint; determined once, at the first update."""

    start_step: int | None = None
    source: str = ""  #: `optimizer`, `scheduler`, `booster`, `given` or `unknown`


class SavedCheckpoint(DeclaredFact, kind="checkpoint", needed_by="report"):
    """A file with weights or the state of an optimizer that the script has saved."""

    COST = "0.3 ms per saved file with a hundred weights, for its keys"

    step: int
    file: str = ""
    seconds: float = 0.0
    weights: bool = False
    optimizer: bool = False


class StackedThread(Declared):
    """A thread of a process, and where it stands."""

    name: str = ""
    trains: bool = False
    frames: tuple[tuple[str, int, str], ...] = ()  #: file, line, function; the innermost first


class Stacks(DeclaredFact, kind="stacks"):
    """Where all threads of the process stand."""

    step: int = -1
    seconds: float = 0.0
    threads: tuple[StackedThread, ...] = ()


class CaptureFault(DeclaredFact, kind="capture_fault"):
    """watchglass failed and records no more of this process; its source is the place."""

    error: str = ""


class ProfilerChanged(DeclaredFact, kind="profiler_changed"):
    """Settings of the profiler that `watchglass profile` changed."""

    step: int
    enabled: bool | None = None
    sample_interval_s: float | None = None
    module_times: bool | None = None


class RecordedInterval(DeclaredFact, kind="step_interval"):
    """Of the TRAIN steps from here on, only some are recorded."""

    interval: int = 1  #: steps; one of as many where a call of a framework makes several


class EvaluationInterval(DeclaredFact, kind="evaluation_interval"):
    """Of an evaluation from here on, several batches make one step."""

    interval: int = 1  #: batches


class TraceNotKept(DeclaredFact, kind="trace_not_kept"):
    """The trace of a profiled window that was not written."""

    step: int
    reason: str = ""


class CaptureInterval(DeclaredFact, kind="capture_interval"):
    """The interval of captures that the budget chooses, from the next step on."""

    interval: int  #: steps
    captures_per_doubling: float


class CaptureCost(DeclaredFact, kind="capture_cost"):
    """Cost of capture so far, in case the process is killed: the counters that it reports when it leaves."""

    counters: Mapping[str, Any]


class CaptureOutOfMemory(DeclaredFact, kind="capture_out_of_memory"):
    """Tensors of the role in its source are not captured from this step on."""

    error: str = ""


class CollectionUnmatched(DeclaredFact, kind="collection_unmatched"):
    """A collection that matches nothing."""

    collection: str
    near: tuple[str, ...] = ()


class Dropped(DeclaredFact, kind="dropped"):
    """Records that could not be written."""

    what: Mapping[str, Any]
    reason: str = ""


class AllocatorMemory(DeclaredFact, kind="allocator", needed_by=""):
    """Memory of a GPU that PyTorch's allocator has reserved, what tensors use of it, and retries."""

    COST = "some microseconds at captured steps on a GPU; nothing without one"

    device: int | None = None
    reserved: int | None = None  #: bytes
    allocated: int | None = None  #: bytes
    retries: int | None = None
    out_of_memory: int | None = None


class HeldGraphs(DeclaredFact, kind="held_memory", needed_by=""):
    """Graphs of earlier steps that something still holds, and the number of Python's memory blocks."""

    COST = "two microseconds at captured steps, and 0.2 ms for each million of Python's memory blocks"

    pid: int
    graphs: int
    held: int
    blocks: int | None = None
