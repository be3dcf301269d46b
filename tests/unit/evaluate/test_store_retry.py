"""An evaluator whose store is away now and then misses nothing, and asks for little while nothing happens."""

from __future__ import annotations

import functools
import itertools
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moments import views_shown
from watchglass.config import EvaluatorConfig, EvaluatorTiming
from watchglass.errors import StoreError
from watchglass.evaluate import Follower, follow, replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Severity, Status
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import LocalStore, layout
from watchglass.testing import RunBuilder, Step, build_run

NAN = float("nan")


class Objects(LocalStore):
    """A folder that is asked like an object store, counts that, and answers only where it is told to."""

    appends = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()
        self.answers: Any = lambda number: True

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if not self.answers(sum(self.asked.values())):
            raise StoreError("the store is away")

    def read(self, path, start=0, end=None):
        self._ask("read")
        return super().read(path, start, end)

    def write(self, path, data, *, replace=False):
        self._ask("write")
        super().write(path, data, replace=replace)

    def list(self, prefix="", after=""):
        self._ask("list")
        return super().list(prefix, after)

    def size(self, path):
        self._ask("size")
        return super().size(path)


class Whole(LocalStore):
    """What the writers of such a run use: every flush is an object."""

    appends = False


@pytest.fixture(autouse=True)
def written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["watchglass.testing.builder"], "LocalStore", Whole)


def evaluator(store: Objects, **options: Any) -> Evaluator:
    return Evaluator(EvaluatorConfig(store.location, None, default_rules(), **options), store=store)


@pytest.mark.parametrize("length", [8, 13, 21, 34])
def test_a_store_that_answers_now_and_then_costs_time_and_nothing_else(run_path: Path, length: int) -> None:
    store = Objects(run_path)
    with RunBuilder(run_path, workers=2) as builder:
        followed = evaluator(store, stop_on=Severity.ERROR)
        followed.open(lambda seconds: True)
        store.answers = lambda number: number // length % 2  # away for as many requests as it answers
        for step in range(30):
            builder.step(scalars={"loss": NAN if step >= 20 else 1.0})
            followed.turn()
        for _ in range(200):
            followed.turn()
        assert layout.control_request("stop", 0) in [entry.path for entry in Whole(run_path).list("control")]
        assert followed._judging.follower.problems == []
        store.answers = lambda number: True
        builder.leave()
    while followed.turn():
        pass
    followed.finish()
    expected = {finding.id: finding.to_json() for finding in replay(run_path).findings}
    assert expected
    assert {finding.id: finding.to_json() for finding in open_run(run_path).journal.findings} == expected


def test_a_quiet_run_costs_few_requests_a_minute(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Objects(run_path)
    with RunBuilder(run_path, workers=2) as builder:
        builder.step(scalars={"loss": 1.0})
        followed = evaluator(store)
        followed.open(lambda seconds: True)
        start = time.monotonic()
        ticks = itertools.count()
        for _ in range(30):
            followed.turn()
        store.asked.clear()
        begin_ns = time.monotonic_ns()
        for _ in range(60):
            now = next(ticks) * followed.pause_s
            monkeypatch.setattr("time.monotonic", lambda now=now: start + now)
            monkeypatch.setattr("time.monotonic_ns", lambda now=now: begin_ns + int(now * 1e9))
            followed.turn()
        monkeypatch.undo()
        followed.close()
    # A listing a poll, claims and the next attempt at the pace of liveness, a renewal of the lease every ten seconds.
    assert store.asked["write"] <= 8
    assert 60 <= store.asked["list"] <= 75
    assert sum(store.asked.values()) <= 130


def test_a_worker_that_was_killed_in_an_earlier_attempt_costs_no_requests(run_path: Path) -> None:
    RunBuilder(run_path, alive=False).step(scalars={"loss": 1.0})
    store = Objects(run_path)
    with RunBuilder(run_path) as builder:
        builder.step(scalars={"loss": 1.0})
        followed = evaluator(store)
        followed.open(lambda seconds: True)
        while followed.turn():
            pass
        assert followed.ended() == ""
        store.asked.clear()
        for _ in range(20):
            assert followed.ended() == ""
        followed.close()
        assert store.asked["list"] <= 2  # the end of the lease
        assert store.asked["size"] == 0


def test_what_could_not_be_read_at_the_end_is_not_judged(run_path: Path) -> None:
    store = Objects(run_path)
    with RunBuilder(run_path) as builder:
        builder.step(scalars={"loss": 1.0})
        followed = evaluator(store)
        followed.open(lambda seconds: True)
        while followed.turn():
            pass
        builder.step(scalars={"loss": NAN})
        builder.leave()
    store.answers = lambda number: False
    followed.finish(patience_s=0.0)
    assert not followed.evaluation().ended
    assert {status.status for status in open_run(run_path).journal.statuses} == {Status.IN_PROGRESS}


def test_following_a_run_whose_end_could_not_be_read_ends_without_a_verdict(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_run(run_path, [Step({"loss": 1.0})] * 5)
    store, ended = Objects(run_path), Evaluator.ended

    def away_from_then_on(followed: Evaluator) -> str:
        said = ended(followed)
        store.answers = lambda number: not said
        return said

    monkeypatch.setattr(Evaluator, "ended", away_from_then_on)
    monkeypatch.setattr("watchglass.evaluate.live.following.open_store", lambda location: store)
    monkeypatch.setattr(Evaluator, "finish", functools.partialmethod(Evaluator.finish, patience_s=0.0))
    config = EvaluatorConfig(store.location, None, default_rules(), timing=EvaluatorTiming(settled_s=-1.0))
    followed = follow(config, lambda seconds: True, timeout_s=20.0)
    assert (followed.ended, followed.left_off) == ("", "store unreachable")
    assert {status.status for status in followed.evaluation.statuses} == {Status.IN_PROGRESS}


def test_a_step_is_not_lost_with_the_answer_that_its_statistics_wait_for(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond the memory for payloads is fetched when its step is shown."""
    monkeypatch.setattr("watchglass.tables.payloads.KEPT_BYTES", 0)
    build_run(run_path, [Step({}, {"fc.weight": np.ones(4)})] * 20, workers=2, steps_per_flush=1)
    for seed in range(3):
        store, chance = Objects(run_path), np.random.default_rng(seed)
        follower = Follower(store)
        store.answers = lambda number, chance=chance: chance.random() < 0.8
        shown: list[tuple[str, int, int]] = []
        for _ in range(400):
            with suppress(StoreError):
                for views in views_shown(follower.poll(full=True)):
                    shown += [(view.worker, view.global_step, len(view.statistics())) for view in views]
        assert shown == [(worker, n, 1) for n in range(20) for worker in ("worker_0", "worker_1")]


def test_what_every_flush_begins_with_is_not_kept(run_path: Path) -> None:
    with RunBuilder(run_path) as builder:
        follower = Follower(Objects(run_path))
        for _ in range(30):
            builder.step(scalars={"loss": 1.0})
            assert len(list(views_shown(follower.poll(full=True)))) == 1
        (worker,) = follower.workers.values()
        assert len(worker.tables.headers) == 1


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_the_lease_is_renewed_in_the_middle_of_much_to_evaluate(
    run_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_run(run_path, [Step({"loss": 1.0})] * 20)
    followed = evaluator(Objects(run_path))
    followed.open(lambda seconds: True)
    start, steps = time.monotonic(), itertools.count()
    show, now = followed._judging.engine.show, [start]

    def slow(moment: Any) -> Any:
        now[0] = start + seconds * next(steps)
        return show(moment)

    monkeypatch.setattr(followed._judging.engine, "show", slow)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    before = json.loads(Whole(run_path).read(layout.LEASE_RENEWED))["number"]
    followed.turn()
    monkeypatch.undo()
    assert json.loads(Whole(run_path).read(layout.LEASE_RENEWED))["number"] - before == 57 // 12 * (seconds > 0)
    followed.close()


@pytest.mark.parametrize("workers", [1, 8, 1024])
def test_a_flushed_segment_is_seen_within_two_seconds(run_path: Path, workers: int) -> None:
    intervals = Objects(run_path).policy.intervals(workers)
    assert intervals.poll_s <= 1.0
    assert intervals.flush_s <= 60.0
    with RunBuilder(run_path):
        followed = evaluator(Objects(run_path))
        assert followed.pause_s == intervals.poll_s
        followed.close()
