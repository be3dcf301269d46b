"""Records that cannot be written as fast as they come: captures become rarer, in a training that waits for nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from watchglass import Run, open_run
from watchglass.capture.budget import Budget
from watchglass.record import Recorder

STEPS = 48


def train(path: Path, **settings: object) -> tuple[Run, list[tuple[bool, int]]]:
    """A run, and by step whether the recorder was under pressure after it and how far captures were apart then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with watchglass.watch(model, run=path, strict=True, **settings) as hook:
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
            budget = hook.plan.budget
            seen.append((hook._recorder.pressure, budget.spacing(budget._steps + budget._fast_steps)))
    return open_run(path), seen


@pytest.fixture(autouse=True)
def captures_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take here."""
    monkeypatch.setattr(Budget, "_affordable", lambda self: 1)
    monkeypatch.setattr(Budget, "_paid", lambda self, cost_ns, beside_ns: None)


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the training runs, nothing that is queued gets written."""
    flush = Recorder._flush
    monkeypatch.setattr(
        Recorder, "_flush", lambda self, writer, closing: closing is not None and flush(self, writer, closing)
    )


@pytest.mark.usefixtures("slow_store")
def test_captures_become_rarer_when_the_queue_is_full_and_before_anything_else_is_lost(tmp_path: Path) -> None:
    run, seen = train(tmp_path / "run", queue_bytes=160_000)
    pressed = [number for number, (pressure, _) in enumerate(seen) if pressure]
    assert pressed == list(range(pressed[0], STEPS)), "nothing was taken from the queue"
    assert 4 < pressed[0] < STEPS / 3
    intervals = [interval for _, interval in seen]
    # Not before; then at once, again after some captures, and never back while it lasts.
    assert set(intervals[: pressed[0]]) == {1}
    assert intervals[pressed[0] + 1] == 2
    assert intervals == sorted(intervals)
    assert intervals[-1] >= 8
    changes = [(fact.global_step, fact.data["interval"]) for fact in run.facts("capture_interval")]
    # A step is put as the next one begins.
    assert next(change for change in changes if change[1] > 1) == (pressed[0], 2)
    # Statistics are what is dropped for it, and counted; each step is there, with its loss.
    dropped = run.worker().lifecycle[-1]["counters"]["dropped"]
    assert dropped["statistics"] > 0
    assert (dropped["scalars"], dropped["facts"], dropped["steps"]) == (0, 0, 0)
    assert run.steps() == list(range(STEPS))
    assert len(run.scalars("loss")[1]) == STEPS
    assert run.tensor("0.weight").reductions("l2")[0].tolist() == list(range(pressed[0]))


@pytest.mark.usefixtures("slow_store")
def test_with_room_for_all_of_it_every_step_is_captured(tmp_path: Path) -> None:
    run, seen = train(tmp_path / "run")
    assert seen == [(False, 1)] * STEPS
    assert [fact.data["interval"] for fact in run.facts("capture_interval")] == [1]
    assert run.tensor("0.weight").reductions("l2")[0].tolist() == list(range(STEPS))


@pytest.mark.usefixtures("slow_store")
def test_a_fixed_interval_stays_and_only_statistics_are_lost(tmp_path: Path) -> None:
    run, seen = train(tmp_path / "run", queue_bytes=160_000, save_interval=1)
    assert seen[-1] == (True, 1)
    assert run.facts("capture_interval") == []
    assert run.worker().lifecycle[-1]["counters"]["dropped"]["statistics"] > 0
    assert run.steps() == list(range(STEPS))
