"""A live run that processes of a cluster read and judge: output, journal and moments equal those of one process."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from command_line import RULES, training
from evaluators.ray_in_this_process import Processes, elsewhere
from moments import Made
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import ClusterError, CompactedError, StoreError
from watchglass.evaluate import Judging, replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.scaling.cluster import Cluster, Patience
from watchglass.evaluate.scaling.judging_elsewhere import JudgingElsewhere, judging_on
from watchglass.records import Observation, Severity
from watchglass.run import open_run
from watchglass.store import LocalStore, StoredObject, layout
from watchglass.testing import RunBuilder, Step, build_run

OWN = """
from watchglass import Rule, Severity
from watchglass.rules import Needs

class Faulty(Rule):
    def check(self, view):
        if view.mode_step == 7:
            raise RuntimeError("no luck at 7")

class Losses(Rule):
    needs = (Needs(observations=("worker_lost",)),)
    def check(self, view):
        for seen in view.observations():
            message = f"{seen.data['worker']} before {view.mode_step}"
            yield self.finding(view, severity=Severity.WARNING, subject=message, message=message)
"""


@pytest.fixture
def run(run_path: Path) -> Path:
    return Path(build_run(run_path, training(90, broken_at=60), workers=3))


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], RuleSpec]:
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: RuleSpec(f"{tmp_path}/own.py:{name}")


def config_of(run: Path, *rules: RuleSpec, **more: Any) -> EvaluatorConfig:
    return EvaluatorConfig(str(run), None, (*RULES, *rules), **more)


def turned(evaluator: Evaluator) -> None:
    """Everything is read that is there; it takes two turns to ask and to be answered, and several where it is late."""
    quiet = 0
    while quiet < 10:
        quiet = 0 if evaluator.turn() else quiet + 1


def followed(config: EvaluatorConfig, judging: Callable[..., Judging] = Judging) -> tuple[Evaluator, str]:
    """An evaluator that has read a run to its end, and what it printed."""
    output = io.StringIO()
    evaluator = Evaluator(config, output=output, judging=judging)
    evaluator.open(lambda seconds: True)
    with closing(evaluator):
        turned(evaluator)
        evaluator.finish()
    return evaluator, output.getvalue()


def same_as_here(ray: Processes, run: Path, *rules: RuleSpec) -> str:
    """Follows a run and a copy of it, elsewhere and here; returns what was printed elsewhere."""
    copy = shutil.copytree(run, run.parent / "copy")
    evaluator, printed = followed(config_of(run, *rules), elsewhere(ray))
    here, notices = followed(config_of(copy, *rules))
    evaluation, expected = evaluator.evaluation(), here.evaluation()
    assert [each.to_json() for each in evaluation.findings] == [each.to_json() for each in expected.findings]
    assert len(evaluation.findings) >= 3
    for name in ("statuses", "train_steps", "ended", "problems"):
        assert getattr(evaluation, name) == getattr(expected, name)
    assert evaluator.snapshot().scalars.keys() == here.snapshot().scalars.keys()
    assert evaluator.snapshot().train_steps == here.snapshot().train_steps
    journal, wanted = open_run(run).journal, open_run(copy).journal
    assert [each.to_json() for each in journal.findings] == [each.to_json() for each in wanted.findings]
    assert journal.statuses == wanted.statuses
    assert sorted(map(repr, journal.observations)) == sorted(map(repr, wanted.observations))
    assert [line for line in printed.splitlines() if "error" in line or "warning" in line] == notices.splitlines()
    return printed


@pytest.mark.parametrize("late", [0, 3])
def test_it_says_and_writes_what_an_evaluator_here_does(run: Path, own: Any, late: int) -> None:
    ray = Processes(late=late)
    assert "no luck at 7" not in same_as_here(ray, run, own("Faulty"))
    assert len(ray.setups) == 1
    seen = open_run(run).journal.observations
    assert [(each.kind, each.data["rule"]) for each in seen] == [("rule_error", "Faulty")]


def test_all_an_evaluator_asks_of_a_judging_is_there(run: Path) -> None:
    there = JudgingElsewhere(Cluster(Processes()), LocalStore(run), config_of(run))  # type: ignore[arg-type]
    assert [name for name in vars(Judging) if not name.startswith("_") and not hasattr(there, name)] == []


@pytest.mark.parametrize("at", [0, 1, 2, -1])
def test_a_process_that_dies_is_begun_again_and_nothing_is_said_twice(run: Path, own: Any, at: int) -> None:
    if at < 0:
        counting = Processes()
        followed(config_of(shutil.copytree(run, run.parent / "counted"), own("Faulty")), elsewhere(counting))
        at += len(counting.requests)
    ray = Processes(dies=lambda number: number == at)
    same_as_here(ray, run, own("Faulty"))
    assert len(ray.setups) == 2


def test_one_that_dies_again_and_again_is_named_and_the_lease_given_back(run: Path) -> None:
    ray = Processes(dies=lambda number: number > 1)  # also where it gets somewhere each time
    message = rf"evaluated {run} died {Patience().retries + 1} times; a rule of yours may end"
    with pytest.raises(ClusterError, match=message):
        followed(config_of(run), elsewhere(ray))
    followed(config_of(run))


def test_a_process_whose_store_refuses_is_asked_again_and_gets_all_that_it_has_to_know(run: Path, own: Any) -> None:
    lost = Observation("worker_lost", 0, None, {"worker": "worker_1"}, steps=31)
    refusals = iter([StoreError("unreachable")] * 3)

    def opened(location: str) -> Any:
        if (error := next(refusals, None)) is not None:
            raise error
        return LocalStore(location)

    ray, made = Processes(opened=opened), Made()
    evaluator = Evaluator(
        config_of(run, own("Losses")), output=(output := io.StringIO()), judging=made.by(elsewhere(ray))
    )
    evaluator.open(lambda seconds: True)
    made.judging.observed([lost])
    for _ in range(8):
        turned(evaluator)
    evaluator.finish()
    assert len(ray.setups) == 1
    assert "store unreachable, retrying: unreachable" in output.getvalue()
    assert {each.message for each in evaluator.evaluation().findings} >= {"worker_1 before 31"}
    replayed = replay(run, config_of(run, own("Losses")).rules)
    assert [each.to_json() for each in evaluator.evaluation().findings] == [
        each.to_json() for each in replayed.findings
    ]


def test_a_run_that_is_compacted_meanwhile_is_evaluated_again(run: Path) -> None:
    class Compacted(LocalStore):
        lists: ClassVar[list[str]] = []

        def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
            if prefix == layout.segments(0):
                self.lists.append(prefix)
                if len(self.lists) == 2:
                    raise CompactedError("segments were compacted")
            return super().list(prefix, after)

    ray = Processes(opened=Compacted)
    same_as_here(ray, run)
    assert len(ray.setups) == 2


def test_a_run_that_the_cluster_does_not_see_is_said_in_a_line(run: Path, tmp_path: Path) -> None:
    ray = Processes(opened=lambda location: LocalStore(tmp_path / "other"))
    with pytest.raises(ClusterError, match=r"the cluster cannot read .*: .*other does not exist or is empty"):
        followed(config_of(run), elsewhere(ray))


def test_what_an_evaluator_observes_is_heard_at_the_same_step_as_in_a_replay(run_path: Path, own: Any) -> None:
    steps = [Step(scalars={"loss": 1.0})] * 10
    config = EvaluatorConfig(str(run_path), None, (own("Losses"),))
    with RunBuilder(run_path, workers=2) as builder:
        for step in steps[:5]:
            builder.step(step)
        for step in steps[5:]:
            builder.workers[0].step(step)
        builder.workers[0].flush()
        made = Made()
        evaluator = Evaluator(config, judging=made.by(elsewhere(Processes())))
        evaluator.open(lambda seconds: True)
        turned(evaluator)
        worker = made.judging.workers[0, "worker_1"]
        assert worker.moments.shown == 5  # the other worker is waited for
        made.judging.observed([worker.observation("worker_lost")])
        assert worker.lost
        turned(evaluator)
        assert worker.moments.shown == 10
        builder.workers[1].step(steps[5])  # it writes again
        builder.workers[1].flush()
        turned(evaluator)
        assert not worker.lost
        builder.leave()
    turned(evaluator)
    evaluator.finish()
    assert evaluator.evaluation().findings == replay(run_path, config.rules).findings
    assert [each.message for each in evaluator.evaluation().findings][:1] == ["worker_1 before 5"]


def test_attempts_come_to_their_end(run_path: Path) -> None:
    for _ in range(3):
        with RunBuilder(run_path, workers=2) as builder:
            for step in training(20, broken_at=15):
                builder.step(step)
            builder.leave()
    same_as_here(Processes(), run_path)
    assert {found.attempt for found in open_run(run_path).journal.findings} == {0, 1, 2}


def test_a_training_run_is_stopped_by_who_follows_it(run_path: Path) -> None:
    with RunBuilder(run_path, workers=2) as builder:
        for step in training(30, broken_at=20):
            builder.step(step)
        config = config_of(run_path, stop_on=Severity.ERROR)
        evaluator = Evaluator(config, judging=elsewhere(Processes()))
        evaluator.open(lambda seconds: True)
        turned(evaluator)
        (requested,) = [each for each in open_run(run_path).journal.observations if each.kind == "stop_requested"]
        assert requested.data["finding"] in {each.id for each in open_run(run_path).journal.findings}
        evaluator.close()


def test_a_cluster_that_is_gone_ends_the_wait_for_it(run: Path) -> None:
    class Silent(Processes):
        """Answers nothing any more, and says of the node of this process that it is dead."""

        def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
            return [], references

        def nodes(self) -> list[dict[str, Any]]:
            return [{"NodeID": "other", "Alive": True}, {"NodeID": "own", "Alive": False}]

    connected = Cluster(Silent(), Patience(check_s=0.0))  # type: ignore[arg-type]
    evaluator = Evaluator(config_of(run), judging=judging_on(connected))
    evaluator.open(lambda seconds: True)
    assert not evaluator.turn()
    assert evaluator.ended() == ""  # nothing is known yet
    with pytest.raises(
        ClusterError, match="the Ray node of this process is gone: its raylet has died; start the command again"
    ):
        evaluator.finish()
