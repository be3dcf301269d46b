"""What rules are shown beside the steps of one worker: steps of all workers, ticks, and who takes part."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moments import FollowedCase
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import InvalidValueError, PluginFileError
from watchglass.evaluate import Follower, PartialEvaluation, merge, replay, replay_part
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.scaling.contents import RunContents
from watchglass.evaluate.scaling.plan import plan
from watchglass.records import Observation, Status
from watchglass.rules import Rule
from watchglass.run import open_run
from watchglass.store import LocalStore
from watchglass.tables import JointStep, StepView
from watchglass.tables.stored_statistics import StoredStatistics
from watchglass.testing import RunBuilder, Silence, Step, build_run

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Needs, Rule, state

class Together(Rule):
    """Says who takes part in each step, and counts steps."""
    needs = (Needs(scalars=("loss",)),)
    seen: int = state(int)
    def check_step(self, step):
        self.seen += 1
        who = ", ".join(view.worker for view in step.views)
        yield self.finding(step, severity=Severity.INFO, subject=f"{self.seen}", message=f"{self.seen} {who}")
        if step.views[-1].scalar("loss") > 8:
            yield self.finding(step.views[-1], severity=Severity.WARNING, message="high")
    def finish(self, step):
        yield self.finding(step, severity=Severity.INFO, subject="end", message=f"saw {self.seen}")

class Waits(Rule):
    """Says for how long it waited."""
    def tick(self, tick):
        what = f"{sorted(tick.seconds.items())} {sorted(tick.living)} {tick.number}"
        yield self.finding(tick, severity=Severity.INFO, subject=f"{tick.silent_s:g}", message=what)

class Counts(Rule):
    """Says at each tick how many steps it saw."""
    seen: int = state(int)
    def check(self, view):
        self.seen += 1
        return ()
    def tick(self, tick):
        yield self.finding(tick, severity=Severity.INFO, subject=f"{tick.number}", message=f"saw {self.seen}")

class Fails(Rule):
    """Raises at the second tick."""
    def tick(self, tick):
        if tick.number:
            raise ValueError("no more")
        return ()

class Nothing(Rule):
    """Looks at nothing."""
    def finish(self, view):
        return ()
'''


@pytest.fixture
def rules(tmp_path: Path) -> Any:
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda *names: tuple(RuleSpec(f"{path}:{name}") for name in names)


def losses(*values: float, **more: Any) -> list[Step]:
    return [Step(scalars={"loss": value}, **more) for value in values]


def test_a_rule_sees_workers_apart_or_together(rules: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="Both has check and check_step; a rule has one of them"):

        class Both(Rule):
            def check(self, view: StepView) -> Any:
                return ()

            def check_step(self, step: JointStep) -> Any:
                return ()

    with pytest.raises(PluginFileError, match=r"has no method check\(self, view\), check_step\(self, step\), ch"):
        Engine(rules("Nothing"))


def test_one_instance_sees_all_workers(run_path: Path, rules: Any) -> None:
    steps = [*losses(1, 2), *losses(3, workers=[1]), *losses(9, workers=[2]), *losses(4, workers=[0])]
    found = replay(build_run(run_path, steps, workers=3), rules("Together")).findings
    assert [(f.worker, f.step, f.message) for f in found] == [
        ("", 0, "1 worker_0, worker_1, worker_2"), ("", 1, "2 worker_0, worker_1, worker_2"),
        ("", 2, "3 worker_0, worker_1, worker_2"), ("worker_2", 2, "high"), ("", 2, "saw 3"),
    ]  # fmt: skip


def test_one_instance_for_each_model_and_for_each_worker_that_trains_by_itself(tmp_path: Path, rules: Any) -> None:
    steps = [Step(scalars={"loss": 1.0}), Step(scalars={"model_2/loss": 1.0}, model=1)] * 2
    found = replay(build_run(tmp_path / "models", steps, workers=2), rules("Together")).findings
    assert [(f.model, f.message.partition(": ")[2] or f.message) for f in found if f.evidence["subject"] == "end"] == [
        (0, "saw 2"), (1, "saw 2"),
    ]  # fmt: skip
    with RunBuilder(tmp_path / "alone", workers=2, alone=True) as builder:
        for step in losses(1, 2):
            builder.step(step)
        builder.leave()
    found = replay(tmp_path / "alone", rules("Together")).findings
    assert [(f.worker, f.message) for f in found] == [
        ("worker_0", "1 worker_0"), ("worker_1", "1 worker_1"),
        ("worker_0", "2 worker_0"), ("worker_0", "saw 2"), ("worker_1", "2 worker_1"), ("worker_1", "saw 2"),
    ]  # fmt: skip


def test_equal_findings_of_workers_that_train_separately_are_all_in_the_journal(run_path: Path, rules: Any) -> None:
    """At ticks before the first step, at steps, and at the end."""
    case = FollowedCase(run_path, rules("Together", "Waits"), workers=2, alone=True)
    case.wait(1.0)
    case.write(*losses(1, 1))
    case.end()
    found = {finding.id: finding for finding in case.evaluator.evaluation().findings}
    assert {(f.worker, f.step) for f in found.values()} >= {(name, -1) for name in ("worker_0", "worker_1")}
    assert Counter(f.worker for f in found.values()) == {"worker_0": 4, "worker_1": 4}
    assert {finding.id: finding for finding in open_run(run_path).journal.findings} == found


def test_ticks_come_ever_more_rarely_while_a_worker_is_waited_for(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Waits", "Counts", "Fails"), workers=2)
    case.wait(1.0)
    case.builder.step(scalars={"loss": 1.0})
    case.wait(0.9, 0.2, *[1.0] * 200)
    seconds = [
        float(found.evidence["subject"]) for found in case.evaluator.evaluation().findings if found.rule == "Waits"
    ]
    assert seconds == [1.0, 1.1, 3.1, 7.1, 15.1, 31.1, 63.1, 123.1, 183.1]
    assert case.messages("Waits")[0] == "[('worker_0', 1.0), ('worker_1', 1.0)] ['worker_0', 'worker_1'] 0"
    # Those of a worker see ticks behind its first step; one that raises is stopped.
    assert case.messages("Counts") == ["saw 1"] * 16
    status = case.evaluator.evaluation().statuses[2]
    assert status.status is Status.ERROR
    assert "raised at tick 2 of all workers" in status.reason
    # Another evaluator goes on where this one was.
    case.again()
    case.wait(30.0, 40.0)
    assert len(case.messages("Waits")) == 10
    assert "253" in case.messages("Waits")[-1]
    case.builder.leave(ranks=[0, 1])
    case.wait(500.0)
    assert len(case.messages("Waits")) == 10
    case.end()


def test_ticks_are_recorded_where_a_rule_looks_at_them(run_path: Path, rules: Any) -> None:
    case = FollowedCase(run_path, rules("Together"))
    case.wait(100.0, 100.0)
    case.end()
    assert {seen.kind for seen in open_run(run_path).journal.observations} == {"worker_joined"}
    (status,) = replay(run_path, rules("Waits")).statuses
    assert status.status is Status.NOT_APPLICABLE
    assert status.reason == "it can only be evaluated while the run goes on, and it was not"


def test_without_an_evaluator_a_rule_with_ticks_is_not_applicable(run_path: Path, rules: Any) -> None:
    (status,) = replay(build_run(run_path, losses(1, 2)), rules("Waits")).statuses
    assert status.status is Status.NOT_APPLICABLE
    assert "no evaluator followed this run" in status.reason


def test_a_made_up_run_has_ticks(run_path: Path, rules: Any) -> None:
    steps = [*losses(1, 2), Silence(8.0, living=[1]), *losses(3)]
    found = replay(build_run(run_path, steps, workers=2), rules("Waits", "Counts")).findings
    assert [(f.step, f.message) for f in found if f.rule == "Waits"] == [
        (1, f"[('worker_0', {s}), ('worker_1', {s})] ['worker_1'] {n}") for n, s in enumerate((1.0, 3.0, 7.0))
    ]
    assert [(f.worker, f.message) for f in found if f.rule == "Counts"] == [
        (worker, "saw 2") for worker in ("worker_0", "worker_1") for _ in range(3)
    ]


def test_a_rank_that_comes_late_takes_part_from_then_on(run_path: Path, rules: Any) -> None:
    """Also for an evaluator that finds it there from the beginning."""
    case = FollowedCase(run_path, rules("Together"), workers=2)
    late = sorted(run_path.rglob("worker_1-*"))
    for segment in late:
        segment.rename(run_path.parent / segment.name)
    case.builder.workers[0].step(losses(1)[0])
    case.builder.workers[0].flush()
    case.wait()
    for segment in late:
        (run_path.parent / segment.name).rename(segment)
    case.builder.workers[1].step(losses(1)[0])
    case.builder.workers[1].flush()
    case.again()
    case.wait()
    case.builder.step(losses(2)[0])
    case.wait()
    assert case.messages("Together") == ["1 worker_0", "2 worker_1", "3 worker_0, worker_1"]
    case.end()


def test_parts_of_rules_over_all_workers_are_the_whole(
    run_path: Path, rules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = {"fc.weight": np.ones((4, 4))}
    steps = [*losses(1, 2, 9, statistics=weights), Silence(5.0), *losses(2)]
    specs = (*rules("Together"), RuleSpec("ExplodingTensor"), *rules("Waits"))
    run = build_run(run_path, steps, workers=2, modules={"fc": "Linear"})
    config, engine = EvaluatorConfig(run, None, specs), Engine(specs)
    assert engine.whole == (0, 2)
    contents = RunContents(run, {"worker_0": 1 << 28, "worker_1": 1 << 28}, 2)
    parts = plan([contents], 3, 4, whole=engine.whole)
    assert {part.workers for part in parts if 1 in (part.rules or ())} == {("worker_0",), ("worker_1",)}
    assert {part.workers for part in parts if part.rules != (1,)} == {None}
    read: list[int] = []
    statistics = StoredStatistics.at
    monkeypatch.setattr(StoredStatistics, "at", lambda *words: (read.append(1), statistics(*words))[1])
    found = []
    for part in parts:
        read.clear()
        answer = replay_part(run, config, workers=part.workers, rules=part.rules)
        found.append(PartialEvaluation.from_json(answer.to_json()))
        assert bool(read) == (part.rules == (1,) or 2 in (part.rules or ()))  # Waits does not say what it needs
    whole, merged = replay(run, specs), merge(found, specs)
    assert [f.to_json() for f in merged.findings] == [f.to_json() for f in whole.findings]
    assert merged.statuses == whole.statuses
    assert {f.rule for f in whole.findings} == {"Together", "Waits"}


def test_what_a_journal_says_wrongly_holds_nothing_back(run_path: Path, rules: Any) -> None:
    wrong = [
        Observation("worker_joined", 0, None, {"worker": "worker_1", "lefts": "x"}, steps=10**9),
        Observation("worker_joined", 0, None, {}, steps=-5),
        Observation("tick", 0, None, {"seconds": [1], "living": {"a": 2}}),
        Observation("worker_lost", 7, None, {"worker": ["a"]}),
    ]
    run = build_run(run_path, losses(1, 2), workers=2, journal=wrong)
    found = replay(run, rules("Together")).findings
    assert sum(len(f.message.split(",")) for f in found if f.evidence["subject"] != "end") == 4


def test_a_step_that_was_shown_is_freed_at_once(tmp_path: Path) -> None:
    """A reference cycle would keep its statistics, and its files open, until a garbage collection."""
    build_run(tmp_path / "run", [Step(scalars={"loss": 1.0})])
    follower = Follower(LocalStore(tmp_path / "run"))
    steps = [moment for moment in follower.poll() if isinstance(moment, JointStep)]
    assert steps[0].by_model == (steps[0],)
    shown = weakref.ref(steps[0])
    gc.disable()
    try:
        del steps[0], follower
        assert shown() is None
    finally:
        gc.enable()
