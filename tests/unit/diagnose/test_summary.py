"""What lists say about a run, and when a run is read for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchglass.diagnose import BEING_READ, Summaries, preview_of, summary, summary_of
from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.run import ListedRun, Run, open_run, open_runs
from watchglass.store import FrameKind, JournalWriter, LocalStore, SegmentWriter, encode_frame
from watchglass.testing import RunBuilder, Step, build_run


def finding(number: int, worker: str, severity: Severity = Severity.WARNING, step: int = 3) -> Finding:
    return Finding(
        f"{number:012x}", "SlowWorker", severity, step, step, 1, Mode.TRAIN, worker, (), None, None, "it is slow"
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How runs were opened."""
    found: list[dict[str, Any]] = []

    def noted(location: str, **given: Any) -> Run:
        found.append(given)
        return open_run(location, **given)

    monkeypatch.setattr(summary, "open_run", noted)
    return found


def listed(path: str) -> ListedRun:
    return open_runs(path).listed[0]


def test_a_summary_has_the_verdict_the_progress_and_the_numbers(tmp_path: Path) -> None:
    steps = [Step({"loss": 1.0 / (n + 1)}, facts={"planned_steps": {"steps": 8}} if n == 0 else {}) for n in range(4)]
    steps.append(Step({"loss": 7.0}, mode=Mode.EVAL))
    journal = [finding(1, "worker_0"), RuleStatus("SlowWorker", Status.ISSUES_FOUND)]
    found = summary_of(open_run(build_run(tmp_path / "run", steps, journal=journal)))
    assert (found.state, found.findings, found.worst, found.tone) == ("finished", 1, "warning", "warning")
    assert "1 warning" in found.headline
    assert (found.train_steps, found.planned_train_steps, found.eval_steps, found.done_ratio) == (4, 8, 1, 0.5)
    assert (found.loss, found.validation_loss, found.losses[0]) == (0.25, 7.0, 1.0)
    assert (found.attempts, found.workers, found.models, found.accused) == (1, 1, 1, ())
    assert found.seconds_left is None  # it has ended


def test_a_run_that_has_ended_is_read_again_where_a_file_has_changed(
    tmp_path: Path, opened: list[dict[str, Any]]
) -> None:
    path = build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}])
    summaries = Summaries()
    assert summaries.of(listed(path)) == summaries.of(listed(path))
    assert len(opened) == 1
    with JournalWriter(LocalStore(path)) as journal:
        journal.write([finding(1, "worker_0")])
    assert summaries.of(listed(path)).findings == 1
    assert len(opened) == 2


def test_a_run_that_goes_on_is_read_each_time(tmp_path: Path, opened: list[dict[str, Any]]) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step({"scalars": {"loss": 1.0}})
        summaries = Summaries()
        assert [summaries.of(listed(builder.store.location)).live for _ in range(2)] == [True, True]
        assert len(opened) == 2


def test_a_run_that_cannot_be_read_has_its_problem(tmp_path: Path) -> None:
    path = build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}])
    of = listed(path)
    (tmp_path / "run" / "run.json").write_text("{")
    found = Summaries().of(of)
    assert "not JSON" in found.problem
    assert (found.read, found.live) == (True, False)


def test_statistics_are_not_decoded_for_a_list(tmp_path: Path) -> None:
    path = build_run(tmp_path / "run", [{"scalars": {"loss": 1.0}}], status=None)
    SegmentWriter(LocalStore(path), 0, "worker_0").write([encode_frame(FrameKind.STATISTICS, b"no Arrow stream")])
    run = open_run(path)
    summary_of(run)
    assert run.snapshot().problems == []
    assert len(run.problems) == 1


def test_a_run_of_many_workers_has_a_preview_by_its_journal_and_first_worker(
    tmp_path: Path, opened: list[dict[str, Any]]
) -> None:
    journal = [
        finding(1, "worker_7"), finding(2, "worker_69", Severity.ERROR, 5), finding(3, "worker_7"),
        finding(4, "worker_9"),
    ]  # fmt: skip
    path = build_run(tmp_path / "run", [{"scalars": {"loss": 0.5}}], workers=70, journal=journal)
    found = preview_of(listed(path))
    assert found is not None
    assert opened == [{"workers": ["worker_0"]}]
    assert (found.state, found.workers, found.train_steps, found.loss) == (BEING_READ, 70, 1, 0.5)
    assert found.worst == "error"
    assert not found.live
    assert found.accused == (
        ("worker_69", "error", 1, 5), ("worker_7", "warning", 2, 3), ("worker_9", "warning", 1, 3)
    )  # fmt: skip


def test_a_run_of_few_workers_has_no_preview(tmp_path: Path, opened: list[dict[str, Any]]) -> None:
    assert preview_of(listed(build_run(tmp_path / "run", [{"scalars": {"loss": 0.5}}], workers=2))) is None
    assert opened == []
