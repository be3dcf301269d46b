"""An evaluator whose store is unreachable now and then misses nothing, and asks for little while nothing happens."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clocks import Now
from moments import views_shown
from watchglass.config import EvaluatorConfig, EvaluatorTiming
from watchglass.errors import StoreError
from watchglass.evaluate import Follower, replay
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.following import Following, take_turns
from watchglass.evaluate.live.store_retry import StoreRetry
from watchglass.records import Severity, Status
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import Frame, FrameKind, LocalStore, layout
from watchglass.tables.payloads import KEPT_BYTES, Payloads
from watchglass.testing import RunBuilder, Step, build_run

NAN = float("nan")


class Objects(LocalStore):
    """A folder that takes requests like an object store, counts them, and answers on demand."""

    appends = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: Counter[str] = Counter()
        self.answers: Any = lambda number: True

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if not self.answers(sum(self.asked.values())):
            raise StoreError("the store is unreachable")

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


def evaluator(store: Objects, **options: Any) -> Evaluator:
    made = {name: options.pop(name) for name in ("clock", "at_work") if name in options}
    return Evaluator(EvaluatorConfig(store.location, None, default_rules(), **options), store=store, **made)


@pytest.mark.parametrize("length", [8, 13, 21, 34])
def test_a_store_that_answers_now_and_then_costs_time_and_nothing_else(run_path: Path, length: int) -> None:
    store = Objects(run_path)
    with RunBuilder(Whole(run_path), workers=2) as builder:
        followed = evaluator(store, stop_on=Severity.ERROR)
        followed.open(lambda seconds: True)
        store.answers = lambda number: number // length % 2  # unreachable for as many requests as it answers
        for step in range(30):
            builder.step(scalars={"loss": NAN if step >= 20 else 1.0})
            followed.turn()
        for _ in range(200):
            followed.turn()
        assert layout.control_request("stop", 0) in [entry.path for entry in Whole(run_path).list("control")]
        assert followed.evaluation().problems == ()
        store.answers = lambda number: True
        builder.leave()
    while followed.turn():
        pass
    followed.finish()
    expected = {finding.id: finding.to_json() for finding in replay(run_path).findings}
    assert expected
    assert {finding.id: finding.to_json() for finding in open_run(run_path).journal.findings} == expected


def test_a_quiet_run_costs_few_requests_a_minute(run_path: Path) -> None:
    store, clock = Objects(run_path), Now()
    with RunBuilder(Whole(run_path), workers=2) as builder:
        builder.step(scalars={"loss": 1.0})
        followed = evaluator(store, clock=clock)
        followed.open(lambda seconds: True)
        for _ in range(30):
            followed.turn()
        store.asked.clear()
        for _ in range(60):
            followed.turn()
            clock.advance(followed.pause_s)
        followed.close()
    # A listing a poll, claims and the next attempt at the pace of liveness, a renewal of the lease every ten seconds.
    assert store.asked["write"] <= 8
    assert 60 <= store.asked["list"] <= 75
    assert sum(store.asked.values()) <= 130


def test_a_worker_that_was_killed_in_an_earlier_attempt_costs_no_requests(run_path: Path) -> None:
    RunBuilder(Whole(run_path), alive=False).step(scalars={"loss": 1.0})
    store = Objects(run_path)
    with RunBuilder(Whole(run_path)) as builder:
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
    with RunBuilder(Whole(run_path)) as builder:
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


def test_following_a_run_whose_end_could_not_be_read_ends_without_a_verdict(run_path: Path) -> None:
    build_run(Whole(run_path), [Step({"loss": 1.0})] * 5)
    store = Objects(run_path)
    evaluating = evaluator(store, timing=EvaluatorTiming(settled_s=-1.0))
    evaluating.open(lambda seconds: True)
    following = Following(evaluating)
    assert take_turns(following.turn, lambda: bool(following.ended), lambda seconds: True, timeout_s=20.0) == ""
    assert following.ended == "finished"
    store.answers = lambda number: False
    followed = following.finish(patience_s=0.0)
    assert (followed.ended, followed.left_off) == ("", "store unreachable")
    assert {status.status for status in followed.evaluation.statuses} == {Status.IN_PROGRESS}


def test_a_step_is_not_lost_with_the_answer_that_its_statistics_wait_for(run_path: Path) -> None:
    """What is beyond the memory for payloads is fetched when its step is shown."""
    build_run(Whole(run_path), [Step({}, {"fc.weight": np.ones(4)})] * 20, workers=2, steps_per_flush=1)
    for seed in range(3):
        store, chance = Objects(run_path), np.random.default_rng(seed)
        follower = Follower(store)
        Payloads(store).keep(Frame(FrameKind.STATISTICS, 0, bytes(KEPT_BYTES), source="another run"))
        store.answers = lambda number, chance=chance: chance.random() < 0.8
        shown: list[tuple[str, int, int]] = []
        for _ in range(400):
            with suppress(StoreError):
                for views in views_shown(follower.poll(full=True)):
                    shown += [(view.worker, view.global_step, len(view.statistics())) for view in views]
        assert shown == [(worker, n, 1) for n in range(20) for worker in ("worker_0", "worker_1")]


def test_what_every_flush_begins_with_is_not_kept(run_path: Path) -> None:
    with RunBuilder(Whole(run_path)) as builder:
        follower = Follower(Objects(run_path))
        for _ in range(30):
            builder.step(scalars={"loss": 1.0})
            assert len(list(views_shown(follower.poll(full=True)))) == 1
        (worker,) = follower.workers.values()
        assert len(worker.tables.headers) == 1


@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_the_lease_is_renewed_in_the_middle_of_much_to_evaluate(run_path: Path, seconds: float) -> None:
    build_run(Whole(run_path), [Step({"loss": 1.0})] * 20)
    clock = Now()
    followed = evaluator(Objects(run_path), clock=clock, at_work=lambda: clock.advance(seconds))
    followed.open(lambda seconds: True)
    before = json.loads(Whole(run_path).read(layout.LEASE_RENEWED))["number"]
    followed.turn()
    assert json.loads(Whole(run_path).read(layout.LEASE_RENEWED))["number"] - before == 60 // 12 * (seconds > 0)
    followed.close()


@pytest.mark.parametrize("workers", [1, 8, 1024])
def test_a_flushed_segment_is_seen_within_two_seconds(run_path: Path, workers: int) -> None:
    intervals = Objects(run_path).policy.intervals(workers)
    assert intervals.poll_s <= 1.0
    assert intervals.flush_s <= 60.0
    with RunBuilder(Whole(run_path)):
        followed = evaluator(Objects(run_path))
        assert followed.pause_s == intervals.poll_s
        followed.close()


def test_what_was_insisted_on_in_vain_is_reported_once_and_not_waited_for_again() -> None:
    clock, said, tried = Now(), list[str](), list[float]()

    def refuse() -> bool:
        tried.append(clock.s)
        raise StoreError("the disk is full")

    def pause(seconds: float) -> bool:
        clock.advance(seconds)
        return True

    retry = StoreRetry(lambda: 1.0, said.append, lambda: None, clock, longest_pause_s=5.0)
    assert not retry.insist(refuse, 10.0, pause)
    assert len(tried) == 11
    assert not retry.insist(refuse, 10.0, pause)
    assert len(tried) == 12
    assert said == [
        "store unreachable, retrying: the disk is full",
        "not all steps were evaluated and written; to evaluate them: watchglass check",
    ]
    assert retry.insist(lambda: True, 10.0, pause)
    assert not retry.insist(refuse, 10.0, pause)
    assert len(tried) == 23, "it was reachable in between"
