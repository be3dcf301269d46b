"""Traces: what they contain agrees with the run, and they follow the rules of Chrome's format."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from watchglass.errors import InvalidValueError, RunExistsError
from watchglass.records import (
    PHASE_NAMES,
    PHASES,
    Finding,
    Mode,
    OperatorTotals,
    OperatorWindow,
    Severity,
    WindowCost,
)
from watchglass.run import open_run
from watchglass.testing import Batch, Step, build_run
from watchglass.view import trace_document, write_trace

#: Seconds of data, prepare, copy, forward, backward, update and other; nothing prepares or copies.
TRAIN, EVAL = (0.04, 0.0, 0.0, 0.02, 0.03, 0.01, 0.0, 0.02), (0.001, 0.0, 0.0, 0.005, 0.0, 0.0, 0.0, 0.004)
FOUND = Finding(
    id="0" * 12, rule="Overfit", severity=Severity.WARNING, step=5, last_step=7, count=3, mode=Mode.TRAIN,
    worker="worker_1", tensors=("loss",), value=1.0, limit=1.0, message="It overfits.",
)  # fmt: skip


def steps() -> list[Step | Batch]:
    """Ten training steps with an evaluation of two steps after the sixth, and samples during the first one."""
    train = [Step({"loss": 1.0}, seconds=0.12, rows={PHASES: [TRAIN]}) for _ in range(10)]
    evaluation = [Step({"loss": 1.0}, mode=Mode.EVAL, seconds=0.01, rows={PHASES: [EVAL]}) for _ in range(2)]
    metrics = {
        "cpu.utilization": [80.0] * 12,
        "gpu.utilization": [[20.0, float("nan")]] * 12,
        "process.memory": [1.0] * 12,
    }
    return [*train[:6], *evaluation, Batch(metrics=metrics, seconds=0.12), *train[6:]]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return build_run(tmp_path / "run", steps(), workers=2)


def events(document: dict[str, Any], kind: str, **wanted: Any) -> list[dict[str, Any]]:
    return [
        event
        for event in document["traceEvents"]
        if event["ph"] == kind and all(event.get(name) == value for name, value in wanted.items())
    ]


def names(document: dict[str, Any]) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events(document, "M", name="process_name")}


def test_every_rank_is_a_process_with_its_steps_and_phases(path: str) -> None:
    run = open_run(path)
    document = trace_document(run)
    assert names(document) == {1: "worker_0", 2: "worker_1", 3: "system"}
    rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events(document, "M", name="thread_name")}
    assert rows == {(pid, tid): name for pid in (1, 2) for tid, name in ((1, "training steps"), (2, "evaluation"))}
    for pid in (1, 2):
        slices = events(document, "X", pid=pid, cat="step")
        assert [event["name"] for event in slices if event["tid"] == 1] == [f"step {n}" for n in range(10)]
        assert [event["name"] for event in slices if event["tid"] == 2] == ["eval 0", "eval 1"]
        third = [event for event in events(document, "X", pid=pid, tid=1, cat="phase") if event["args"]["step"] == 3]
        assert [event["name"] for event in third] == ["other", "data", "forward", "backward", "update"]
        measured = {event["name"]: event["dur"] / 1e6 for event in third}
        assert measured == pytest.approx({name: TRAIN[PHASE_NAMES.index(name)] for name in measured}, rel=1e-6)
        (whole,) = events(document, "X", pid=pid, name="step 3")
        assert whole["dur"] == pytest.approx(1e6 * run.phases().seconds[3], rel=1e-6)


@pytest.mark.parametrize("seconds", [0.12, 0.1], ids=["exact", "phases longer than the time since the step before"])
def test_slices_are_nested_and_begin_with_the_trace(tmp_path: Path, seconds: float) -> None:
    train = [Step({"loss": 1.0}, seconds=seconds, rows={PHASES: [TRAIN]})] * 4
    evaluation = [Step({"loss": 1.0}, mode=Mode.EVAL, seconds=0.01, rows={PHASES: [EVAL]})] * 2
    document = trace_document(open_run(build_run(tmp_path / "run", [*train, *evaluation, *train], workers=2)))
    assert min(event["ts"] for event in document["traceEvents"] if event["ph"] != "M") == 0
    by_row: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
    for event in events(document, "X"):
        begin = round(1000 * event["ts"])
        by_row[event["pid"], event["tid"], event["cat"]].append((begin, begin + round(1000 * event["dur"])))
    assert len(by_row) == 8
    for (pid, tid, category), slices in by_row.items():
        assert all(one[1] <= other[0] for one, other in pairwise(slices))
        whole = by_row[pid, tid, "step"]
        if category == "phase":
            assert all(any(step[0] <= begin and end <= step[1] for step in whole) for begin, end in slices)


def test_a_finding_is_a_mark_of_its_rank_at_the_end_of_its_step(path: str) -> None:
    run = open_run(path)
    document = trace_document(run, [FOUND])
    (mark,) = events(document, "i")
    (step,) = events(document, "X", pid=2, name="step 5")
    assert (mark["pid"], mark["name"], mark["args"]["message"]) == (2, "Overfit (warning)", "It overfits.")
    assert mark["ts"] == pytest.approx(step["ts"] + step["dur"])
    (other,) = events(trace_document(run, [replace(FOUND, worker="system")]), "i")
    assert (other["pid"], other["name"]) == (1, "Overfit (warning)")


def test_a_profiled_window_lies_over_its_steps_and_names_its_operators(tmp_path: Path) -> None:
    operators = tuple(OperatorTotals(f"aten::{n}", 3, 1 / (1 + n), 2.0) for n in range(30))
    window = OperatorWindow(3, 5, operators, WindowCost(inside_s=0.15, outside_s=0.12))
    run = open_run(build_run(tmp_path / "run", steps(), facts=[window.to_fact("torch.profiler")]))
    document = trace_document(run)
    (shown,) = events(document, "X", cat="operators")
    first, last = (events(document, "X", name=f"step {n}")[0] for n in (3, 4))
    assert (shown["name"], shown["ts"]) == ("operators of steps 3:5", first["ts"])
    assert shown["ts"] + shown["dur"] == pytest.approx(last["ts"] + last["dur"])
    assert list(shown["args"]["self_s"].items())[:2] == [("aten::0", 1.0), ("aten::1", 0.5)]
    assert (len(shown["args"]["self_s"]), shown["args"]["cost"]) == (20, {"inside_s": 0.15, "outside_s": 0.12})
    (row,) = events(document, "M", name="thread_name", tid=shown["tid"])
    assert row["args"]["name"] == "profiled operators"
    assert events(trace_document(run, steps=range(6, 8)), "X", cat="operators") == []


def test_metrics_are_counters_without_numbers_that_were_not_read(path: str) -> None:
    run = open_run(path)
    counters = events(trace_document(run), "C")
    by_name = {event["name"]: event["args"] for event in counters}
    assert by_name == {"cpu.utilization": {"value": 80.0}, "gpu.utilization": {"0": 20.0}}
    assert len(counters) > 12
    assert {event["pid"] for event in counters} == {3}


def test_some_steps_have_what_was_between_them(path: str) -> None:
    run = open_run(path)
    document = trace_document(run, [FOUND], steps=range(4, 7))
    shown = [event["name"] for event in events(document, "X", pid=1, cat="step")]
    assert shown == ["step 4", "step 5", "step 6", "eval 0", "eval 1"]
    assert min(event["ts"] for event in events(document, "X", name="step 4")) == 0
    assert len(events(document, "i")) == 1
    # No sample was taken during these.
    late = trace_document(run, [FOUND], steps=range(7, 9))
    assert events(late, "i") == events(late, "C") == []
    assert names(late) == {1: "worker_0", 2: "worker_1"}


def test_the_file_is_json_also_compressed(path: str, tmp_path: Path) -> None:
    run = open_run(path)
    plain, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    sizes = [write_trace(run, [FOUND], path) for path in (plain, packed)]
    assert sizes == [path.stat().st_size for path in (plain, packed)]
    assert sizes[1] < sizes[0] / 5
    document = json.loads(plain.read_bytes())
    assert document == json.loads(gzip.decompress(packed.read_bytes())) == trace_document(run, [FOUND])
    for event in document["traceEvents"]:
        required = {"M": {"args"}, "X": {"ts", "dur"}, "i": {"ts", "s"}, "C": {"ts", "args"}}[event["ph"]]
        assert {"name", "pid", "tid"} | required <= event.keys()
    with pytest.raises(RunExistsError, match="--force"):
        write_trace(run, [], plain)


def test_steps_without_phases_last_from_the_call_of_the_model(tmp_path: Path) -> None:
    run = open_run(build_run(tmp_path / "run", [Step({"loss": 1.0}, seconds=0.5)] * 3))
    document = trace_document(run)
    assert events(document, "X", cat="phase") == []
    steps = run.table("steps").to_arrow()["seconds"].to_numpy()
    np.testing.assert_allclose([event["dur"] for event in events(document, "X")], 1e6 * steps)


def test_steps_that_the_run_lacks_are_refused(path: str, tmp_path: Path) -> None:
    run = open_run(path)
    with pytest.raises(InvalidValueError, match="no training step of 10:12; it has 0 to 9"):
        trace_document(run, steps=range(10, 12))
    empty = open_run(build_run(tmp_path / "empty", []))
    with pytest.raises(InvalidValueError, match="no complete step yet"):
        trace_document(empty)


def test_too_many_steps_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(path)
    monkeypatch.setattr("watchglass.view.trace.MOST_STEPS", 9)
    with pytest.raises(InvalidValueError, match="at most 9 training steps but got 10; choose some with --steps"):
        trace_document(run)
    assert len(events(trace_document(run, steps=range(9)), "X", cat="step")) == 2 * 11
