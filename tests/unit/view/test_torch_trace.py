"""Traces that PyTorch's profiler wrote: sums of operators, slices beside those of a run, and hostile files."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from watchglass.errors import InvalidValueError, MemoryBudgetError
from watchglass.records import OperatorWindow
from watchglass.run import open_run
from watchglass.store import LocalStore, MemoryBudget, layout, memory_budget
from watchglass.testing import Step, build_run
from watchglass.view import read_torch_trace, torch_trace, trace_document
from watchglass.view.torch_trace import parse_torch_trace

BASE_NS = 1_790_857_026_000_000_000


def event(name: str, begin_us: float, length_us: float, category: str = "cpu_op", row: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "pid": 7, "tid": row, "ts": begin_us, "dur": length_us}


EVENTS: list[Any] = [
    {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
    event("step", 0, 100, "user_annotation"),
    event("aten::linear", 10, 50),
    event("aten::addmm", 20, 30),
    event("aten::linear", 25, 10),  # it calls itself
    event("aten::addmm", 70, 10),
    event("gemm", 30, 40, "kernel", row=2),
    event("cudaLaunchKernel", 26, 2, "cuda_runtime"),
    event("PyTorch Profiler (0)", 0, 200, "Trace", row=3),
]


def packed(events: Any = None, **more: Any) -> bytes:
    return json.dumps(
        {"baseTimeNanoseconds": BASE_NS, "traceEvents": EVENTS if events is None else events, **more}
    ).encode()


def test_operators_are_added_up_by_their_nesting() -> None:
    trace = parse_torch_trace(packed(), "trace t")
    rows = {row.name: row for row in trace.operators()}
    assert set(rows) == {"step", "aten::linear", "aten::addmm", "gemm"}
    seconds = {name: (row.calls, row.self_cpu_s, row.cpu_s) for name, row in rows.items()}
    us = 1e-6
    assert seconds["step"] == (1, pytest.approx(40 * us), pytest.approx(100 * us))
    assert seconds["aten::linear"] == (2, pytest.approx(28 * us), pytest.approx(50 * us)), "the inner call is inside"
    assert seconds["aten::addmm"] == (2, pytest.approx(30 * us), pytest.approx(40 * us))
    gemm = rows["gemm"]
    assert (gemm.on_device, gemm.self_device_s, gemm.self_cpu_s) == (True, pytest.approx(40 * us), 0.0)
    assert (trace.dated, trace.omitted) == (True, 0)
    assert min(each.begin_ns for each in trace.slices) == BASE_NS


def test_compressed_files_and_lists_of_events_are_traces_too(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(packed()))
    assert len(read_torch_trace(tmp_path / "t.json.gz").slices) == 7
    (tmp_path / "t.json").write_text(json.dumps(EVENTS))
    trace = read_torch_trace(tmp_path / "t.json")
    assert (len(trace.slices), trace.dated) == (7, False)
    old = [{**each, "ts": each["ts"] + BASE_NS / 1000} for each in EVENTS if "ts" in each]
    assert parse_torch_trace(json.dumps(old).encode(), "trace t").dated, "older releases state times since 1970"


@pytest.mark.parametrize(
    "broken",
    [
        {"name": 3}, {"name": ""}, {"cat": None}, {"ts": "1"}, {"ts": True}, {"dur": -1}, {"ts": float("nan")},
        {"dur": float("inf")}, {"ts": 1e300}, {"ts": 10**400},
    ],
)  # fmt: skip
def test_slices_against_the_format_are_omitted_and_counted(broken: dict[str, Any]) -> None:
    trace = parse_torch_trace(packed([event("a", 1, 2), {**event("b", 1, 2), **broken}, 5, None]), "trace t")
    assert ([each.name for each in trace.slices], trace.omitted) == (["a"], 1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not a trace in Chrome's format"),
        (b"\x1f\x8b", "it is cut off"),
        (gzip.compress(packed())[:-20], "it is cut off"),
        (b"\x1f\x8b" + b"\x00" * 40, "is not a trace in Chrome's format"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff\xfe{}", "is not a trace in Chrome's format"),
        (b"{}", "it has no list of events"),
        (b"3", "it has no list of events"),
        (b'{"traceEvents": {}}', "it has no list of events"),
        (b"[]", "has no slice with a name, a time and a length"),
        (b"[" + b"9" * 5000 + b"]", "is not a trace in Chrome's format"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(InvalidValueError) as refused:
        read_torch_trace(tmp_path / "t.json")
    assert reason in str(refused.value)
    assert "t.json" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch_trace, "MOST_TRACE_BYTES", 10_000)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b" " * 1_000_000))
    with pytest.raises(InvalidValueError, match=r"longer than 10,000 bytes when unpacked"):
        read_torch_trace(tmp_path / "t.json.gz")
    (tmp_path / "t.json").write_bytes(b" " * 10_001)
    with pytest.raises(InvalidValueError, match=r"t.json cannot be read: it is longer than 10,000 bytes"):
        read_torch_trace(tmp_path / "t.json")


def built(tmp_path: Path, trace: str = "") -> tuple[Any, int]:
    """A run of five steps with a profiled window, and the wall time at which step 2 begins."""
    window = OperatorWindow(2, 4, (), trace=trace).to_fact("torch.profiler")
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, seconds=0.1)] * 5, facts=[window]))
    document = trace_document(run)
    (begin,) = [each["ts"] for each in document["traceEvents"] if each["name"] == "step 2"]
    return run, int(document["otherData"]["begin_unix_ns"]) + round(begin * 1000)


def test_the_kept_trace_of_a_window_is_in_the_process_of_its_rank_at_its_time(tmp_path: Path) -> None:
    path = layout.trace(0, "worker_0", 2)
    _, begin_ns = built(tmp_path, path)
    data = gzip.compress(json.dumps({"baseTimeNanoseconds": begin_ns, "traceEvents": EVENTS}).encode())
    LocalStore(tmp_path / "run").write(path, data)
    run = open_run(tmp_path / "run")
    (window,) = run.operators()
    assert window.trace == path
    events = trace_document(run)["traceEvents"]
    (step,) = [each for each in events if each["name"] == "step 2"]
    (linear, _) = sorted((each for each in events if each["name"] == "aten::linear"), key=lambda each: each["ts"])
    assert linear["pid"] == step["pid"]
    assert linear["ts"] == pytest.approx(step["ts"] + 10, abs=0.01)
    rows = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert rows[linear["tid"]] == "profiler 7 1"
    assert len({each["tid"] for each in events if each["name"] in ("gemm", "aten::linear")}) == 2


@pytest.mark.parametrize(
    "trace", ["", "../secret", "other.json.gz", "attempts/0000/attempt.json", layout.trace(0, "worker_0", 9)]
)
def test_a_trace_that_is_not_there_or_not_one_of_ours_is_left_out(tmp_path: Path, trace: str) -> None:
    run, begin_ns = built(tmp_path, trace)
    (tmp_path / "run" / "other.json.gz").write_bytes(packed(baseTimeNanoseconds=begin_ns))
    assert not [each for each in trace_document(run)["traceEvents"] if str(each["name"]).startswith("aten::")]


def test_an_imported_trace_is_a_separate_process_and_must_be_of_the_time_of_the_run(tmp_path: Path) -> None:
    run, begin_ns = built(tmp_path)
    beside = parse_torch_trace(packed(baseTimeNanoseconds=begin_ns), "trace t")
    events = trace_document(run, imported={"t.json": beside})["traceEvents"]
    (name,) = [each["pid"] for each in events if each["name"] == "process_name" and each["args"]["name"] == "t.json"]
    assert {each["pid"] for each in events if each["name"] == "gemm"} == {name}
    other = parse_torch_trace(packed(), "trace t")
    with pytest.raises(InvalidValueError, match=r"trace t.json is of another time than the steps of"):
        trace_document(run, imported={"t.json": other})


def test_of_too_many_slices_the_longest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchglass.view.trace._MOST_SLICES", 2)
    run, begin_ns = built(tmp_path)
    trace = parse_torch_trace(packed(baseTimeNanoseconds=begin_ns), "trace t")
    events = trace_document(run, imported={"t.json": trace})["traceEvents"]
    assert [each["name"] for each in events if each.get("cat") in ("cpu_op", "user_annotation", "kernel")] == [
        "step", "aten::linear",
    ]  # fmt: skip


def test_objects_count_against_the_budget_and_not_only_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A megabyte of gzip may hold a hundred million empty lists."""
    budget = MemoryBudget(100 << 20)
    monkeypatch.setattr(memory_budget, "reading_budget", lambda: budget)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b"[" + b"[]," * 1_000_000 + b"[]]"))
    with pytest.raises(MemoryBudgetError, match=r"at most 100 MiB are allowed.*WATCHGLASS_READ_MEMORY"):
        read_torch_trace(tmp_path / "t.json.gz")
    assert budget.used_bytes == 0
    trace = parse_torch_trace(packed([event(f"op{i}", i, 1) for i in range(1000)]), "trace t")
    assert 500_000 < budget.used_bytes < 2_000_000
    del trace
    assert budget.used_bytes == 0


@pytest.mark.parametrize(("text", "most"), [
    (b"[" + b"[]," * 50_000 + b"[]]", 3.0), (b"[" + b"{}," * 50_000 + b"{}]", 5.0),
    (b"[" + b"1.5," * 50_000 + b"1]", 4.0),
    (json.dumps([{f"key {i} {j}": 1000 * i + j for j in range(6)} for i in range(5_000)]).encode(), 4.0),
    (json.dumps(["\u4e2d" * 50] * 5_000, ensure_ascii=False).encode(), 16.0), (packed(EVENTS * 500), 4.0),
])  # fmt: skip
def test_the_estimate_is_above_the_objects_and_not_far_above(text: bytes, most: float) -> None:
    tracemalloc.start()
    try:
        document = json.loads(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert document
    assert 0.7 * peak < torch_trace.object_bytes(text) < most * peak


def test_nested_slices_are_added_up_in_time() -> None:
    nested = [event(f"op{i % 3}", i, 200_000 - 2 * i) for i in range(60_000)]
    rows = {row.name: row for row in parse_torch_trace(packed(nested), "trace t").operators()}
    assert {name: row.calls for name, row in rows.items()} == {"op0": 20_000, "op1": 20_000, "op2": 20_000}
    assert rows["op1"].cpu_s == pytest.approx(0.199998), "the outermost of the name"


def test_windows_that_name_one_trace_parse_it_once_and_no_trace_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, others, parsed = layout.trace(0, "worker_0", 0), layout.trace(0, "worker_1", 0), []
    windows = [OperatorWindow(step, step + 1, (), trace=path if step < 4 else others) for step in range(5)]
    facts = [each.to_fact("torch.profiler") for each in windows]
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, seconds=0.1)] * 5, facts=facts))
    for each in (path, others):
        LocalStore(tmp_path / "run").write(each, gzip.compress(packed()))
    whole = torch_trace.parse_torch_trace
    monkeypatch.setattr(
        torch_trace, "parse_torch_trace", lambda data, what: (parsed.append(what), whole(data, what))[1]
    )
    trace_document(run)
    assert parsed == [path]
    trace_document(run, steps=range(4, 5))
    assert parsed == [path], "no window of these steps keeps a trace of its worker"
