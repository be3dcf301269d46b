"""The card of a run: verdict by the journal, what to try, the course of the loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchglass.records import Verdict
from watchglass.run import Run, open_run
from watchglass.testing import RunBuilder, build_run
from watchglass.view import run_card


def test_a_sick_run_says_what_is_wrong_and_what_to_try(sick_run: Run, sick_verdict: Verdict) -> None:
    shown = run_card(sick_run, sick_verdict)
    assert "class='watchglass-card error'" in shown
    assert "<b>stopped: " in shown
    assert f"Try: {sick_verdict.diagnoses[0].what_to_try[0]}".split("<")[0] in shown
    assert 'aria-label="course of the training loss"' in shown


def test_a_run_that_no_rule_has_judged_is_not_called_healthy(tmp_path: Path) -> None:
    shown = open_run(build_run(tmp_path / "run", [{"scalars": {"mine": 1.0}}]))._repr_html_()
    assert "watchglass-card warning" in shown
    assert "no issues found" not in shown
    assert "<path" not in shown


@pytest.mark.parametrize("workers", [0, 2])
def test_runs_without_data_have_a_card(tmp_path: Path, workers: int) -> None:
    with RunBuilder(tmp_path / "run", workers=max(1, workers)) as builder:
        if workers:
            builder.flush()
    shown = open_run(tmp_path / "run")._repr_html_()
    assert "watchglass-card" in shown
    assert "no issues found" not in shown
