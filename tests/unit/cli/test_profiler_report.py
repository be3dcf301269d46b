"""``watchglass report --profiler``: the sections, their figures, and the document behind them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import Watchglass
from phased_steps import loader
from watchglass.records import (
    LOADER_WORKERS,
    PHASES,
    Mode,
    ModuleSeconds,
    OperatorTotals,
    OperatorWindow,
    StepModules,
    WindowCost,
)
from watchglass.rules import RULE_SETS
from watchglass.testing import Batch, Step, build_run

#: A third of the time computes; evaluations load less.
TRAIN, EVAL = (0.08, 0.0, 0.0, 0.01, 0.02, 0.01, 0.0, 0.0), (0.01, 0.0, 0.0, 0.03, 0.0, 0.0, 0.0, 0.0)
PARTS = [
    "Training job", "Phases of steps", "Durations of steps", "Machine", "Bottlenecks", "Modules, operators, functions",
    "Data loaders",
]  # fmt: skip
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def run(tmp_path: Path) -> str:
    layer = ModuleSeconds(HOSTILE, "Linear", 0, 1, 0.003, 0.006)
    modules = StepModules((ModuleSeconds("", "Net", 0, 1, 0.001, 0), layer))
    operators = (OperatorTotals("aten::addmm", 4, 0.02, 0.03), OperatorTotals(HOSTILE, 2, 0, 0, 0.004, on_device=True))
    window = OperatorWindow(10, 12, operators, WindowCost(inside_s=0.5, outside_s=0.25)).to_fact("test")
    batches = [(1, -1, 4, 0.4, 0.2, 0.1, 0.0), (1, 0, 2, math.nan, 0.2, 0.1, 0.1)]
    facts = {3: loader(0), 8: {StepModules.KIND: modules.to_data()}}
    rows = {3: {LOADER_WORKERS: batches}}
    steps = [
        Step({"loss": 1.0}, seconds=0.12, rows={PHASES: [TRAIN], **rows.get(n, {})}, facts=facts.get(n, {}))
        for n in range(400)
    ]
    evaluation = [Step({"loss": 1.0}, seconds=0.04, mode=Mode.EVAL, rows={PHASES: [EVAL]}) for _ in range(5)]
    metrics = {
        "cpu.utilization": np.linspace(0, 99, 100).tolist(), "memory.utilization": [40.0] * 100,
        "cpu.core.utilization": [[10.0, 20.0]] * 100, "process.memory": [[1e6]] * 100,
    }  # fmt: skip
    return build_run(tmp_path / "run", [Batch(metrics=metrics, seconds=50), *steps, *evaluation], facts=[window])


@pytest.fixture
def document(run: str, watchglass: Watchglass, tmp_path: Path) -> dict[str, Any]:
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.json").status == 0
    found: dict[str, Any] = json.loads((tmp_path / "p.json").read_text())
    return found


def test_the_job_has_its_stages(document: dict[str, Any]) -> None:
    job = document["job"]
    assert (job["training_steps"], job["evaluation_steps"]) == (400, 5)
    assert job["training_s"] == pytest.approx(48)
    assert job["evaluation_s"] == pytest.approx(0.2)
    # A built step begins with the call of the model, so an evaluation's wait for data lies before it.
    assert job["training_loop_s"] == pytest.approx(48.2 - EVAL[0])
    assert job["initialization_s"] is None  # a built run has no process


def test_the_report_of_a_run_has_the_same_blocks(run: str, watchglass: Watchglass) -> None:
    """Of bottlenecks what the rules of its verdict found; where these are not on time it names the command."""
    assert watchglass("report", run, "-o", "default.html").status == 0
    assert watchglass("check", run, "--rules", "system", "--format", "html", "-o", "system.html").status == 1
    default, system = (
        Path(name).read_text().partition("Time and machine")[2] for name in ("default.html", "system.html")
    )
    assert watchglass("report", "--profiler", run, "-o", "own.html").status == 0
    own = dict(re.findall("<section><h2>(.*?)</h2>(.*?)</section>", Path("own.html").read_text()))
    assert list(own) == PARTS
    for title, blocks in own.items():
        figures, _, tables = blocks.rpartition("</figure>")
        assert f"<details><summary>{title}</summary>{tables}</details>" in system
        assert figures in system
    for title in PARTS:
        assert f"<details><summary>{title}</summary>" in default
    unknown = f"Rules on time and machine were not evaluated. <code>watchglass report --profiler {run}</code>"
    assert unknown in default
    assert unknown not in system
    assert '<dt>Data loading</dt><dd><p><span class="tag warning">warning</span> InputBound: ' in system
    assert "What each rule looks for, and its parameters" in system


def test_figures_are_those_of_the_run(document: dict[str, Any]) -> None:
    usage = {(row["metric"], row["instance"]): row for row in document["system"]}
    assert set(usage) == {
        ("cpu.utilization", ""), ("memory.utilization", ""),
        ("cpu.core.utilization", "0"), ("cpu.core.utilization", "1"),
    }  # fmt: skip
    cpu = usage["cpu.utilization", ""]
    assert [cpu[key] for key in ("min", "p50", "p95", "p99", "max")] == pytest.approx([0, 49.5, 94.05, 98.01, 99])
    assert document["phases"]["TRAIN"]["shares"]["data"] == pytest.approx(2 / 3)
    assert document["phases"]["EVAL"]["shares"]["forward"] == pytest.approx(0.75)
    assert document["durations"]["TRAIN"]["p99"] == pytest.approx(0.12)
    modules = [(row["module"], row["self_s"]) for row in document["modules"]]
    assert modules == [("", 0.001), (HOSTILE, pytest.approx(0.009))]
    (window,) = document["operators"]
    assert (window["first_step"], window["end_step"], window["rows"][0]["calls"]) == (10, 12, 4)
    assert document["data_loaders"][0]["num_workers"] == 0
    first, second = document["loader_workers"]
    assert (first["loader"], first["loader_worker"], first["mean_fetch_s"]) == ("loader", -1, pytest.approx(0.1))
    assert "mean_fetch_s" not in second  # NaN is no number of JSON


def test_the_rules_on_time_are_evaluated_for_it(document: dict[str, Any]) -> None:
    rules = {rule["rule"]: rule for rule in document["rules"]}
    bound = rules["InputBound"]
    assert (bound["status"], bound["times_triggered"] > 0) == ("IssuesFound", True)
    assert bound["looks_for"]
    assert bound["parameters"]
    assert bound["what_to_try"]
    assert rules["LowGPUUtilization"]["status"] == "NotApplicable"
    assert [each["rule"] for each in document["findings"] if each["severity"] != "info"] == ["InputBound"]


def test_the_page_has_all_sections_and_shows_text_of_the_run_as_text(
    run: str, watchglass: Watchglass, tmp_path: Path
) -> None:
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    page = (tmp_path / "p.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == PARTS
    assert page.count("<figure") == 3
    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "LowGPUUtilization: not judged" in page
    assert "Straggler: not judged, one process trains" in page.split("<h2>Bottlenecks</h2>")[1]
    assert "Kernels of training steps 10:12, per step" in page
    assert "Times of a batch, on average" in page
    assert "1 finding on time and machine" in page


def test_each_rule_on_time_has_its_place_among_the_subjects(run: str, watchglass: Watchglass, tmp_path: Path) -> None:
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    section = (tmp_path / "p.html").read_text().split("<h2>Bottlenecks</h2>")[1].split("<h2>")[0]
    subjects = section.split("<details>")[0]
    assert [name for name in RULE_SETS["system"].rules if name not in subjects] == []


def test_what_only_another_rank_shows_names_it(watchglass: Watchglass, tmp_path: Path) -> None:
    steps = [Step({"loss": 1.0}, seconds=0.12, rows={PHASES: [TRAIN]})] * 40
    run = build_run(tmp_path / "run", steps, workers=2)
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    titles = re.findall("</span> (OverallFrameworkMetrics.*?):", (tmp_path / "p.html").read_text())
    assert titles == ["OverallFrameworkMetrics", "OverallFrameworkMetrics on worker_1"]


def test_what_a_rule_finds_in_each_fold_is_one_finding(watchglass: Watchglass, tmp_path: Path) -> None:
    folds = [Step({"loss": 1.0}, seconds=0.12, rows={PHASES: [TRAIN]}, model=fold) for fold in (0, 1, 2)]
    run = build_run(tmp_path / "run", [step for step in folds for _ in range(80)])
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    page = (tmp_path / "p.html").read_text()
    assert "1 finding on time and machine" in page
    # In the headline, and as the bottleneck.
    assert page.count("; also in model_2 and model_3") == 2


def test_a_window_states_its_cost_beside_its_operators(run: str, watchglass: Watchglass, tmp_path: Path) -> None:
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    title = "Operators of training steps 10:12, per step; a step took 500 ms, 250 ms in the steps before"
    assert title in (tmp_path / "p.html").read_text()


def test_an_info_on_a_bottleneck_does_not_stand_above_no_issues_found(watchglass: Watchglass, tmp_path: Path) -> None:
    steps = [Step({"loss": 1.0}, seconds=0.1, rows={PHASES: [(0.012, 0.0, 0.0, 0.02, 0.05, 0.018, 0.0, 0.0)]})] * 100
    run = build_run(tmp_path / "run", steps)
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    loading = (tmp_path / "p.html").read_text().split("<h2>Bottlenecks</h2>")[1].split("GPU utilization")[0]
    assert "info</span> InputBound: 12 % of each training step waits for data" in loading
    assert "InputBound: no issues" not in loading


def test_a_run_without_any_time_says_so(watchglass: Watchglass, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", [Step({"loss": 1.0})] * 3)
    assert watchglass("report", "--profiler", run, "-o", tmp_path / "p.html").status == 0
    page = (tmp_path / "p.html").read_text()
    assert "The machine was not sampled." in page
    assert "The phases of steps were not recorded." in page
    assert "<figure" not in page


def test_an_existing_file_is_refused_before_anything_is_read(watchglass: Watchglass, tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text("mine")
    said = watchglass("report", "--profiler", "nowhere", "-o", tmp_path / "p.html")
    assert "p.html exists; choose another file" in said.error
    assert (tmp_path / "p.html").read_text() == "mine"


def test_without_a_file_the_report_is_inside_the_run(run: str, watchglass: Watchglass) -> None:
    said = watchglass("report", "--profiler", run)
    assert (said.status, said.out.split(" (")[0]) == (0, str(Path(run) / "profiler-report.html"))
    first = (Path(run) / "profiler-report.html").read_text()
    assert watchglass("report", "--profiler", run).status == 0, "it is replaced"
    assert (Path(run) / "profiler-report.html").read_text() == first
