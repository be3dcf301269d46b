"""An engine whose rules run elsewhere says what an engine here says, whatever becomes of the processes meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import training
from watchglass.config import EvaluatorConfig, RuleSpec
from watchglass.errors import ClusterError, CompactedError, StoreError
from watchglass.evaluate import Engine, FollowedWorker, Follower, replay
from watchglass.evaluate.scaling import followed_part, spread_engine
from watchglass.evaluate.scaling.cluster import Cluster
from watchglass.evaluate.scaling.part_process import RETRIES
from watchglass.evaluate.scaling.spread_engine import SpreadEngine
from watchglass.records import Observation
from watchglass.rules import default_rules
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, build_run


class RayError(Exception):
    pass


class Processes:
    """Stands in for Ray: actors are objects in this process, and answers come when they are asked for.

    Args:
        dies: Whether the process dies at its n-th request of all, counted from 0.
    """

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self, dies: Callable[[int], bool] = lambda number: False) -> None:
        self.requests: list[dict[str, Any]] = []
        self.begun = 0
        self._dies = dies

    def remote(self, cls: type) -> Any:
        def begin(text: str) -> Any:
            self.begun += 1
            part, dead = self.part(cls, text), []

            def ask(request: str) -> Callable[[], str]:
                number = len(self.requests)
                self.requests.append(json.loads(request))
                if dead or self._dies(number):
                    dead.append(True)
                    return self._raise
                answer = part.advance(request)
                return lambda: answer

            return SimpleNamespace(advance=SimpleNamespace(remote=ask))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=begin))

    def part(self, cls: type, text: str) -> Any:
        return cls(text)

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Callable[[], str]) -> str:
        return reference()

    def kill(self, actor: Any) -> None:
        pass

    def is_initialized(self) -> bool:
        return True

    def _raise(self) -> str:
        raise RayError("the worker died")


@pytest.fixture
def run(run_path: Path) -> str:
    return build_run(run_path, training(90, broken_at=60), workers=5)


def fed(run: str, ray: Processes, *rules: RuleSpec, processes: int = 3) -> tuple[SpreadEngine, list[str]]:
    """An engine that was shown all of a run, and the findings that it gave as new."""
    config = EvaluatorConfig(run, None, (*default_rules(), *rules))
    engine = SpreadEngine(Cluster(ray, ours=True), config, processes)  # type: ignore[arg-type]
    follower, new = Follower(LocalStore(run)), []
    follower.course_only = True
    while True:
        before = follower.frames
        for views in follower.poll(full=True, max_bytes=4096):
            assert all(view.records.ids is None or not len(view.records.ids) for view in views)
            new += engine.feed(views)
        if follower.frames == before:
            break
    new += engine.finish()
    return engine, [finding.id for finding in new]


def said(engine: SpreadEngine | Engine) -> tuple[list[Any], tuple[Any, ...], dict[Any, int]]:
    return [finding.to_json() for finding in engine.findings], engine.statuses(), dict(engine.train_steps)


def same_as_replay(engine: SpreadEngine, run: str) -> None:
    expected = replay(run)
    findings, statuses, steps = said(engine)
    assert findings == [finding.to_json() for finding in expected.findings]
    assert statuses == expected.statuses
    assert len(findings) >= 5
    assert steps == {(0, f"worker_{rank}"): 90 for rank in range(5)}


@pytest.mark.parametrize("processes", [1, 3, 9])
def test_it_says_what_a_replay_says(run: str, processes: int) -> None:
    ray = Processes()
    engine, new = fed(run, ray, processes=processes)
    same_as_replay(engine, run)
    assert sorted(new) == sorted(finding.id for finding in engine.findings)
    assert ray.begun == min(processes, 5)
    assert {row[1] for request in ray.requests for row in request["reached"]} == {f"worker_{n}" for n in range(5)}


@pytest.mark.parametrize("at", [0, 1, 30, -1])
def test_a_process_that_dies_is_begun_again_from_the_start(run: str, at: int) -> None:
    if at < 0:  # the last of all requests: what it then finds again was told before
        counting = Processes()
        fed(run, counting)
        at += len(counting.requests)
    ray = Processes(dies=lambda number: number == at)
    engine, new = fed(run, ray)
    assert ray.begun == 4
    same_as_replay(engine, run)
    assert sorted(new) == sorted({finding.id for finding in engine.findings})  # none twice


def test_one_that_dies_again_and_again_is_named(run: str) -> None:
    ray = Processes(dies=lambda number: True)
    with pytest.raises(ClusterError, match=rf"evaluated worker_.* died {RETRIES + 1} times; a rule of yours may end"):
        fed(run, ray)


def test_nothing_is_evaluated_that_is_not_complete_yet(run: str) -> None:
    ray = Processes()
    engine = SpreadEngine(Cluster(ray, ours=True), EvaluatorConfig(run, None, default_rules()), 1)  # type: ignore[arg-type]
    follower = Follower(LocalStore(run))
    for number, views in enumerate(follower.poll(full=True)):
        engine.feed(views)
        engine.take_changed()
        assert set(engine.train_steps.values()) <= {number, number + 1}
        if number == 20:
            break
    assert engine.findings == []
    assert {status.status.value for status in engine.statuses()} == {"InProgress"}


def test_what_was_observed_is_told_once_and_again_to_a_new_process(run: str) -> None:
    ray = Processes(dies=lambda number: number == 1)
    engine = SpreadEngine(Cluster(ray, ours=True), EvaluatorConfig(run, None, default_rules()), 1)  # type: ignore[arg-type]
    engine.observe(Observation("worker_lost", 0, (0, 1, 1), {"worker": "worker_1"}))
    steps = Follower(LocalStore(run)).poll(full=True)
    for _ in range(4):
        engine.feed(next(steps))
    told = [len(request["observed"]) for request in ray.requests]
    assert told[:3] == [1, 0, 1]


def test_a_fault_of_a_rule_is_an_observation(run: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from watchglass import Rule\n\n\nclass Faulty(Rule):\n    def check(self, view):\n        1 / 0\n")
    engine, _ = fed(run, Processes(), RuleSpec(f"{file}:Faulty"))
    seen = engine.take_observations()
    assert {(each.kind, each.data["rule"]) for each in seen} == {("rule_error", "Faulty")}
    assert len(seen) == 5
    assert engine.take_errors() == []
    assert engine.statuses()[-1].status.value == "Error"


def test_a_run_that_is_compacted_meanwhile_is_evaluated_again(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise CompactedError("segments were compacted")

    monkeypatch.setattr("watchglass.evaluate.scaling.followed_part.RunReader.poll", gone)
    engine = SpreadEngine(
        Cluster(Processes(), ours=True),  # type: ignore[arg-type]
        EvaluatorConfig(run, None, default_rules()),
        1,
    )
    monkeypatch.undo()
    (views, *_) = Follower(LocalStore(run)).poll(full=True)
    monkeypatch.setattr("watchglass.evaluate.scaling.followed_part.RunReader.poll", gone)
    engine.feed(views)  # asked
    with pytest.raises(CompactedError, match="segments were compacted"):
        engine.feed(views)


def test_without_any_step_rules_say_what_they_say_of_nothing(run_path: Path) -> None:
    run = build_run(run_path, [])
    engine, new = fed(run, Processes())
    assert new == []
    assert engine.statuses() == replay(run).statuses


def test_a_process_whose_store_refuses_is_asked_again_and_has_not_died(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchglass.evaluate.scaling.part_process._AGAIN_S", 0.0)
    refusals = iter([StoreError("away")] * (RETRIES + 3))
    opened = followed_part.open_store

    def open_store(location: str) -> Any:
        if (error := next(refusals, None)) is not None:
            raise error
        return opened(location)

    monkeypatch.setattr(followed_part, "open_store", open_store)
    ray = Processes()
    engine, _ = fed(run, ray, processes=1)
    same_as_replay(engine, run)
    assert ray.begun == 1


def test_a_store_that_refuses_for_long_is_told(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(location: str) -> Any:
        raise StoreError("away")

    monkeypatch.setattr(followed_part, "open_store", refuse)
    monkeypatch.setattr("watchglass.evaluate.scaling.part_process._AGAIN_S", 0.0)
    monkeypatch.setattr("watchglass.evaluate.scaling.part_process._REFUSED_S", 0.0)
    with pytest.raises(StoreError, match="away"):
        fed(run, Processes(), processes=1)


def test_a_run_that_the_cluster_does_not_see_is_said_in_its_own_words(
    run: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = followed_part.open_store
    monkeypatch.setattr(followed_part, "open_store", lambda location: opened(str(tmp_path / "elsewhere")))
    with pytest.raises(ClusterError, match=r"^MissingFileError: .*elsewhere does not exist or is empty"):
        fed(run, Processes())


@pytest.mark.parametrize("at", [0, 40, 89])
def test_a_step_whose_data_could_not_be_fetched_is_evaluated_later(
    run: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Also where it is the last one, after which nothing more is asked for."""
    monkeypatch.setattr("watchglass.evaluate.scaling.part_process._AGAIN_S", 0.0)
    driver, config = Follower(LocalStore(run)), EvaluatorConfig(run, None, default_rules())
    driver.course_only = True
    fetch, refused = FollowedWorker.fetch, []

    def fetched(worker: FollowedWorker, *, closely: bool = False) -> None:
        ours = not any(worker is each for each in driver.workers.values())
        if ours and worker.worker == "worker_4" and worker.queue[0].end.global_step == at and len(refused) < 3:
            refused.append(at)
            raise StoreError("away")
        fetch(worker, closely=closely)

    monkeypatch.setattr(FollowedWorker, "fetch", fetched)
    engine = SpreadEngine(Cluster(Processes(), ours=True), config, 1)  # type: ignore[arg-type]
    for views in driver.poll(full=True):
        engine.feed(views)
    engine.finish()
    same_as_replay(engine, run)
    assert len(refused) == 3


def test_a_cluster_that_is_gone_ends_the_wait_for_it(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Processes):
        """Answers nothing any more, and says of the node of this process that it is dead."""

        def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
            return [], references

        def nodes(self) -> list[dict[str, Any]]:
            return [{"NodeID": "other", "Alive": True}, {"NodeID": "own", "Alive": False}]

        def get_runtime_context(self) -> Any:
            return SimpleNamespace(get_node_id=lambda: "own")

    monkeypatch.setattr("watchglass.evaluate.scaling.cluster._CHECK_S", 0.0)
    with pytest.raises(ClusterError, match="the Ray node of this process is gone: its raylet has died; begin again"):
        fed(run, Silent())


def test_where_rules_stand_is_put_together_only_when_more_was_said(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fed(run, Processes())
    merged: list[int] = []
    merge = spread_engine.merge
    monkeypatch.setattr(spread_engine, "merge", lambda *words: merged.append(1) or merge(*words))
    for _ in range(3):
        assert engine.findings
        assert engine.statuses()
    assert len(merged) == 1


def test_what_was_recorded_of_attempts_that_are_over_is_let_go(run_path: Path) -> None:
    for attempt in range(3):
        with RunBuilder(run_path, workers=2) as builder:
            assert builder.attempt == attempt
            for step in training(20):
                builder.step(step)
            builder.leave()
    parts: list[Any] = []

    class Kept(Processes):
        def part(self, cls: type, text: str) -> Any:
            parts.append(cls(text))
            return parts[-1]

    run, ray = str(run_path), Kept()
    engine = SpreadEngine(Cluster(ray, ours=True), EvaluatorConfig(run, None, default_rules()), 1)  # type: ignore[arg-type]
    driver = Follower(LocalStore(run))
    while views := [engine.feed(views) for views in driver.poll(full=True)]:
        assert views
    engine.end_attempts(driver.over)
    engine.finish()
    assert engine.statuses() == replay(run).statuses
    (part,) = parts
    assert [key for key, worker in part._part._workers.items() if worker.view is not None] == [
        (2, "worker_0"), (2, "worker_1"),
    ]  # fmt: skip
