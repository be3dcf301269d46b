"""An evaluator whose store is away now and then misses nothing, and asks for little while nothing happens."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from watchglass.config import EvaluatorConfig
from watchglass.errors import StoreError
from watchglass.evaluate import Evaluator, replay
from watchglass.records import Severity
from watchglass.rules import default_rules
from watchglass.run import open_run
from watchglass.store import LocalStore, layout, pace_of
from watchglass.testing import RunBuilder

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
    monkeypatch.setattr(sys.modules["watchglass.testing.build_run"], "LocalStore", Whole)


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
        assert layout.stop_request(0) in [entry.path for entry in Whole(run_path).list("control")]
        assert followed._follower.problems == []
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


@pytest.mark.parametrize("workers", [1, 8, 1024])
def test_a_flushed_segment_is_seen_within_two_seconds(run_path: Path, workers: int) -> None:
    pace = pace_of(Objects(run_path), workers)
    assert pace.poll_s <= 1.0
    assert pace.flush_s <= 60.0
    with RunBuilder(run_path):
        followed = evaluator(Objects(run_path))
        assert followed.pause_s == pace.poll_s
        followed.close()
