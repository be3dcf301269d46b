"""The verdict joins what was found with how the run went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phased_steps import phased
from watchglass.config import RuleSpec
from watchglass.control import Commit, Stop, encode
from watchglass.diagnose import verdict
from watchglass.errors import InvalidValueError
from watchglass.evaluate import replay
from watchglass.records import Failure, Finding, Mode, Observation, RuleStatus, Severity, Status, facts
from watchglass.run import open_run, state_of
from watchglass.store import JournalWriter, LocalStore, layout, open_store, write_launch_end
from watchglass.testing import Batch, RunBuilder, Silence, Step, build_run
from watchglass.view import (
    Judged,
    Terms,
    explain_verdict,
    headline,
    junit_document,
    not_answered,
    verdict_text,
)

LAYER = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
HEALTHY = [
    Step(
        scalars={"loss": 1.0 / (n + 1)},
        statistics={
            "fc.weight": LAYER / (n + 9), "gradient/fc.weight": LAYER / 1e2, "update/fc.weight": LAYER / 1e4,
            "fc.output": LAYER,
        },
    )
    for n in range(10)
]  # fmt: skip
PLAN = {"planned_steps": {"steps": 40, "source": "--planned-steps"}}


def test_a_healthy_run(run_path: Path) -> None:
    evaluation = [Step(scalars={"loss": 0.5, "accuracy": 0.75}, mode=Mode.EVAL, weight=w) for w in (10, 30)]
    found = verdict(open_run(build_run(run_path, [*HEALTHY, *evaluation], facts=PLAN)), replay(run_path))
    assert found.status == "no issues found"
    assert found.diagnoses == ()
    assert (found.train_steps, found.planned_train_steps, found.seconds_saved) == (10, 40, None)
    assert found.metrics == pytest.approx({"validation accuracy": 0.75, "validation loss": 0.5, "training loss": 0.1})
    assert found.capture == {"dropped_rows": 0, "steps": 12}


def test_a_stopped_run_says_what_was_saved(run_path: Path) -> None:
    sick = [Step(scalars={"loss": float("nan")})] * 10
    found = verdict(open_run(build_run(run_path, sick, facts=PLAN, status="stopped")), replay(run_path))
    assert found.status == "stopped"
    assert (found.steps_saved, found.price_per_hour, found.cost_saved) == (30, None, None)
    assert found.seconds_saved == pytest.approx(3.0)
    assert [finding.severity for finding in found.findings] == [Severity.ERROR]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (Stop("the loss is flat"), "the loss is flat"),
        (Stop("x" * 400), "x" * 299 + "…"),
        (Stop("DeadRelu: units are dead", "0123456789ab"), ""),  # the finding is in the verdict
    ],
)
def test_a_stopped_run_says_why_a_person_or_program_stopped_it(run_path: Path, stop: Stop, reason: str) -> None:
    path = build_run(run_path, HEALTHY, status="stopped")
    LocalStore(path).write(layout.control_commit("stop", 0, 0), encode(Commit(3, stop), 0))
    found = verdict(open_run(path))
    assert found.stop_reason == reason
    lines = verdict_text(found, width=1000).splitlines()
    assert (f"the reason given for the stop: {reason}" in lines) == bool(reason)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"at_step": 3, "reason": 7}'])
def test_a_stop_whose_reason_makes_no_sense_has_none(run_path: Path, data: bytes) -> None:
    path = build_run(run_path, HEALTHY, status="stopped")
    LocalStore(path).write(layout.control_commit("stop", 0, 0), data)
    assert verdict(open_run(path)).stop_reason == ""


def test_a_run_that_was_killed_after_the_commit_was_stopped(run_path: Path) -> None:
    journal = [Observation("stop_committed", 0), Observation("worker_stopped", 0, None, {"signal": "SIGTERM"})]
    assert verdict(open_run(build_run(run_path, HEALTHY, status=None, journal=journal))).status == "stopped"


@pytest.mark.parametrize(
    ("saved", "expected"),
    [((2, 4, 7), 4), ((7,), None), ((5, 6), None), ((), None)],
)
def test_a_diagnosis_has_the_last_weights_that_were_saved_before_it_began(
    run_path: Path, saved: tuple[int, ...], expected: int | None
) -> None:
    steps = [Step(scalars={"loss": float("nan") if n >= 5 else 1.0}) for n in range(10)]
    kind = facts.SavedCheckpoint
    stored = [kind(step, f"run/{step}.pt", weights=True).to_fact("torch.save") for step in saved]
    stored.append(kind(4, "optimizer.pt", optimizer=True).to_fact("torch.save"))
    found = verdict(open_run(build_run(run_path, steps, facts=stored)), replay(run_path))
    (diagnosis,) = found.diagnoses
    assert diagnosis.step == 5
    assert (None if diagnosis.checkpoint is None else diagnosis.checkpoint.step) == expected
    sentence = "weights were last saved after step 4: run/4.pt"
    assert [sentence in row.text for row in explain_verdict(found)].count(True) == (expected is not None)


def test_weights_that_were_saved_before_a_run_became_slow_are_not_named(run_path: Path) -> None:
    slow = Finding("1", "StepOutlier", Severity.WARNING, 6, 9, 4, Mode.TRAIN, "worker_0", (), 3.0, 1.0, message="slow")
    stored = [facts.SavedCheckpoint(2, weights=True).to_fact("torch.save")]
    found = verdict(open_run(build_run(run_path, HEALTHY, facts=stored, journal=[slow])))
    assert [each.checkpoint for each in found.diagnoses] == [None]


def test_a_run_that_ctrl_c_ended_is_interrupted(run_path: Path) -> None:
    build_run(run_path, HEALTHY[:3], status=None)
    failure = Failure("interrupt", file="train.py", line=5)
    write_launch_end(open_store(str(run_path)), 0, rank=0, world_size=1, exit_status=130, pid=0, failure=failure)
    found = verdict(open_run(run_path), replay(run_path))
    assert (found.status, headline(found)) == ("interrupted", "interrupted after 3 training steps: Ctrl-C (train.py:5)")
    assert not_answered(found, Terms()).startswith("the run was interrupted by Ctrl-C (train.py:5); accept")
    assert not_answered(found, Terms(allow_unfinished=True)) == found.unjudged
    assert state_of(open_run(run_path)) == "interrupted"
    assert "failed" not in verdict_text(found, verbose=True) + junit_document(Judged([found], Terms()))


@pytest.mark.parametrize(
    ("steps", "status", "expected"),
    [
        (HEALTHY, None, "failed"),
        (HEALTHY, "failed", "failed"),
        (HEALTHY[:1], "finished", "not judged"),
        ([Step(scalars={"loss": 1.0 / (n + 1)}) for n in range(10)], "finished", "not judged"),
        ([], "finished", "no data"),
        ([Step(scalars={"loss": 1.0}, mode=Mode.EVAL)], "finished", "no data"),
        ([Step(scalars={"loss": float("nan")})], "finished", "issues found"),
        ([Step(scalars={"loss": float("nan")})], None, "failed"),
    ],
)
def test_statuses(run_path: Path, steps: list[Step], status: str | None, expected: str) -> None:
    assert verdict(open_run(build_run(run_path, steps, status=status)), replay(run_path)).status == expected


def test_a_run_that_goes_on_is_incomplete(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        for step in HEALTHY:
            builder.step(step)
        assert verdict(open_run(run_path), replay(run_path)).status == "incomplete"


def test_a_later_attempt_that_nobody_evaluated_is_not_judged_by_the_first(run_path: Path) -> None:
    build_run(run_path, HEALTHY, journal=[RuleStatus("Overfit", Status.NO_ISSUES_FOUND)])
    assert verdict(open_run(run_path)).status == "no issues found"
    build_run(run_path, HEALTHY)
    found = verdict(open_run(run_path))
    assert (found.status, found.unjudged.partition(";")[0]) == (
        "not judged", "its rules have not been evaluated to the end",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("journal", "why"),
    [
        ([], "its rules have not been evaluated"),
        ([RuleStatus("Overfit", Status.IN_PROGRESS)], "its rules have not been evaluated to the end"),
    ],
)
def test_a_run_whose_rules_were_not_evaluated_is_not_called_healthy(
    run_path: Path, journal: list[RuleStatus], why: str
) -> None:
    found = verdict(open_run(build_run(run_path, HEALTHY, journal=journal)))
    assert (found.status, headline(found)) == ("not judged", f"not judged: {why}; `watchglass check` evaluates them")


def test_a_run_whose_rules_are_being_evaluated_is_only_incomplete(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        for step in HEALTHY:
            builder.step(step)
        with JournalWriter(builder.store) as writer:
            writer.write([RuleStatus("Overfit", Status.IN_PROGRESS)])
        found = verdict(open_run(run_path))
    assert (found.status, found.unjudged) == ("incomplete", "")


def test_a_price_says_what_a_stop_has_saved(run_path: Path) -> None:
    run = build_run(run_path, HEALTHY, facts=PLAN, status="stopped")
    found = verdict(open_run(run), price_per_hour=36.0)
    assert (found.price_per_hour, found.cost_saved) == (36.0, pytest.approx(0.03))
    assert verdict(open_run(run), price_per_hour=0.0).cost_saved == 0.0


def test_a_run_that_was_not_stopped_saves_nothing(run_path: Path) -> None:
    found = verdict(open_run(build_run(run_path, HEALTHY, facts=PLAN)), price_per_hour=36.0)
    assert (found.steps_saved, found.seconds_saved, found.cost_saved) == (None, None, None)


def test_without_a_plan_what_was_saved_is_not_known(run_path: Path) -> None:
    found = verdict(open_run(build_run(run_path, HEALTHY, status="stopped")), price_per_hour=36.0)
    assert (found.steps_saved, found.seconds_saved, found.cost_saved) == (None, None, None)


def test_a_run_past_its_plan_saves_nothing_when_it_is_stopped(run_path: Path) -> None:
    plan = {"planned_steps": {"steps": 4, "source": "--planned-steps"}}
    found = verdict(open_run(build_run(run_path, HEALTHY, facts=plan, status="stopped")), price_per_hour=36.0)
    assert (found.steps_saved, found.seconds_saved, found.cost_saved) == (0, 0.0, 0.0)


def test_what_was_saved_counts_from_where_a_resumed_training_stood(run_path: Path) -> None:
    plan = {"planned_steps": {"steps": 100, "source": "--planned-steps"}}
    for start, resumed in ((0, None), (40, {"start_step": 40, "source": "optimizer"})):
        with RunBuilder(run_path, resumed=resumed) as builder:
            builder.facts(plan)
            for _ in range(start, start + 40):
                builder.step(scalars={"loss": 1.0}, flush=False)
            builder.leave("stopped" if resumed else "finished")
    found = verdict(open_run(run_path), price_per_hour=36.0)
    assert (found.train_steps, found.steps_saved, found.attempt) == (80, 20, 1)
    # The clock of the second attempt begins again: what lies between the two is no step, and none takes negative time.
    assert found.seconds_saved == pytest.approx(20 * 0.1)
    assert found.cost_saved == pytest.approx(0.02)


def test_what_was_saved_of_a_training_run_that_was_resumed_into_a_new_run(run_path: Path) -> None:
    with RunBuilder(run_path, resumed={"start_step": 35, "source": "optimizer"}) as builder:
        builder.facts(PLAN)
        for _ in range(2):
            builder.step(scalars={"loss": 1.0})
        builder.leave("stopped")
    found = verdict(open_run(run_path))
    assert (found.train_steps, found.steps_saved) == (2, 3)


def stopped_after(
    run_path: Path, seconds: list[tuple[float, bool]], evaluations: dict[int, float] | None = None
) -> float:
    """What a stop has saved per step, of a training run whose steps took so long and were captured or not."""
    weight = {"fc.weight": np.ones((2, 2), np.float32)}
    steps = []
    for number, (step_s, captured) in enumerate(seconds):
        steps.append(Step(scalars={"loss": 1.0}, statistics=weight if captured else {}, seconds=step_s))
        if number in (evaluations or {}):
            steps.append(Step(scalars={"loss": 1.0}, mode=Mode.EVAL, seconds=(evaluations or {})[number]))
    plan = {"planned_steps": {"steps": len(seconds) + 1000, "source": "--planned-steps"}}
    found = verdict(open_run(build_run(run_path, steps, facts=plan, status="stopped")))
    assert found.steps_saved == 1000
    assert found.seconds_saved is not None
    return found.seconds_saved / 1000


def test_slow_first_steps_say_little_of_the_time_saved(run_path: Path) -> None:
    """The first step sets everything up, and all of the first ones are captured."""
    first = [(2.0, True), *[(0.2, True)] * 3, (0.05, True), *[(0.2, True)] * 4]
    assert stopped_after(run_path, first) == pytest.approx(0.05)


def test_steps_that_were_not_captured_show_the_time_saved(run_path: Path) -> None:
    first = [(2.0, True), *[(0.2, True)] * 15]
    later = [(0.01, False)] * 40
    assert stopped_after(run_path, [*first, *later, (0.3, True), *later]) == pytest.approx(0.01)


def test_where_every_step_is_captured_later_ones_would_have_been_too(run_path: Path) -> None:
    assert stopped_after(run_path, [(2.0, True), *[(0.2, True)] * 60]) == pytest.approx(0.2)


def test_evaluations_count_and_a_machine_that_slept_does_not(run_path: Path) -> None:
    later = [(0.01, False)] * 40
    slept = [*later, (3600.0, False), *later]
    assert stopped_after(run_path, slept, evaluations={20: 8.1}) == pytest.approx(0.01 + 8.1 / 80 + 0.09 / 80, rel=0.05)


CAUSES = """
[causes.cold_coffee]
title = "the coffee is cold"
explanation = "Nobody looks."
what_to_try = ["Make new coffee"]
[symptoms.cup_is_cold]
means = "the cup is cold"
[links]
cup_is_cold = { cold_coffee = 0.9 }
"""


def test_files_of_causes_are_known_to_diagnoses_and_findings(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(CAUSES)
    cold = Finding(
        "0", "Cup", Severity.WARNING, 3, 3, 1, Mode.TRAIN, "worker_0", (), None, None, "brr", evidence={
            "symptoms": ["cup_is_cold"]
        },
    )  # fmt: skip
    run = open_run(build_run(run_path, HEALTHY, journal=[cold]))
    assert verdict(run).diagnoses[0].causes == ()
    found = verdict(run, causes=[str(tmp_path / "mine.toml")])
    assert found.diagnoses[0].headline == "The coffee is cold: brr"
    assert (found.findings[0].causes, found.findings[0].what_to_try) == (("cold_coffee",), ("Make new coffee",))
    (tmp_path / "mine.toml").write_text("[cause]")
    with pytest.raises(InvalidValueError, match="cause is unknown"):
        verdict(run, causes=[str(tmp_path / "mine.toml")])


def test_what_a_rule_rules_out_is_no_cause(run_path: Path) -> None:
    finding = Finding(
        "a", "WeightUpdateRatio", Severity.WARNING, 3, 3, 1, Mode.TRAIN, "worker_0", (), 2.0, 1.0, "large updates",
        evidence={"symptoms": ["update_ratio_large"]},
    )  # fmt: skip
    run = open_run(build_run(run_path, HEALTHY, journal=[finding]))
    causes = {ranked.cause.id for ranked in verdict(run).diagnoses[0].causes}
    assert causes == {"learning_rate_too_high", "dying_relu"}
    silent = replace(
        replay(run_path, []), findings=(finding,), statuses=(RuleStatus("DeadRelu", Status.NOT_APPLICABLE),)
    )
    (only,) = verdict(run, silent).diagnoses[0].causes
    assert only.cause.id == "learning_rate_too_high"


def test_findings_have_the_order_of_diagnoses(run_path: Path) -> None:
    found = [
        ("OverallFrameworkMetrics", 9, "info", {}),
        ("InputBound", 5, "info", {"gain": 1.1}),
        ("InputBound", 6, "warning", {"gain": 1.8, "symptoms": ["waits_for_workers"]}),
        ("Straggler", 7, "warning", {"gain": 10.0, "symptoms": ["rank_is_slow"]}),
        ("DeadRelu", 8, "warning", {"symptoms": ["dead_units"]}),
        ("ZeroLoss", 9, "info", {}),
    ]
    findings = tuple(
        Finding(f"{rule}@{step}", rule, Severity(how), step, step, 1, Mode.TRAIN, "", (), 2.0, 1.0, "slow",
                global_step=step, evidence=evidence)
        for rule, step, how, evidence in found
    )  # fmt: skip
    run = open_run(build_run(run_path, HEALTHY))
    ordered = verdict(run, replace(replay(run_path, []), findings=findings))
    assert [finding.id for finding in ordered.findings] == [
        "DeadRelu@8", "Straggler@7", "InputBound@6", "ZeroLoss@9", "InputBound@5", "OverallFrameworkMetrics@9",
    ]  # fmt: skip
    assert [diagnosis.step for diagnosis in ordered.diagnoses] == [8, 7, 6]


def test_a_rule_that_has_found_nothing_speaks_against_what_it_looks_for(run_path: Path) -> None:
    finding = Finding(
        "a", "LossNotDecreasing", Severity.WARNING, 3, 3, 1, Mode.TRAIN, "worker_0", (), 2.0, 1.0, "flat",
        evidence={"symptoms": ["loss_flat"]},
    )  # fmt: skip
    run = open_run(build_run(run_path, HEALTHY))
    evaluation = replace(replay(run_path, []), findings=(finding,))

    def causes(status: Status) -> set[str]:
        found = verdict(run, replace(evaluation, statuses=(RuleStatus("TooSlow", status),)))
        return {ranked.cause.id for ranked in found.diagnoses[0].causes}

    assert "learning_rate_too_low" in causes(Status.STARVED)
    assert "learning_rate_too_low" not in causes(Status.NO_ISSUES_FOUND)


def test_a_rule_that_has_found_something_of_little_weight_does_not_count_as_silent(run_path: Path) -> None:
    def found(rule: str, severity: Severity, *symptoms: str) -> Finding:
        return Finding(
            rule, rule, severity, 3, 3, 1, Mode.TRAIN, "worker_0", (), 2.0, 1.0, rule,
            evidence={"symptoms": list(symptoms)},
        )  # fmt: skip

    stuck = found("VanishingGradient", Severity.WARNING, "gradients_exactly_zero")
    noted = found("UnchangedTensor", Severity.INFO, "no_gradient")
    run = open_run(build_run(run_path, HEALTHY))
    evaluation = replace(replay(run_path, []), statuses=(RuleStatus("UnchangedTensor", Status.NO_ISSUES_FOUND),))

    def against(*findings: Finding) -> tuple[str, ...]:
        (diagnosis,) = verdict(run, replace(evaluation, findings=findings)).diagnoses
        (ranked,) = (each for each in diagnosis.causes if each.cause.id == "detached_parameters")
        return ranked.against

    assert against(stuck, noted) == ()


def test_the_cost_of_one_worker_of_several_is_said_to_be_of_that_one(run_path: Path) -> None:
    with RunBuilder(run_path, workers=2) as builder:
        builder.step(scalars={"loss": 1.0})
        builder.leave(ranks=[1])
    assert verdict(open_run(run_path)).capture == {"dropped_rows": 0, "steps": 1, "worker": "worker_1"}


def test_the_cost_of_the_only_worker_needs_no_name(run_path: Path) -> None:
    build_run(run_path, [Step(scalars={"loss": 1.0})])
    assert "worker" not in verdict(open_run(run_path)).capture


def waiting(count: int) -> list[Step]:
    return [phased(data_s=0.1, forward_s=0.1)] * count


def first_rule(path: Path, *rules: str) -> str:
    found = verdict(open_run(path), replay(path, [RuleSpec(rule) for rule in ("InputBound", *rules)]))
    ids = {finding.id: finding.rule for finding in found.findings}
    assert {ids[diagnosis.findings[0]] for diagnosis in found.diagnoses} == {"InputBound", *rules}
    assert ids[found.diagnoses[0].findings[0]] == found.findings[0].rule
    return found.findings[0].rule


@pytest.mark.parametrize(
    ("later", "status", "first"),
    [
        (0, None, "Hang"),
        (0, "failed", "Hang"),
        (0, "stopped", "Hang"),
        (1, None, "Hang"),  # a rank that does not stand still ended its step
        (2, None, "InputBound"),
        (9, "failed", "InputBound"),
        (0, "finished", "InputBound"),
    ],
)
def test_a_run_that_stands_comes_first_unless_it_went_on(
    run_path: Path, later: int, status: str | None, first: str
) -> None:
    build_run(run_path, [*waiting(80), Silence(seconds=190), *waiting(later)], status=status)
    assert first_rule(run_path, "Hang") == first


def test_a_run_that_stands_now_comes_first(run_path: Path) -> None:
    with RunBuilder(run_path, workers=2) as builder:
        for step in waiting(80):
            builder.step(step, flush=False)
        builder.flush()
        builder.silence(Silence(seconds=190))
        with JournalWriter(builder.store) as writer:
            writer.write(builder.ticks)
        assert first_rule(run_path, "Hang") == "Hang"


@pytest.mark.parametrize(
    ("limit", "status", "first"),
    [
        (4e9, None, "MemoryLeak"),  # for less than an hour
        (4e9, "failed", "MemoryLeak"),
        (4e12, None, "InputBound"),  # for weeks
        (4e9, "finished", "InputBound"),
    ],
)
def test_a_leak_comes_first_if_the_run_ends_by_it_soon(
    run_path: Path, limit: float, status: str | None, first: str
) -> None:
    run: list[Step | Batch] = []
    for minute in range(9):
        memory = {"processes.memory": [1e9 + 1e8 * minute] * 12, "memory.limit": [limit] * 12}
        run += [*[phased(data_s=2.5, forward_s=2.5)] * 12, Batch(metrics=memory)]
    build_run(run_path, run, status=status)
    assert first_rule(run_path, "MemoryLeak") == first


def sampled(memory: list[float], limit: float = 16e9) -> list[Step | Batch]:
    """A second with a step and a sample for each number of bytes."""
    metrics = {"processes.memory": memory, "memory.limit": [limit] * len(memory)}
    return [*[Step(scalars={"loss": 1.0}, seconds=1.0)] * len(memory), Batch(metrics=metrics, seconds=len(memory))]


def test_memory_that_reaches_its_limit_soon_is_told_without_a_rule_for_it(run_path: Path) -> None:
    for name, run, grown, left in [
        ("short", sampled([1e9 + 2e7 * n for n in range(150)], 8e9), "1.2 GB in 1 min", "3 min 41 s"),
        ("long", sampled([1e9 + 2e6 * n for n in range(1_500)], 8e9), "1.4 GB in 12 min", "37 min 21 s"),
    ]:
        path = build_run(run_path / name, run)
        found = verdict(open_run(path), replay(path, [RuleSpec("ExplodingTensor")]))
        text = headline(found)
        assert text == (
            f"memory grew by {grown} without leveling off; at this rate it reaches the limit of 8.0 GB in {left}; "
            "otherwise no issues found"
        )
        more = f"what grows, and more: watchglass check {path} --rules system\npage: watchglass report {path}\n"
        assert more in verdict_text(found, width=1_000)


@pytest.mark.parametrize(("each", "seconds"), [(2e8, 45), (2e8, 60), (2e8, 70), (5e8, 18), (1.2e9, 12)])
def test_memory_that_would_be_full_in_a_run_of_twice_the_length_is_told_however_short_it_is(
    run_path: Path, each: float, seconds: int
) -> None:
    path = build_run(run_path, sampled([1e9 + each * n for n in range(seconds)]))
    text = headline(verdict(open_run(path), replay(path, [RuleSpec("ExplodingTensor")])))
    assert text.startswith("memory grew by ")
    assert text.endswith("; otherwise no issues found")
    assert "it reaches the limit of 16.0 GB in " in text


@pytest.mark.parametrize(
    ("memory", "limit"),
    [
        ([1e9 + 1e8 * min(n, 55) for n in range(58)], 16e9),  # data is read, and the run ends
        ([1e9 + 1e8 * min(n, 55) for n in range(150)], 16e9),  # the first minute
        ([1e9 + 4e8 * min(n, 10) for n in range(20)], 16e9),
        ([1e9 + 1e8 * n for n in range(20)], 16e9),
        ([1e9 + 8e8 * n for n in range(5)], 16e9),  # too few samples
        ([1e9 + 3e8 * (n % 10) for n in range(40)], 5e9),  # each epoch
        ([1e9 + 1e8 * min(n, 55) for n in range(900)], 16e9),
        ([1e9 + 2e7 * n for n in range(150)], 16e12),  # for weeks
        ([1e9 + 2e7 * (n % 200) for n in range(595)], 8e9),  # each epoch
        ([5e9] * 150, 5.01e9),
    ],
)
def test_memory_that_levels_off_or_has_room_is_no_news(run_path: Path, memory: list[float], limit: float) -> None:
    path = build_run(run_path, sampled(memory, limit))
    found = verdict(open_run(path), replay(path, [RuleSpec("ExplodingTensor")]))
    assert "memory" not in found.capture
    assert headline(found) == "no issues found"


def test_what_ended_an_earlier_attempt_does_not_count_in_the_next(run_path: Path) -> None:
    build_run(run_path, [*waiting(80), Silence(seconds=190)], status=None)
    assert first_rule(run_path, "Hang") == "Hang"
    with RunBuilder(run_path, resumed={"start_step": 80, "source": "optimizer"}) as builder:
        for step in waiting(4):
            builder.step(step)
        assert first_rule(run_path, "Hang") == "InputBound"
