"""Rules that look at whole tensors: read from the store when asked for, within a bound, live and in replay alike."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import watchglass.evaluate.engine.runner as runner
from moments import views_shown
from watchglass.config import Collection, RuleSpec
from watchglass.errors import StoreError
from watchglass.evaluate import Follower, replay
from watchglass.records import Finding, Mode, Role, Severity, Status, TensorInfo
from watchglass.rules import Needs, Rule, capture_of
from watchglass.store import LocalStore
from watchglass.tables import StepView
from watchglass.testing import RunBuilder

RULES = f"{Path(__file__)}"


class OneClass(Rule):
    """All labels of a batch are alike."""

    needs = (Needs(role=Role.LABEL, raw=True, why="to count classes"),)

    def check(self, view: StepView) -> Iterable[Finding]:
        for name in view.whole(Role.LABEL):
            labels = view.value(name)
            assert labels is not None
            if len(labels) and (labels == labels[0]).all():
                yield self.finding(
                    view, severity=Severity.WARNING, message=f"all {len(labels)} labels are {labels[0]}", tensors=[name]
                )


class Undeclared(Rule):
    """Reads what it has not asked for."""

    def check(self, view: StepView) -> Iterable[Finding]:
        for name in view.whole():
            view.value(name)
        yield from ()


def labelled(run: Path, *batches: Any) -> None:
    with RunBuilder(run, tensors=[TensorInfo(0, "label", Role.LABEL)]) as builder:
        for labels in batches:
            builder.step(scalars={"loss": 1.0}, raw={"label": np.asarray(labels)} if labels is not None else {})
        builder.leave()


def evaluated(run: Path | LocalStore, rule: str = "OneClass") -> Any:
    return replay(run, [RuleSpec(f"{RULES}:{rule}")])


def test_a_rule_reads_labels(run_path: Path) -> None:
    labelled(run_path, [0, 1, 2], [1, 1, 1], None, [2, 0, 1])
    found = evaluated(run_path)
    (finding,) = found.findings
    assert (finding.step, finding.message, finding.tensors) == (1, "all 3 labels are 1", ("label",))
    assert found.statuses[0].status is Status.ISSUES_FOUND


def test_a_rule_that_is_never_given_whole_tensors_starves(run_path: Path) -> None:
    labelled(run_path, *[None] * 4)
    (status,) = evaluated(run_path).statuses
    assert status.status is Status.STARVED
    assert status.reason == "whole labels never came (needed to count classes)"


def test_reading_without_having_asked_is_an_error_of_the_rule(run_path: Path) -> None:
    labelled(run_path, [0, 1])
    (status,) = evaluated(run_path, "Undeclared").statuses
    assert status.status is Status.ERROR
    assert "a tensor of at most 0 bytes may be read here but it has 16; declare Needs(raw=True)" in status.reason


def test_the_bound_is_for_one_rule_at_one_step(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled(run_path, [0, 1], [0, 1], [0, 1, 2])
    monkeypatch.setattr(runner, "MOST_RAW_BYTES", 16)
    (status,) = evaluated(run_path).statuses
    assert status.status is Status.ERROR
    assert "at TRAIN step 2" in status.reason
    assert "at most 16 bytes may be read here but it has 24" in status.reason


def test_a_store_that_refuses_a_tensor_ends_no_rule(run_path: Path) -> None:
    labelled(run_path, [1, 1])

    class Failing(LocalStore):
        refusals = 1

        def map(self, path: str) -> Any:
            if "tensors" in path and self.refusals:
                self.refusals -= 1
                raise StoreError("unreachable")
            return super().map(path)

    found = evaluated(Failing(run_path))
    assert [finding.message for finding in found.findings] == ["all 2 labels are 1"]


def test_a_tensor_that_was_removed_is_an_error_that_says_so(run_path: Path) -> None:
    labelled(run_path, [0, 1])
    for path in run_path.glob("attempts/*/tensors/*"):
        path.unlink()
    (status,) = evaluated(run_path).statuses
    assert status.status is Status.ERROR
    assert "was removed from the run" in status.reason


def test_what_is_needed_whole_is_kept_whole() -> None:
    collections = capture_of([Needs(role=Role.LABEL, raw=True, modes=(Mode.TRAIN,))])["collections"]
    assert Collection("labels", save_raw=True) in collections
    part = Needs(role=Role.WEIGHT, raw=True, name_regex="embed")
    (kept,) = [c for c in capture_of([part, Needs(role=Role.WEIGHT)])["collections"] if c.save_raw]
    assert (kept.include_regex, kept.roles) == (("embed",), (Role.WEIGHT,))


def test_arrays_have_the_shape_and_numbers_of_the_tensor(run_path: Path) -> None:
    seen: list[Any] = []

    class Looks(Rule):
        """Looks."""

        needs = (Needs(role=Role.LABEL, raw=True),)

        def check(self, view: StepView) -> Iterable[Finding]:
            seen.append(np.array(view.value("label")))
            assert view.value("nothing") is None
            yield from ()

    labelled(run_path, [[0.5, np.nan]])
    for views in views_shown(Follower(LocalStore(run_path)).poll(full=True)):
        for view in views:
            list(Looks().check(view))
    assert seen[0].shape == (1, 2)
    np.testing.assert_array_equal(seen[0], [[0.5, np.nan]])
