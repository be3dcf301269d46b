from __future__ import annotations

import gc
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clocks import Now
from phased_steps import phased
from real_runs import RealRuns, Watch, batch, classifier, update
from timed_layers import Takes
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Mode, Pause, Severity, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

STEP = phased(data_s=0.01, forward_s=0.03, backward_s=0.06)


def steps(count: int, every: int = 0, **longer: float) -> list[Step]:
    """Steps of 100 ms, of which each ``every``-th takes longer in the given phases, from step 40 on."""
    slow = phased(**{"data_s": 0.01, "forward_s": 0.03, "backward_s": 0.06, **longer})
    return [slow if every and n >= 40 and n % every == 0 else STEP for n in range(count)]


def found(path: Path, run: Sequence[Step], calibration: str = "default", **parameters: object) -> list[Finding]:
    rules = [RuleSpec("StepOutlier", parameters)]
    return list(replay(build_run(path, run), rules, calibration=calibration).findings)


class TestStepOutlier(RuleSuite):
    rule = find_rule("StepOutlier")

    def sick(self) -> Sequence[Step]:
        return steps(120, every=20, other_s=2.0)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        # In the last one each tenth step is stopped for no longer than it takes itself.
        stopped = phased(data_s=0.01, forward_s=0.03, backward_s=0.06, other_s=0.15, pauses={Pause.COLLECTION: 0.15})
        often = [stopped if n % 10 == 9 else STEP for n in range(120)]
        return (steps(120, every=10, data_s=2.0), steps(120, every=15, backward_s=3.0), often)

    def healthy(self) -> Sequence[Step]:
        # Slow first steps, some noise, steps that become slower for good, and one long pause.
        slower = [phased(forward_s=0.9)] * 80
        noisy = [phased(forward_s=0.09 + 0.01 * (n % 7)) for n in range(80)]
        # Collections and saves that take little of the time.
        pauses = [phased(forward_s=0.9, pauses={Pause.COLLECTION: 0.05, Pause.SAVE: 0.01})] * 80
        return [phased(forward_s=9.0), *noisy, phased(forward_s=0.1, other_s=60.0), *slower, *pauses]


def test_the_message_says_where_and_when(run_path: Path) -> None:
    (finding,) = found(run_path, steps(101, every=20, other_s=2.0))
    assert finding.message == (
        "4 training steps took more than 5 times the median of 100 ms, mostly between an update and the next batch, "
        "every 20 steps; they cost 54 % of the time, so without them steps are at most 2.2 times as fast"
    )
    # 69 steps of 100 ms from step 32 on, and four times 2 s.
    assert finding.evidence["gain"] == pytest.approx((6.9 + 8) / 6.9, rel=1e-5)
    assert finding.step == 100
    assert finding.evidence["steps"] == [40, 60, 80, 100]


def test_outliers_after_evaluations_are_told_from_others(run_path: Path) -> None:
    evaluation = Step(mode=Mode.EVAL, scalars={"loss": 1.0}, seconds=0.1)
    run = [each for n, step in enumerate(steps(120, every=16, other_s=2.0))
           for each in ([evaluation, step] if n % 16 == 0 else [step])]  # fmt: skip
    (finding,) = found(run_path, run)
    assert "mostly between an update and the next batch, after evaluations; they cost" in finding.message


@pytest.mark.parametrize(
    ("pause", "spent_s", "cause"),
    [
        (Pause.COLLECTION, 1.9, "garbage_collection"),
        (Pause.COLLECTION, 0.9, "pauses_between_steps"),
        (Pause.SAVE, 0.6, "checkpoints_stop_training"),
        (Pause.SAVE, 0.4, "pauses_between_steps"),
        (Pause.PROFILE, 1.9, "profiler_stops_training"),
        (Pause.PROFILE, 0.9, "pauses_between_steps"),
    ],
)
def test_a_pause_that_takes_enough_of_the_time_is_the_reason(
    run_path: Path, pause: Pause, spent_s: float, cause: str
) -> None:
    """Half for garbage collections and the profiler, a quarter for saves."""
    slow = phased(data_s=0.01, forward_s=0.03, backward_s=0.06, other_s=2.0, pauses={pause: spent_s})
    run = [slow if n >= 40 and n % 20 == 0 else STEP for n in range(101)]
    (finding,) = found(run_path, run)
    assert finding.causes[0] == cause
    words = {
        "garbage_collection": "garbage collection took 7.6 s",
        "checkpoints_stop_training": "torch.save took 2.4 s",
        "profiler_stops_training": "PyTorch's profiler (its start, stop, export or sums) took 7.6 s",
    }
    assert (f"next batch, where {words.get(cause)} of 8 s, every 20 steps" in finding.message) is (cause in words)
    assert finding.evidence["paused_s"][pause.name] == pytest.approx(4 * spent_s)


@pytest.mark.parametrize(
    ("pause", "every", "other_s", "spent_s", "message"),
    [
        # 38 steps from step 32 on, four of which take longer, or four steps alone.
        (Pause.SAVE, 10, 0.2, 0.1, "torch.save wrote in 4 training steps, every 10 steps, which cost 0.8 s, 17 %"),
        (Pause.SAVE, 10, 0.2, 0.05, "torch.save wrote in 4 training steps, every 10 steps, which cost 0.8 s, 17 %"),
        (Pause.SAVE, 10, 0.2, 0.02, ""),
        (Pause.COLLECTION, 10, 0.2, 0.1,
         "Python collected garbage in 4 training steps, every 10 steps, which cost 0.8 s, 17 %"),
        (Pause.COLLECTION, 10, 0.2, 0.04, ""),
        (Pause.COLLECTION, 1, 0.1, 0.1,
         "Python collected garbage in 4 training steps, one after the other, which cost 0.4 s, 50 %"),
        (Pause.COLLECTION, 1, 0.1, 0.01, ""),
    ],
)  # fmt: skip
def test_pauses_of_steps_that_are_no_outliers_cost_as_much(
    run_path: Path, pause: Pause, every: int, other_s: float, spent_s: float, message: str
) -> None:
    slow = phased(data_s=0.01, forward_s=0.03, backward_s=0.06, other_s=other_s, pauses={pause: spent_s})
    findings = found(run_path, [slow if n % every == every - 1 else STEP for n in range(121)])
    assert len(findings) == bool(message)
    for finding in findings:
        gain = f"{finding.evidence['gain']:.1f}"
        assert finding.message == f"{message} of the time, so without that steps are at most {gain} times as fast"
        assert finding.causes[0] == {
            Pause.COLLECTION: "garbage_collection", Pause.SAVE: "checkpoints_stop_training"
        }[pause]  # fmt: skip
        assert finding.evidence["gain"] == pytest.approx(finding.value / (100 - finding.value) + 1)


def test_one_long_pause_is_not_the_reason_of_the_other_outliers(run_path: Path) -> None:
    run = steps(101, every=20, other_s=2.0)
    run[80] = phased(data_s=0.01, forward_s=0.03, backward_s=0.06, other_s=60.0, pauses={Pause.COLLECTION: 59.0})
    *_, last = found(run_path, run)
    assert "garbage" not in last.message
    assert last.evidence["paused_s"] == {"COLLECTION": 59.0}
    assert last.symptoms == ("outliers_between_steps",)


def test_pauses_of_usual_steps_are_no_reason(run_path: Path) -> None:
    usual = phased(data_s=0.01, forward_s=0.03, backward_s=0.06, pauses={Pause.COLLECTION: 0.05})
    run = [phased(forward_s=2.0) if n >= 40 and n % 20 == 0 else usual for n in range(101)]
    by_cause = {finding.causes[0]: finding.message for finding in found(run_path, run)}
    assert by_cause.keys() == {"steps_interrupted", "garbage_collection"}
    assert "garbage" not in by_cause["steps_interrupted"]


@pytest.mark.parametrize(("slow", "count"), [(15, 0), (16, 1), (60, 1)])
def test_steps_that_stay_slow_are_an_info_with_their_first_step(run_path: Path, slow: int, count: int) -> None:
    later = phased(data_s=0.01, forward_s=0.03, backward_s=0.06, other_s=0.8)
    findings = found(run_path, [*steps(40), *[later] * slow, *steps(8)])
    assert len(findings) == count
    for finding in findings:
        assert finding.severity is Severity.INFO
        assert (finding.step, finding.evidence["since_step"]) == (55, 40)
        assert finding.message == (
            "training steps take 9 times as long since step 40: 900 ms in place of 100 ms, mostly between an update "
            "and the next batch"
        )


@pytest.mark.parametrize(
    ("facts", "ours"),
    [({39: {"modules_examined": {"steps": 64}}}, True), ({40: {"modules_examined": {"steps": 64}}}, True),
     ({30: {"modules_examined": {"steps": 64}}}, False), ({}, False),
     ({39: {"modules_examined": {"steps": 64}}, 41: {"first_bad_module": {"level": "next_steps"}}}, False),
     ({39: {"modules_examined": {"steps": 64}, "first_bad_module": {"level": "flags"}}}, True)],
)  # fmt: skip
def test_a_search_for_the_first_bad_module_is_named_where_it_makes_steps_slow(
    run_path: Path, facts: Mapping[int, Any], ours: bool
) -> None:
    later = phased(data_s=0.01, forward_s=0.8, backward_s=0.06)
    run = [replace(step, facts=facts.get(n, {})) for n, step in enumerate([*steps(40), *[later] * 20])]
    (finding,) = found(run_path, run)
    assert finding.message.endswith("mostly in the forward" if not ours else "to find the first bad one")
    assert finding.evidence["modules_examined"] is ours


@pytest.mark.parametrize(("data_s", "count"), [(0.35, 0), (0.45, 1)])
def test_an_outlier_is_beyond_the_factor(run_path: Path, data_s: float, count: int) -> None:
    assert len(found(run_path, steps(120, every=10, data_s=data_s))) == count


def test_outliers_that_cost_little_are_no_finding(run_path: Path) -> None:
    assert found(run_path, steps(400, every=100, other_s=0.6)) == []


def test_short_steps_are_compared_in_milliseconds(run_path: Path) -> None:
    """Ten times a millisecond is what a scheduler of processes takes now and then."""
    run = [phased(forward_s=0.01 if n % 10 == 0 else 0.001) for n in range(200)]
    assert found(run_path, run) == []
    assert len(found(run_path.with_name("strict"), run, least=0.005)) == 1


@pytest.mark.parametrize(("count", "status"), [(31, Status.NOT_APPLICABLE), (32, Status.NO_ISSUES_FOUND)])
def test_a_short_run_is_not_judged(run_path: Path, count: int, status: Status) -> None:
    (found_status,) = replay(build_run(run_path, steps(count)), [RuleSpec("StepOutlier")]).statuses
    assert found_status.status is status
    assert ("the run has 31 training steps" in found_status.reason) is (count == 31)


class TestTheDocumentedStepOutlier:
    def run(self, outliers: int) -> list[Step]:
        return [*[Step(seconds=0.1, mode=Mode.EVAL)] * 20, *steps(1000), *[Step(seconds=5.0)] * outliers]

    @pytest.mark.parametrize(("outliers", "count"), [(10, 0), (11, 1)])
    def test_it_allows_a_number_of_outliers(self, run_path: Path, outliers: int, count: int) -> None:
        findings = found(run_path, self.run(outliers), "sagemaker")
        assert len(findings) == count
        assert all("more than 10 steps took longer than" in each.message for each in findings)

    def test_it_looks_once_in_an_interval(self, run_path: Path) -> None:
        findings = found(run_path, [*self.run(12), *steps(700)], "sagemaker")
        assert [(each.step, each.count) for each in findings] == [(1211, 2)]

    def test_it_counts_the_steps_of_a_mode(self, run_path: Path) -> None:
        assert found(run_path, self.run(12), "sagemaker", mode="EVAL") == []
        assert found(run_path.with_name("train"), self.run(12), "sagemaker", mode="TRAIN")
        assert found(run_path.with_name("few"), self.run(12), "sagemaker", n_outliers=12) == []


PAUSE_S = 0.5


class TestStepOutlierInRealRuns(RealRuns):
    rule = "StepOutlier"
    cause = "pauses_between_steps"
    profiler = True
    reads_more = "no two runs take the same times"

    def rules(self) -> list[RuleSpec]:
        return [RuleSpec(self.rule, {"n_outliers": 2})]

    def train(self, watch: Watch, *, sick: bool) -> None:
        model = classifier().append(Takes(self.clock, 0.005))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        watch(model)
        for step in range(45):
            update(model, optimizer, *batch())
            if sick and step in (34, 38, 42):
                self.pause(model)

    def pause(self, model: nn.Module) -> None:
        """What takes long between two steps."""
        self.clock.advance(PAUSE_S)


class Slow:
    """A part of a cycle, which takes long to collect."""

    def __init__(self, clock: Now) -> None:
        self.clock, self.itself = clock, self

    def __del__(self) -> None:
        self.clock.advance(PAUSE_S)


class TestStepOutlierThatCollectsGarbage(TestStepOutlierInRealRuns):
    cause = "garbage_collection"

    def pause(self, model: nn.Module) -> None:
        Slow(self.clock)
        gc.collect()


class SlowFile(io.BytesIO):
    """A file on a slow disk."""

    def __init__(self, clock: Now) -> None:
        super().__init__()
        self.clock = clock

    def write(self, data: Any) -> int:
        if not self.tell():
            self.clock.advance(PAUSE_S)
        return super().write(data)


class TestStepOutlierThatSaves(TestStepOutlierInRealRuns):
    cause = "checkpoints_stop_training"

    def pause(self, model: nn.Module) -> None:
        torch.save(model.state_dict(), SlowFile(self.clock))


class TestStepOutlierThatProfiles(TestStepOutlierInRealRuns):
    """The script's own profiler, whose objects are collected while it works."""

    cause = "profiler_stops_training"

    def pause(self, model: nn.Module) -> None:
        def collects(profile: torch.profiler.profile) -> None:
            Slow(self.clock)
            gc.collect()

        with torch.profiler.profile(on_trace_ready=collects, activities=[torch.profiler.ProfilerActivity.CPU]):
            torch.ones(2).add(1)
