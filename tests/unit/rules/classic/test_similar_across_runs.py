"""SimilarAcrossRuns: the first difference between two runs."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray

import watchglass
from real_runs import RealRuns, Watch, classifier, fit
from synthetic_steps import MODULES, training
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Evaluation, Status
from watchglass.rules import capture_for, find_rule
from watchglass.testing import Step, build_run

RULE = "SimilarAcrossRuns"


def compared(path: Path, steps: Sequence[Step], other: Sequence[Step], **parameters: Any) -> Evaluation:
    runs = [str(build_run(path / name, each, modules=MODULES)) for name, each in (("ours", steps), ("theirs", other))]
    return replay(runs[0], [RuleSpec(RULE, {"other_run": runs[1], **parameters})])


def from_step(first: int, change: Callable[[dict[str, NDArray[Any]]], None]) -> list[Step]:
    return training(40, change=lambda n, arrays: change(arrays) if n >= first else None)


def shifted(by: float) -> Callable[[dict[str, NDArray[Any]]], None]:
    def change(arrays: dict[str, NDArray[Any]]) -> None:
        arrays["middle.weight"] = arrays["middle.weight"] + by
        arrays["readout.weight"] = arrays["readout.weight"] + 2 * by

    return change


def test_equal_runs_do_not_differ(run_path: Path) -> None:
    evaluation = compared(run_path, training(40), training(40), rtol=0, atol=0)
    assert evaluation.findings == ()
    assert evaluation.statuses[0].status is Status.NO_ISSUES_FOUND


def test_the_first_step_and_there_the_first_tensor_are_named(run_path: Path) -> None:
    (finding,) = compared(run_path, from_step(7, shifted(0.5)), training(40)).findings
    assert (finding.step, finding.tensors, finding.count) == (7, ("middle.weight",), 10)
    assert "and so do 1 more tensors" in finding.message
    assert finding.causes == ("runs_differ",)


@pytest.mark.parametrize(("tolerance", "found"), [({"rtol": 0, "atol": 0}, True), ({}, False)])
def test_by_a_tolerance_or_by_bits(run_path: Path, tolerance: dict[str, float], found: bool) -> None:
    assert bool(compared(run_path, from_step(3, shifted(1e-7)), training(40), **tolerance).findings) is found


def test_a_scalar_that_differs_where_no_tensor_does(run_path: Path) -> None:
    changed = training(40, loss=lambda n: 9.0 if n == 20 else 2.3 * 0.99**n + 0.01)
    (finding,) = compared(run_path, changed, training(40)).findings
    assert (finding.step, finding.tensors) == (20, ("loss",))


def test_it_says_why_nothing_was_compared(run_path: Path) -> None:
    run = build_run(run_path / "one", training(4), modules=MODULES)
    (status,) = replay(run, [RuleSpec(RULE)]).statuses
    assert (status.status, status.reason[:20]) == (Status.NOT_APPLICABLE, "other_run is not set")
    (status,) = compared(run_path / "two", training(4), []).statuses
    assert status.status is Status.NOT_APPLICABLE


def test_its_documentation_is_complete() -> None:
    assert "Fires when" in (find_rule(RULE).__doc__ or "")


@functools.cache
def reference() -> str:
    """The run that both are compared with."""
    run = Path(tempfile.mkdtemp()) / "run"
    torch.manual_seed(0)
    model = classifier()
    with watchglass.watch(model, run=run, **{**capture_for([RuleSpec(RULE)]), "save_interval": 1}):
        fit(model, lambda model: None, steps=12)
    return str(run)


class TestSimilarAcrossRunsInRealRuns(RealRuns):
    rule = "SimilarAcrossRuns"
    cause = "runs_differ"
    reads_more = "it compares all that both runs have captured"

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(RULE, {"other_run": reference()})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        torch.manual_seed(0)
        fit(classifier(), watch, rate=0.06 if sick else 0.05, steps=12)
