"""Traces that PyTorch's profiler wrote in Chrome's format: their slices with wall times, and sums of their operators.

A trace may come from anywhere: what is no slice of the format is left out, and nothing in it is executed.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from watchglass.config import read_regular
from watchglass.errors import DamagedDataError, InvalidValueError, MissingFileError, StoreError
from watchglass.records import OperatorTotals, summed_operators
from watchglass.store import Charges, layout

if TYPE_CHECKING:
    from watchglass.run import Operators, Run

#: Largest trace, compressed or not: house. A step of a large model takes some megabytes.
MOST_TRACE_BYTES = 256 << 20
#: Categories of slices: operators and marks of the host, and work of a device.
_HOST = {"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
#: Those that are added up.
_SUMMED = {"cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset"}
_LONGEST_NAME = 200
#: Memory of a small number or an empty list with its place in a list, and of a table with a few keys: CPython 3.11.
_VALUE_BYTES, _TABLE_BYTES = 64, 240
#: In September 2001: earlier times are not those of a trace.
_DATED_NS = 10**18


class TraceSlice(NamedTuple):
    """A slice of a trace."""

    name: str  #: Its name, ``"aten::mm"``.
    category: str  #: That of PyTorch, ``"cpu_op"`` or ``"kernel"``.
    place: str  #: Process and thread, or device and stream.
    begin_ns: int  #: Wall time, in nanoseconds since 1970; since an unknown time where the trace states none.
    length_ns: int  #: Its length.


@dataclass(frozen=True)
class TorchTrace:
    """A trace that PyTorch's profiler wrote."""

    slices: tuple[TraceSlice, ...]  #: By place, then by begin, an outer one before those inside.
    dated: bool  #: Whether times are wall times.
    omitted: int  #: Number of slices that are not as the format demands.
    #: What reading it may take, charged to the budget of this process for as long as the trace is kept.
    charges: Charges = field(default_factory=Charges, repr=False, compare=False)

    def operators(self) -> tuple[OperatorTotals, ...]:
        """Sums by name, those of the most own time first: of the host, and of kernels with ``on_device``."""
        return summed_operators(
            (each.name, each.category in _DEVICE, called, own_ns, each.length_ns if outermost else 0)
            for each, own_ns, outermost, called in _nested(self.slices)
            if each.category in _SUMMED
        )


def read_torch_trace(path: str | Path) -> TorchTrace:
    """The trace in a file, ``.json`` or compressed with gzip.

    Raises:
        InvalidValueError: The file cannot be read, or is no such trace; the message is one line.
        MemoryBudgetError: Its objects take more memory than is left of the budget of this process.
    """
    try:
        data = read_regular(path, MOST_TRACE_BYTES)
    except OSError as error:
        raise InvalidValueError(f"trace {path} cannot be read: {error.strerror or error}") from None
    return parse_torch_trace(data, f"trace {path}")


def parse_torch_trace(data: bytes, what: str) -> TorchTrace:
    """The trace in ``data``; ``what`` names it in errors.

    Raises:
        InvalidValueError: It is no such trace.
        MemoryBudgetError: Its objects take more memory than is left of the budget of this process.
    """
    charges = Charges()
    try:
        content = _unpacked(data)
        charges.add(object_bytes(content))
        document = json.loads(content)
    except (ValueError, RecursionError, zlib.error) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidValueError(f"{what} is not a trace in Chrome's format: {reason}") from None
    base = document.get("baseTimeNanoseconds", 0) if isinstance(document, dict) else 0
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InvalidValueError(f"{what} is not a trace in Chrome's format: it has no list of events")
    based = type(base) is int and 0 < base < 1 << 62
    complete = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    # The whole of what was profiled is a slice too, in a process of its kind.
    complete = [event for event in complete if event.get("cat") != "Trace"]
    found = [each for each in (_slice(event, base if based else 0) for event in complete) if each is not None]
    if not found:
        raise InvalidValueError(f"{what} has no slice with a name, a time and a length")
    found.sort(key=lambda each: (each.place, each.begin_ns, -each.length_ns))
    # Without a base, older releases of PyTorch state times since 1970.
    dated = based or min(each.begin_ns for each in found) > _DATED_NS
    return TorchTrace(tuple(found), dated, len(complete) - len(found), charges)


def kept_traces(run: Run, windows: Sequence[Operators]) -> list[TorchTrace]:
    """The traces that a run keeps of windows of one worker, each once; one that is not readable is left out.

    Raises:
        MemoryBudgetError: They take more memory than is left of the budget of this process.
    """
    found = []
    for path in dict.fromkeys(each.trace for each in windows if layout.worker_of_trace(each.trace) == each.worker):
        with suppress(DamagedDataError, InvalidValueError, MissingFileError, StoreError):
            found.append(parse_torch_trace(run.store.read(path, 0, MOST_TRACE_BYTES), path))
    return found


def object_bytes(text: bytes) -> int:
    """About the most memory that JSON text and its objects take, by what separates and opens them."""
    characters = len(text) if text.isascii() else 4 * len(text)
    values = text.count(b",") + text.count(b"[") + text.count(b":")
    return len(text) + 2 * characters + _VALUE_BYTES * values + _TABLE_BYTES * text.count(b"{")


def _unpacked(data: bytes) -> bytes:
    """The content, if it is compressed; no longer than the limit, however well it is compressed."""
    if data[:2] != b"\x1f\x8b":
        return data
    unpacking = zlib.decompressobj(wbits=31)
    content = unpacking.decompress(data, MOST_TRACE_BYTES)
    if unpacking.unconsumed_tail:
        raise ValueError(f"it is longer than {MOST_TRACE_BYTES:,} bytes when unpacked")
    if not unpacking.eof:
        raise ValueError("it is cut off")
    return content


def _slice(event: dict[str, Any], base_ns: int) -> TraceSlice | None:
    name, category = event.get("name"), event.get("cat")
    begin: Any = event.get("ts")
    length: Any = event.get("dur")
    if not isinstance(name, str) or not name or not isinstance(category, str):
        return None
    if not all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (begin, length)):
        return None
    if not (0 <= length < 1e15 and abs(begin) < 1e17):  # not so for NaN either
        return None
    place = " ".join(str(event.get(key))[:40] for key in ("pid", "tid"))
    begin_ns, length_ns = base_ns + round(1000 * begin), round(1000 * length)
    return TraceSlice(name[:_LONGEST_NAME], category[:40], place, begin_ns, length_ns)


def _nested(slices: Sequence[TraceSlice]) -> Iterable[tuple[TraceSlice, int, bool, bool]]:
    """Each slice with its own time, whether none of its name is around it, and whether it is a call.

    As PyTorch counts, an operator that directly holds one of the same name is one call.
    """
    inside: list[list[Any]] = []  # slice, end, time of what it directly holds, outermost of its name, a call
    names: Counter[str] = Counter()  # of what is inside

    def left(until_ns: int | None) -> Iterable[tuple[TraceSlice, int, bool, bool]]:
        while inside and (until_ns is None or inside[-1][1] <= until_ns):
            each, _, held_ns, outermost, called = inside.pop()
            names[each.name] -= 1
            yield each, max(each.length_ns - held_ns, 0), outermost, called

    place = ""
    for each in slices:
        if each.place != place:
            yield from left(None)
            place = each.place
        yield from left(each.begin_ns)
        if inside:
            inside[-1][2] += each.length_ns
        outermost = not names[each.name]
        called = not inside or inside[-1][0].name != each.name
        names[each.name] += 1
        inside.append([each, each.begin_ns + each.length_ns, 0, outermost, called])
    yield from left(None)
