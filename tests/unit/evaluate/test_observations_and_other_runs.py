"""What rules see beside the run itself: what the evaluator observed, and other runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moments import feed
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import MissingFileError
from watchglass.evaluate import Follower, merge, replay, replay_part
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Mode, Observation, Status
from watchglass.store import FrameKind, JournalWriter, LocalStore, RunReader, decode_observation
from watchglass.testing import RunBuilder, Step, build_run
from watchglass.testing.rule_suite import views_of

RULES = '''
from watchglass.records import Severity
from watchglass.rules import Needs, Rule, parameter

class Losses(Rule):
    """Says which workers were lost, and when it heard of it."""
    needs = (Needs(observations=("worker_lost", "worker_returned")),)
    def check(self, view):
        for seen in view.observations():
            yield self.finding(
                view, severity=Severity.WARNING, subject=f"{seen.kind} {seen.data['worker']}",
                message=f"{seen.kind} {seen.data['worker']} before {view.mode_step}",
            )
    def finish(self, view):
        for seen in view.observations("worker_lost"):
            yield self.finding(view, severity=Severity.WARNING, subject="end", message="at the end")

class Differs(Rule):
    """Compares losses with another run."""
    compares = ("other_run",)
    other_run: str = parameter("", help="the other run")
    def check(self, view):
        other = view.reference("other_run")
        theirs = other.scalar("loss") if other is not None else None
        if theirs != view.scalar("loss"):
            yield self.finding(
                view, severity=Severity.WARNING, subject=f"{view.mode.name} {view.mode_step}",
                message=f"{view.worker} {theirs}", value=view.scalar("loss"),
            )
'''


@pytest.fixture
def rules(tmp_path: Path):
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    return lambda name, **parameters: (RuleSpec(f"{path}:{name}", parameters),)


def losses(*values: float) -> list[Step]:
    return [Step(scalars={"loss": value}) for value in values]


def test_observations_come_with_the_step_after_them(run_path: Path, rules) -> None:
    store = LocalStore(build_run(run_path, losses(*range(6)), workers=2))
    lost = Observation("worker_lost", 0, None, {"worker": "worker_1"}, steps=3)
    returned = Observation("worker_returned", 0, None, {"worker": "worker_1"}, steps=5)
    last = Observation("worker_lost", 0, None, {"worker": "worker_1", "times": 2}, steps=6)
    writer = JournalWriter(store)
    writer.write([lost, returned, last])
    writer.close()
    replayed = replay(store, rules("Losses"))
    assert [f.message for f in replayed.findings if f.worker == "worker_0"] == [
        "worker_lost worker_1 before 3", "worker_returned worker_1 before 5", "at the end",
    ]  # fmt: skip
    # Live it is shown in between, and what says the same again counts once.
    engine, follower = Engine(rules("Losses")), Follower(store)
    for seen in (lost, returned, last):
        follower.observe(seen)
        follower.observe(replace(seen, steps=9))
    for moments in (follower.read_all(), follower.ends()):
        for moment in moments:
            engine.show(moment)
    assert [f.to_json() for f in engine.findings] == [f.to_json() for f in replayed.findings]


def test_without_an_evaluator_such_a_rule_is_not_applicable(run_path: Path, rules) -> None:
    build_run(run_path, losses(1, 2))
    evaluation = replay(run_path, rules("Losses"))
    assert evaluation.statuses[0].status is Status.NOT_APPLICABLE
    assert "no evaluator followed this run" in evaluation.statuses[0].reason
    config = EvaluatorConfig(str(run_path), None, rules("Losses"))
    assert merge([replay_part(run_path, config)], rules("Losses")).statuses == evaluation.statuses
    engine = Engine(rules("Losses"))
    for view in views_of(run_path):
        feed(engine, view)
    assert engine.statuses()[0].status is Status.IN_PROGRESS


def test_another_run_step_by_step(tmp_path: Path, rules) -> None:
    ours = [*losses(1, 2, 3), Step(mode=Mode.EVAL, scalars={"loss": 7.0}), *losses(4, 5)]
    theirs = [*losses(1, 9, 3, 4), Step(mode=Mode.EVAL, scalars={"loss": 8.0})]
    build_run(tmp_path / "ours", ours, workers=2)
    build_run(tmp_path / "theirs", theirs)
    found = replay(tmp_path / "ours", rules("Differs", other_run=str(tmp_path / "theirs"))).findings
    # Worker 1 has no counterpart and is compared with the first; step 4 is beyond what the other run has.
    assert [(f.mode.name, f.step, f.message) for f in found] == [
        ("TRAIN", 1, "worker_0 9.0"), ("TRAIN", 1, "worker_1 9.0"),
        ("EVAL", 0, "worker_0 8.0"), ("EVAL", 0, "worker_1 8.0"),
        ("TRAIN", 4, "worker_0 None"), ("TRAIN", 4, "worker_1 None"),
    ]  # fmt: skip
    assert len(replay(tmp_path / "ours", rules("Differs")).findings) > 6
    with pytest.raises(MissingFileError):
        replay(tmp_path / "ours", rules("Differs", other_run=str(tmp_path / "nowhere")))


def test_another_run_is_read_as_far_as_it_was(tmp_path: Path, rules) -> None:
    """Its later steps change nothing: neither for the evaluator that goes on, nor for a replay of it."""
    store = LocalStore(tmp_path / "ours")
    specs = rules("Differs", other_run=str(tmp_path / "theirs"))
    with RunBuilder(tmp_path / "theirs") as theirs, RunBuilder(tmp_path / "ours") as ours:
        for step in losses(1, 2):
            theirs.step(step)
        ours.step(scalars={"loss": 1.0})
        evaluator = Evaluator(EvaluatorConfig(store.location, None, specs), store=store)
        evaluator.open(lambda seconds: False, patience_s=0.0)
        evaluator.turn()
        theirs.step(scalars={"loss": 3.0})
        for loss in (2.0, 3.0):
            ours.step(scalars={"loss": loss})
        theirs.leave()
        ours.leave()
        while evaluator.turn():
            pass
        evaluator.finish()
    live = evaluator.evaluation()
    assert [f.message for f in live.findings] == ["worker_0 None"]
    frames = RunReader(store).journal()
    seen = [decode_observation(frame.payload) for frame in frames if frame.kind == FrameKind.OBSERVATION]
    (pin,) = [observation for observation in seen if observation.kind == "other_run"]
    assert pin.data["reached"] == {"worker_0": [0, [1, 0, 1]]}
    replayed = replay(store, specs)
    assert [f.to_json() for f in replayed.findings] == [f.to_json() for f in live.findings]
