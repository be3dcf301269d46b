"""``run.verdict()``: plain objects, of the evaluator or evaluated now; printed and in a notebook."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from watchglass.records import Finding, Mode, RuleStatus, Severity, Status
from watchglass.run import open_run
from watchglass.testing import Step, build_run


def losses(*values: float) -> list[Step]:
    return [Step(scalars={"loss": value}) for value in values]


def test_a_run_that_no_evaluator_has_judged_is_evaluated_now(run_path: Path) -> None:
    path = build_run(run_path, losses(*[1.0] * 12, float("nan"), float("nan")))
    files = sorted(each.name for each in Path(path).rglob("*"))
    verdict = open_run(path).verdict()
    assert (verdict.status, verdict.findings[0].rule, verdict.findings[0].step) == (
        "issues found", "ExplodingTensor", 12
    )  # fmt: skip
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.causes[0].evidence
    assert diagnosis.what_to_try
    with pytest.raises(FrozenInstanceError):
        verdict.status = "no issues found"  # type: ignore[misc]
    assert sorted(each.name for each in Path(path).rglob("*")) == files


def test_the_verdict_of_the_evaluator_is_taken_if_it_reached_the_end(run_path: Path) -> None:
    found = Finding(
        id="1" * 12, rule="Mine", severity=Severity.WARNING, step=3, last_step=3, count=1, mode=Mode.TRAIN,
        worker="worker_0", tensors=(), value=1.0, limit=0.5, message="mine alone",
    )  # fmt: skip
    path = build_run(run_path, losses(*[1.0] * 12), journal=[found, RuleStatus("Mine", Status.ISSUES_FOUND)])
    verdict = open_run(path).verdict()
    assert [each.message for each in verdict.findings] == ["mine alone"]
    assert str(verdict).startswith("1 warning, since step 3\n   seen     ")


def test_a_notebook_shows_it_without_changing_the_notebook(run_path: Path) -> None:
    shown = open_run(build_run(run_path, losses(*[1.0] * 12, float("nan")))).verdict()._repr_html_()
    style, _, page = shown.partition("</style>")
    assert style.startswith("<style>@scope (.watchglass-verdict) {")
    assert ":root" not in style
    assert "<article" in page
    assert "became NaN at step 12" in page
