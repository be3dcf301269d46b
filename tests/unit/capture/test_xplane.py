"""Profiles of TensorFlow and JAX, as they write them: which calls are operators, their sums, and the trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from watchglass.capture.compiled.xplane import read_xspace
from watchglass.view import read_torch_trace

BEGAN_NS = 1_796_033_757_000_000_000


def number(field: int, value: int) -> bytes:
    out = bytearray()
    for each in (field << 3, value):
        while each > 127:
            out.append(each & 127 | 128)
            each >>= 7
        out.append(each)
    return bytes(out)


def text(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    key = number(field, len(data))
    return bytes((key[0] | 2,)) + key[1:] + data


def event(kind: int, begin_us: int, length_us: int, stat: int = 0) -> bytes:
    parts = number(1, kind) + number(2, begin_us * 10**6) + number(3, length_us * 10**6)
    return parts + (text(4, number(1, stat) + text(5, "x")) if stat else b"")


def plane(name: str, events: list[bytes], names: list[str], line: str = "thread") -> bytes:
    entries = b"".join(text(4, number(1, at) + text(2, number(1, at) + text(2, each))) for at, each in enumerate(names))
    stats = b"".join(
        text(5, number(1, at) + text(2, number(1, at) + text(2, each)))
        for at, each in enumerate(("profile_start_time", "hlo_op"), 1)
    )
    began = text(6, number(1, 1) + number(3, BEGAN_NS))
    lines = text(3, text(2, line) + number(3, 1000) + b"".join(text(4, each) for each in events))
    return text(1, text(2, name) + lines + entries + stats + began)


NAMES = ["", "dot.1", "while", "adam/Mul:Mul", "ExecutorState::Process", "IteratorGetNextOp::DoCompute", "Wait: Mul"]
HOST = plane(
    "/host:CPU",
    [
        event(2, 0, 100, stat=2), event(1, 10, 30, stat=2), event(1, 50, 20, stat=2), event(3, 200, 5),
        event(4, 300, 7), event(5, 400, 9), event(6, 500, 9), event(1, 600, 9),
    ],
    NAMES,
)  # fmt: skip
DEVICE = plane("/device:GPU:0", [event(1, 0, 40)], ["", "gemm"], "Stream #7") + plane(
    "/device:GPU:0", [event(1, 0, 40)], ["", "jit_step"], "XLA Modules"
)


def test_operators_are_operations_of_xla_and_tensorflow_and_kernels() -> None:
    rows = {row.name: row for row in read_xspace(HOST + DEVICE).operators()}
    assert rows.keys() == {"while", "dot.1", "Mul", "IteratorGetNext", "gemm"}
    assert (rows["dot.1"].calls, rows["dot.1"].self_cpu_s) == (2, 50e-6)
    assert (rows["while"].self_cpu_s, rows["while"].cpu_s) == (50e-6, 100e-6)
    assert (rows["gemm"].on_device, rows["gemm"].self_device_s, rows["gemm"].self_cpu_s) == (True, 40e-6, 0.0)


def test_the_trace_has_all_calls_with_wall_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    read_xspace(HOST + DEVICE).write_trace(file)
    trace = read_torch_trace(file)
    assert trace.dated
    assert len(trace.slices) == 9
    assert min(each.begin_ns for each in trace.slices) == BEGAN_NS + 1000
    assert {row.name for row in trace.operators() if row.on_device} == {"gemm"}
    assert json.loads(file.read_text())["baseTimeNanoseconds"] == BEGAN_NS


@pytest.mark.parametrize("data", [HOST[:-7], b"\xff" * 30, b"no profile"], ids=["cut", "numbers", "text"])
def test_what_is_no_profile_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="no profile"):
        read_xspace(data)
