"""``watchglass import-trace``, and ``trace --import``: a table, JSON, and one line for what is no trace."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Watchglass
from watchglass.testing import Step, build_run

EVENTS = [
    {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 10, "dur": 3000},
    {"ph": "X", "name": "gemm", "cat": "kernel", "pid": 0, "tid": 7, "ts": 20, "dur": 1000},
    {"ph": "X", "name": "lost", "cat": "cpu_op", "pid": 1, "tid": 1},
]


def test_operators_and_kernels_are_tables_and_json(watchglass: Watchglass, in_tmp_path: Path) -> None:
    Path("t.json").write_text(json.dumps({"traceEvents": EVENTS}))
    said = watchglass("import-trace", "t.json")
    assert said.status == 0
    assert "Operators of t.json" in said.out
    assert "Kernels of t.json" in said.out
    assert [line.split()[:3] for line in said.out.splitlines() if "aten" in line] == [["aten::mm", "1", "3"]]
    assert said.err == "watchglass: 1 slice of t.json omitted: without a name, time or length\n"
    rows = json.loads(watchglass("import-trace", "t.json", "--format", "json").out)
    assert [(row["name"], row["calls"], row["on_device"]) for row in rows] == [
        ("aten::mm", 1, False),
        ("gemm", 1, True),
    ]


def test_what_is_no_trace_is_one_line_and_writes_nothing(watchglass: Watchglass, in_tmp_path: Path) -> None:
    run = build_run(in_tmp_path / "run", [Step({"loss": 1.0})] * 3)
    Path("t.json").write_text(json.dumps(EVENTS)[:-5])
    assert "trace t.json is not a trace in Chrome's format" in watchglass("import-trace", "t.json").error
    assert "is not a trace" in watchglass("trace", run, "--import", "t.json", "-o", "o.json").error
    Path("t.json").write_text(json.dumps(EVENTS))
    undated = watchglass("trace", run, "--import", "t.json", "-o", "o.json").error
    assert "states no wall time, so its place in the run is unknown" in undated
    assert "cannot be read: No such file" in watchglass("import-trace", "nosuch.json").error
    assert not Path("o.json").exists()
