"""A run that completes no step any more is reported, with the place where it stands, whatever rules are evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchglass.config import EvaluatorTiming
from watchglass.evaluate.follower import FollowedWorker
from watchglass.evaluate.live.standstill import Standstill
from watchglass.records import Observation
from watchglass.rules import place_of
from watchglass.store import open_store
from watchglass.tables import WorkerTables
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import views_of

FRAMES = [["/usr/lib/python3.11/threading.py", 300, "wait"], ["/home/me/hangs.py", 6, "<module>"]]
STACKS = {"threads": [{"name": "MainThread", "trains": True, "frames": FRAMES}]}


class Run:
    """A run whose last step is over, as an evaluator sees it."""

    def __init__(self, path: Path, *, step_s: float = 0.1, facts: dict[str, dict[str, Any]] | None = None) -> None:
        steps = [Step({"loss": 1.0}, seconds=step_s, facts=facts or {} if n == 0 else {}) for n in range(9)]
        location = build_run(path, steps)
        store = open_store(location)
        self.worker = FollowedWorker(0, "worker_0", store, WorkerTables(store), ended=9)
        self.worker.views = [list(views_of(location))[-1]]
        self.said: list[str] = []
        self.notice = Standstill(self.said.append, EvaluatorTiming())

    def silent(self, seconds: float, *, stacks: bool = True, steps: int = 9) -> list[str]:
        """What is said at a tick after so many seconds."""
        before = len(self.said)
        data: dict[str, Any] = {"seconds": {"worker_0": seconds}, "living": ["worker_0"]}
        if stacks:
            data["stacks"] = {"worker_0": STACKS}
        group = self.worker.group
        self.notice.look([Observation("tick", 0, None, data, group, steps)], [self.worker])
        return self.said[before:]

    def end(self, status: str | None) -> list[str]:
        """What is said at the end of the run."""
        before = len(self.said)
        self.worker.left = None if status is None else {"status": status}
        self.worker.moments.shown = 9
        self.notice.end([self.worker])
        return self.said[before:]


@pytest.fixture
def run(run_path: Path) -> Run:
    return Run(run_path)


PLACE = "hangs.py:6 in <module>, in wait of threading.py"


def test_after_a_minute_the_last_step_and_the_line_are_named_once(run: Run) -> None:
    assert place_of(FRAMES) == PLACE
    assert run.silent(30) == []
    assert run.silent(61) == [f"no step for 1 min 1 s after step 8; it stands at {PLACE}"]
    assert run.silent(200) == []


def test_a_run_that_is_interrupted_there_says_where_it_stood(run: Run) -> None:
    run.silent(61)
    run.silent(150, stacks=False)
    said = f"the run ended in a silence of more than 2 min 30 s after step 8; it stood at {PLACE}"
    assert run.end("failed") == [said]
    assert run.end(None) == [said]
    assert run.end("finished") == []  # a script may work for long after its training


def test_nothing_is_said_at_the_end_of_a_short_silence(run: Run) -> None:
    run.silent(30)
    assert run.end("failed") == []


def test_long_steps_may_take_longer(run_path: Path) -> None:
    run = Run(run_path, step_s=10.0)
    assert run.silent(190) == []
    assert len(run.silent(201)) == 1


def test_a_compiled_model_may_stand_still_for_longer_at_first(run_path: Path) -> None:
    run = Run(run_path, facts={"model": {"compiled": True}})
    assert run.silent(599) == []
    assert len(run.silent(601)) == 1


def test_without_stacks_it_waits_for_them(run: Run) -> None:
    assert run.silent(90, stacks=False) == []
    assert run.silent(121, stacks=False) == ["no step for 2 min 1 s after step 8; no stack could be read"]


def test_pauses_that_come_again_are_told_once(run: Run) -> None:
    """Such as long evaluations of another program, or saves."""
    assert len(run.silent(100)) == 1
    assert run.silent(150, steps=18) == []
    assert len(run.silent(201, steps=18)) == 1
