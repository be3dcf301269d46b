"""ScriptBound: most of each step is neither loader nor model nor optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phased_steps import phased
from real_runs import RealRuns, Watch, batch, classifier, update
from timed_layers import Takes
from watchglass.config import RuleSpec
from watchglass.diagnose import diagnose
from watchglass.evaluate import replay
from watchglass.records import Fact, Finding, Mode, Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Batch, Step, build_run
from watchglass.testing.rule_suite import RuleSuite

REST = {"forward_s": 0.02, "backward_s": 0.02}


def about(**changes: Mapping[str, Any] | None) -> list[Fact]:
    """Facts of a run on the host."""
    facts: dict[str, Any] = {
        "model": {"module_kinds": {"0": "linear"}, "module_types": {"0": "Linear"}, "devices": ["cpu"]},
        "optimizer": {"type": "Adam", "groups": [{"lr": 0.001}]},
        **changes,
    }
    return [Fact(kind, 0, "test", data) for kind, data in facts.items() if data is not None]


def steps(count: int = 90, facts: list[Fact] | None = None, captures: int = 4, **spent: float) -> list[Step]:
    """Training steps; at each ``captures``-th one, tensors are captured and watchglass takes long in ``other``."""
    step = phased(**{**REST, **spent})
    ours = phased(**{**REST, **spent, "other_s": spent.get("other_s", 0.0) + 9.0})
    ours = replace(ours, statistics={"0.weight": np.ones((2, 2), np.float32)})
    made = [ours if n % captures == captures - 1 else step for n in range(count)]
    return [replace(made[0], facts=about() if facts is None else facts), *made[1:]]


def found(path: Path, run: Sequence[Step | Batch]) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("ScriptBound")]).findings)


class TestScriptBound(RuleSuite):
    rule = find_rule("ScriptBound")

    def sick(self) -> Sequence[Step]:
        return steps(other_s=0.06)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        return (steps(prepare_s=0.05), steps(40, other_s=0.03, prepare_s=0.03))

    def healthy(self) -> Sequence[Step]:
        # Less than half, one long pause in ten steps, and an evaluation.
        pauses = [phased(**REST, other_s=2.0 if n % 10 == 9 else 0.015) for n in range(60)]
        return [*steps(other_s=0.015, prepare_s=0.02), *[phased(Mode.EVAL, other_s=1.0)] * 8, *pauses]


def test_the_message_has_time_place_and_gain(run_path: Path) -> None:
    (finding,) = found(run_path, steps(40, other_s=0.05, prepare_s=0.01))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "60 ms of each training step of 100 ms (60 %) are spent outside of loader, model and optimizer, mostly before "
        "the model is called (no DataLoader is read, so making batches is a part of it); without this time steps are "
        "at most 2.5 times as fast"
    )
    assert finding.evidence["gain"] == pytest.approx(2.5)
    assert finding.symptoms == ("script_takes_most",), "no GPU waits"


def test_where_a_loader_is_read_the_place_is_named_by_it(tmp_path: Path) -> None:
    (before,) = found(tmp_path / "other", steps(40, data_s=0.01, other_s=0.05))
    assert ", mostly before the next batch; without" in before.message
    (after,) = found(tmp_path / "prepare", steps(40, data_s=0.01, prepare_s=0.05))
    assert ", mostly between the arrival of a batch and the call of the model; without" in after.message


@pytest.mark.parametrize(
    "run",
    [
        [*steps(48, other_s=0.06), *steps(60, other_s=0.01)[1:]],  # the later window does not have it
        steps(other_s=0.039),
        [phased(**{name: seconds / 100 for name, seconds in {**REST, "other_s": 0.09}.items()}) for _ in range(90)],
        steps(captures=2, other_s=0.039),
    ],
)
def test_less_than_most_is_no_finding(run_path: Path, run: list[Step]) -> None:
    assert found(run_path, [replace(run[0], facts=about()), *run[1:]]) == []


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (steps(20, other_s=0.06), "the run has 9 training steps without a capture, after the first 8; 16 are needed"),
        (
            steps(captures=1, other_s=0.06),
            "the run has 0 training steps without a capture, after the first 8; 16 are needed",
        ),
        (steps(facts=about(model=None), other_s=0.06), "the device of the model is not known"),
        (
            steps(facts=about(model={"devices": ["cuda"]}), other_s=0.06),
            "the model is on cuda, and no sample shows how long its GPUs are idle",
        ),
        (
            steps(facts=about(optimizer=None), other_s=0.06),
            "the script writes its updates itself, so other work may be a part of them",
        ),
        (
            steps(facts=about(optimizer={"type": "LBFGS", "groups": [{}]}), other_s=0.06),
            "LBFGS computes forwards and backwards within its step",
        ),
        (steps(forward_s=0.0, other_s=0.06), "the forward or the backward of the steps was not seen"),
        (steps(other_s=0.01), ""),
    ],
)
def test_where_phases_show_something_else_the_rule_does_not_apply(run_path: Path, run: list[Step], reason: str) -> None:
    evaluation = replay(build_run(run_path, run), [RuleSpec("ScriptBound")])
    (status,) = evaluation.statuses
    assert (status.status, status.reason) == (Status.NOT_APPLICABLE if reason else Status.NO_ISSUES_FOUND, reason)
    assert evaluation.findings == ()


@pytest.mark.parametrize(("busy", "gain"), [(10.0, 2.5), (40.0, 2.5), (45.0, 2.22), (60.0, None)])
def test_on_a_gpu_only_so_much_counts_as_it_is_idle(run_path: Path, busy: float, gain: float | None) -> None:
    samples = Batch(metrics={"gpu.utilization": [[busy]] * 4}, seconds=2)
    findings = found(run_path, [samples, *steps(facts=about(model={"devices": ["cuda"]}), captures=1000, other_s=0.06)])
    assert [finding.evidence["gain"] for finding in findings] == ([pytest.approx(gain, rel=0.01)] if gain else [])
    if gain:
        assert f", while the GPUs are idle {100 - busy:.0f} % of the time; without" in findings[0].message
        assert findings[0].symptoms == ("script_takes_most", "gpus_idle_beside_script")


@pytest.mark.parametrize(("others", "fires"), [(0.06, True), (0.0, False)])
def test_what_one_rank_does_alone_is_no_finding(run_path: Path, others: float, fires: bool) -> None:
    together = zip(steps(captures=1000, other_s=0.06), steps(captures=1000, other_s=others), strict=True)
    run = [replace(step, workers=[rank]) for ranks in together for rank, step in enumerate(ranks)]
    findings = replay(build_run(run_path, run, workers=2), [RuleSpec("ScriptBound")]).findings
    assert [", on each of 2 ranks, mostly" in finding.message for finding in findings] == [True] * fires


def course(count: int, spent_s: Callable[[int], float]) -> list[Step]:
    """Training steps whose time in ``other`` depends on their number."""
    made = [phased(**REST, other_s=round(spent_s(n), 6)) for n in range(count)]
    return [replace(made[0], facts=about()), *made[1:]]


def test_time_that_grows_from_step_to_step_is_named_with_its_course(run_path: Path) -> None:
    findings = found(run_path, course(8 + 32 * 8, lambda n: 0.02 + 0.0004 * n))
    growth = next(finding for finding in findings if finding.evidence["subject"] == "growth")
    assert growth.message == (
        "what the script does outside of loader, model and optimizer takes longer from step to step: 35.8 ms of each "
        "around step 39, 113 ms around step 231; at step 263 steps are at most 3.8 times as fast without this time"
    )
    assert growth.severity is Severity.WARNING
    (first,) = diagnose(findings)
    assert first.causes[0].cause.id == "work_grows_with_steps"
    assert "takes longer from step to step" in first.headline


@pytest.mark.parametrize(
    ("spent_s", "grows"),
    [
        (lambda n: 0.05 + 0.001 * n, True),
        (lambda n: 0.1 + 0.0005 * (n // 200), False),  # hardly
        (lambda n: 0.06 if n < 300 else 0.2, False),  # once
        (lambda n: 0.05 + 0.1 * (1 - 0.5 ** (n / 40)), False),  # to a level
        (lambda n: 0.06 + 0.06 * (n % 200) / 200, False),  # again in each epoch
        (lambda n: 0.06, False),
    ],
)
def test_only_growth_in_every_part_counts(run_path: Path, spent_s: Callable[[int], float], grows: bool) -> None:
    findings = found(run_path, course(600, spent_s))
    assert findings, "the script takes most of each step"
    assert any(finding.evidence["subject"] == "growth" for finding in findings) is grows


class TestScriptBoundInRealRuns(RealRuns):
    rule = "ScriptBound"
    cause = "script_busy_in_each_step"
    profiler = True
    reads_more = "no two runs take the same times"

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        super().record(run, {**capture, "save_interval": 8}, sick=sick)

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier().append(Takes(self.clock, 0.001))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        for _ in range(60):
            update(model, optimizer, *batch())
            if sick:
                self.clock.advance(0.01)  # a log of a service that answers late
