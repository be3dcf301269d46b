"""Reads what the profilers of TensorFlow and JAX write, both alike: ``xplane.pb``, a message ``XSpace``.

Its fields: https://github.com/openxla/xla/blob/main/third_party/tsl/tsl/profiler/protobuf/xplane.proto. Fields that are
not needed are passed over, so that further ones do no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from watchglass.records import OperatorTotals, summed_operators

#: Lines of a device that sum up what others have call by call.
_SUMS = frozenset(("Steps", "XLA Modules", "XLA TraceMe", "Framework Name Scope", "Framework Ops", "Source code"))
#: What TensorFlow calls the operation that takes a batch out of a data set, and as an operator.
_TAKES_BATCH = "IteratorGetNextOp::DoCompute"
TAKES_BATCH = "IteratorGetNext"


class ProfiledCall(NamedTuple):
    """One event of a line.

    Attributes:
        name: As it is written: the name of an operation of XLA, or path and kind of one of TensorFlow.
        operator: What it is summed up as; "" for what is no operator, such as the work of an executor.
        begin_ns: Since the profile began.
        length_ns: Its length.
    """

    name: str
    operator: str
    begin_ns: int
    length_ns: int


class ProfiledLine(NamedTuple):
    """The calls of one thread, or of one stream of a device, by begin, an outer one before those inside."""

    plane: str
    name: str
    on_device: bool
    calls: Sequence[ProfiledCall]


@dataclass(frozen=True)
class XSpace:
    """A whole profile."""

    lines: tuple[ProfiledLine, ...]
    begin_ns: int  #: Wall time of its begin in nanoseconds since 1970; 0 if it is not stated.

    def operators(self) -> tuple[OperatorTotals, ...]:
        """Sums of each operator, those of the most own time first: of the host, and of devices with ``on_device``."""
        return summed_operators(
            (call.operator, line.on_device, 1, own_ns, call.length_ns if outermost else 0)
            for line in self.lines
            for call, own_ns, outermost in _own_times(call for call in line.calls if call.operator)
        )

    def write_trace(self, file: Path) -> None:
        """Write all calls into a file in Chrome's format, with wall times."""
        events = [
            {
                "ph": "X", "name": call.name, "pid": line.plane, "tid": line.name,
                "cat": ("kernel" if line.on_device else "cpu_op") if call.operator else "host",
                "ts": call.begin_ns / 1000, "dur": call.length_ns / 1000,
            }
            for line in self.lines
            for call in line.calls
        ]  # fmt: skip
        document = {"traceEvents": events, "baseTimeNanoseconds": self.begin_ns}
        file.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")


def read_xspace(data: bytes) -> XSpace:
    """The profile in a file.

    Raises:
        ValueError: It is cut off, or no such message.
    """
    try:
        planes = [value for field, value in _fields(data) if field == 1 and isinstance(value, bytes)]
        found = [_plane(each) for each in planes]
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"it is no profile: {error}") from None
    lines = tuple(line for each, _ in found for line in each)
    return XSpace(lines, max((begin_ns for _, begin_ns in found), default=0))


def _plane(data: bytes) -> tuple[list[ProfiledLine], int]:
    """The lines of a plane, and when the profile began, if it says so."""
    name, lines = "", list[bytes]()
    events, numbers = dict[int, str](), dict[int, str]()
    stats = list[bytes]()
    for field, value in _fields(data):
        if field == 2:
            name = _text(value)
        elif field == 3:
            lines.append(value)
        elif field in (4, 5):
            entry = dict(_fields(value))
            about = dict(_fields(entry.get(2, b"")))
            (events if field == 4 else numbers)[entry.get(1, 0)] = _text(about.get(2, b""))
        elif field == 6:
            stats.append(value)
    begin_ns = 0
    for stat in map(dict, map(_fields, stats)):
        if numbers.get(stat.get(1, 0)) == "profile_start_time":
            begin_ns = stat.get(3, stat.get(4, 0))
    hlo = {number for number, text in numbers.items() if text == "hlo_op"}
    device = name.startswith("/device:")
    found = [_line(each, name, events, hlo, device) for each in lines]
    return [line for line in found if line.calls and not (device and line.name in _SUMS)], begin_ns


def _line(data: bytes, plane: str, names: dict[int, str], hlo: set[int], device: bool) -> ProfiledLine:
    number, name, shown, since_ns, events = 0, "", "", 0, list[bytes]()
    for field, value in _fields(data):
        if field == 4:
            events.append(value)
        elif field == 1:
            number = value
        elif field == 2:
            name = _text(value)
        elif field == 11:
            shown = _text(value)
        elif field == 3:
            since_ns = value
    calls = []
    for event in events:
        kind = offset_ps = length_ps = 0
        of_xla = device
        for field, value in _fields(event):
            if field == 1:
                kind = value
            elif field == 2:
                offset_ps = value
            elif field == 3:
                length_ps = value
            elif field == 4 and not of_xla:
                of_xla = dict(_fields(value)).get(1) in hlo
        called = names.get(kind, "")
        if called and length_ps:
            operator = called if of_xla else _operator(called)
            calls.append(ProfiledCall(called, operator, since_ns + offset_ps // 1000, length_ps // 1000))
    calls.sort(key=lambda call: (call.begin_ns, -call.length_ns))
    return ProfiledLine(plane, shown or name or str(number), device, calls)


def _operator(name: str) -> str:
    """What an event of the host is summed up as: of an operation of TensorFlow the kind, after its path."""
    if name == _TAKES_BATCH:
        return TAKES_BATCH
    if name.startswith(("PjitFunction(", "np.asarray(")):  # calls of a script: to JAX, and to wait for a result
        return name
    path, _, kind = name.rpartition(":")
    return kind if path and not path.endswith(":") and kind.isidentifier() and " " not in path else ""


def _own_times(calls: Iterable[ProfiledCall]) -> Iterator[tuple[ProfiledCall, int, bool]]:
    """Each call with its own time, and whether none of its operator is around it."""
    inside: list[list[int]] = []  # end, and time of what it directly holds
    around: list[ProfiledCall] = []

    def left(until_ns: int | None) -> Iterator[tuple[ProfiledCall, int, bool]]:
        while inside and (until_ns is None or inside[-1][0] <= until_ns):
            call, held_ns = around.pop(), inside.pop()[1]
            yield call, max(call.length_ns - held_ns, 0), all(each.operator != call.operator for each in around)

    for call in calls:
        yield from left(call.begin_ns)
        if inside:
            inside[-1][1] += call.length_ns
        inside.append([call.begin_ns + call.length_ns, 0])
        around.append(call)
    yield from left(None)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message: a number, or the bytes of a text, a message or a fixed number.

    Raises:
        IndexError: It is cut off.
        ValueError: It is no message.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if length < 0 or at + length > end:
            raise ValueError("it is no profile, or cut off")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("it is no profile: a number is too long")
