"""Waiting for what is to be followed, and the messages of a follower whose store is unreachable."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clocks import Now
from watchglass.config import TIMING, EvaluatorConfig, EvaluatorTiming, RuleSpec
from watchglass.errors import MissingFileError, StoreError
from watchglass.evaluate import follow, follow_runs, what_is_at
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.live.following import Following
from watchglass.store import LocalStore, Store, create_run, open_store
from watchglass.testing import RunBuilder, Step, build_run

STEPS = [Step({"loss": 1.0})] * 5
RULES = (RuleSpec("ExplodingTensor"),)


class Unreachable(LocalStore):
    """A folder that does not answer the first few times it is asked for a size."""

    refuses = 0
    appends = False

    def size(self, path: str) -> int | None:
        if self.refuses > 0:
            self.refuses -= 1
            raise StoreError("the store is unreachable")
        return super().size(path)


def pausing(happens: dict[int, Callable[[], Any]] | None = None, *, most: int = 200) -> Callable[[float], bool]:
    """Pauses of no length in which things happen, by number; after so many following shall end."""
    count = 0

    def pause(seconds: float) -> bool:
        nonlocal count
        count += 1
        (happens or {}).get(count, lambda: None)()
        time.sleep(min(seconds, 0.002))
        return count < most

    return pause


def test_what_is_there_is_known_at_once(tmp_path: Path) -> None:
    build_run(tmp_path / "runs" / "deep" / "one", STEPS)
    assert what_is_at(str(tmp_path / "runs" / "deep" / "one"), pausing()) == "run"
    assert what_is_at(str(tmp_path / "runs" / "deep"), pausing()) == "prefix"
    assert what_is_at(str(tmp_path / "runs"), pausing()) == "prefix"


def test_where_nothing_is_yet_what_comes_first_decides(tmp_path: Path) -> None:
    run = pausing({3: lambda: build_run(tmp_path / "run", STEPS)})
    assert what_is_at(str(tmp_path / "run"), run) == "run"
    below = pausing({3: lambda: build_run(tmp_path / "team" / "runs" / "first", STEPS)})
    assert what_is_at(str(tmp_path / "team"), below) == "prefix"


def test_waiting_ends_with_its_time_or_when_the_caller_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(MissingFileError, match=r"no run at or below .*; .* --wait"):
        what_is_at(str(tmp_path), pausing(), wait_s=0.05)
    assert what_is_at(str(tmp_path), pausing(most=3)) == ""


def test_a_store_that_is_unreachable_is_asked_until_the_wait_is_over(tmp_path: Path) -> None:
    store, said = Unreachable(tmp_path / "run"), []
    build_run(tmp_path / "run", STEPS)

    def looked(**more: Any) -> str:
        return what_is_at(store.location, more.pop("pause", pausing()), opened=lambda location: store, **more)

    store.refuses = 4
    assert looked(report=said.append) == "run"
    assert said == ["store unreachable, retrying: the store is unreachable"]
    store.refuses = 1_000_000
    with pytest.raises(StoreError, match="the store is unreachable"):
        looked(wait_s=0.05)
    store.refuses = 4
    said.clear()
    assert looked(pause=pausing(most=10), report=said.append) == "run"


class NoFleet:
    """An audience that hears nothing."""

    def begun(self, *words: Any) -> None: ...
    def ended(self, *words: Any) -> None: ...
    def skipped(self, *words: Any) -> None: ...
    def notified(self, *words: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "most", "left_off"),
    [({"until_idle_s": 0.2}, 10_000, ""), ({"timeout_s": 0.2}, 10_000, "the time is over"), ({}, 3, "interrupted")],
)
def test_following_many_runs_ends_on_request(tmp_path: Path, options: Any, most: int, left_off: str) -> None:
    build_run(tmp_path / "run", STEPS)
    config = EvaluatorConfig(str(tmp_path), None, RULES, timing=EvaluatorTiming(settled_s=-1.0))
    fleet, why = follow_runs(config, pausing(most=most), NoFleet(), **options)
    assert (fleet.found, why) == (1, left_off)


def test_a_run_that_is_removed_while_it_is_followed_is_said_to_be(tmp_path: Path) -> None:
    RunBuilder(tmp_path / "run").step(STEPS[0])
    clock, pause = Now(), pausing({3: lambda: shutil.rmtree(tmp_path / "run")}, most=10_000)

    def removed(seconds: float) -> bool:
        clock.advance(1.0)
        return pause(seconds)

    config = EvaluatorConfig(str(tmp_path / "run"), None, RULES)
    with pytest.raises(
        MissingFileError, match="was removed while it was followed; start the run again, then follow it again"
    ):
        follow(config, removed, clock=clock)
    assert not (tmp_path / "run").exists()


def test_many_runs_are_asked_with_less_patience_than_a_lease_lasts(tmp_path: Path) -> None:
    """One thread asks for all: a request that nothing answers must not cost the others their leases."""
    asked: list[bool] = []

    def opened(location: str, *, quick: bool = False) -> Store:
        asked.append(quick)
        return open_store(location, quick=quick)

    follow_runs(EvaluatorConfig(str(tmp_path), None, RULES), pausing(most=1), NoFleet(), opened=opened)
    assert asked == [True]
    patience, usual = (open_store("s3://bucket/runs", quick=quick)._requests.patience for quick in (True, False))
    assert 2 * patience.request_s + patience.retry_s < TIMING.lease_expiry_s
    assert patience.request_s < usual.request_s


def test_time_without_a_look_at_the_store_does_not_count_as_waiting_for_the_first_step(run_path: Path) -> None:
    clock, store = Now(), LocalStore(run_path)
    create_run(store, command=[])
    evaluator = Evaluator(EvaluatorConfig(str(run_path), None, ()), store=store)
    evaluator.open(lambda seconds: False, patience_s=0.0)
    late, excused = (Following(evaluator, wait_s=10.0, clock=clock) for _ in range(2))
    clock.advance(11.0)
    excused.excuse(11.0)
    for following in (late, excused):
        following.turn()
    assert (late.is_late, excused.is_late) == (True, False)
    clock.advance(11.0)
    excused.turn()
    assert excused.is_late
    evaluator.close()
