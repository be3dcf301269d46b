"""Records that cannot be written as fast as they come: captures become rarer, and the training run never waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from limited import PLENTY, watching_within
from waiting import PATIENCE_S
from watchglass import Run, open_run
from watchglass.store import Store, open_store

STEPS = 48


def train(path: Path, **settings: Any) -> tuple[Run, list[int]]:
    """A run whose store opens only as the training ends, and how far captures were apart after each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    intervals = []
    over = threading.Event()

    def late(location: str) -> Store:
        assert over.wait(PATIENCE_S)
        return open_store(location)

    settings = {"overhead_budget": 1e-9, "facts": (), "open_store": late, **settings}
    with watching_within(PLENTY, model, path, **settings) as hook:
        for number in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
            intervals.append(hook.port.plan.budget.spacing(number + 1))
        over.set()
    return open_run(path), intervals


def test_captures_become_rarer_when_the_queue_is_full_and_before_anything_else_is_lost(tmp_path: Path) -> None:
    run, intervals = train(tmp_path / "run", queue_bytes=160_000)
    pressed = intervals.index(2) - 1
    assert 4 < pressed < STEPS / 3
    # Again after some captures, and never back while it lasts.
    assert intervals == sorted(intervals)
    assert intervals[-1] >= 8
    changes = [(fact.global_step, fact.data["interval"]) for fact in run.facts("capture_interval")]
    # A step is put as the next one begins.
    assert next(change for change in changes if change[1] > 1) == (pressed, 2)
    # Statistics are what is dropped for it, and counted; each step is there, with its loss.
    dropped = run.worker().lifecycle[-1]["counters"]["dropped"]
    assert dropped["statistics"] > 0
    assert (dropped["scalars"], dropped["facts"], dropped["steps"]) == (0, 0, 0)
    assert run.steps() == list(range(STEPS))
    assert len(run.scalars("loss")[1]) == STEPS
    assert run.tensor("0.weight").reductions("l2")[0].tolist() == list(range(pressed))


def test_with_room_for_all_of_it_captures_come_as_planned(tmp_path: Path) -> None:
    run, intervals = train(tmp_path / "run")
    assert intervals == [1] * 31 + [4] * (STEPS - 31)
    assert run.facts("capture_interval") == []
    assert run.tensor("0.weight").reductions("l2")[0].tolist() == [*range(32), *range(32, STEPS, 4)]


def test_a_fixed_interval_stays_and_only_statistics_are_lost(tmp_path: Path) -> None:
    run, intervals = train(tmp_path / "run", queue_bytes=160_000, save_interval=1)
    assert intervals[-1] == 1
    assert run.facts("capture_interval") == []
    assert run.worker().lifecycle[-1]["counters"]["dropped"]["statistics"] > 0
    assert run.steps() == list(range(STEPS))
