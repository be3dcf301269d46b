"""Which steps are captured does not depend on other programs that take the processor's caches now and then."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

import watchglass
from watchglass.capture.planning.cost import Cost
from watchglass.record import OpenStep
from watchglass.records import Mode
from watchglass.run import open_run

_STEPS, _DISTURBANCE_NS = 160, 30_000_000


def _captured(path: Path) -> list[int]:
    """The captured steps of a small run, whose steps are too long to be thinned out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=path, strict=True):
        for _ in range(_STEPS):
            time.sleep(0.002)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(4, (16,))).backward()
            optimizer.step()
    worker = open_run(str(path)).worker()
    train = worker.columns[worker.columns["mode"] == Mode.TRAIN]
    return [int(each) for each in train["step"][worker.ends(train)["captures"] > 0]]


def test_captures_that_really_take_much_longer_now_and_then_change_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = _captured(tmp_path / "calm")
    account, captures = Cost.step_ended, 0

    def disturbed(cost: Cost, ended: OpenStep, own_step: int) -> None:
        nonlocal captures
        captures += ended.due
        if ended.due and captures % 3 == 0:
            begin_ns = time.thread_time_ns()
            while time.thread_time_ns() - begin_ns < _DISTURBANCE_NS:
                pass
        account(cost, ended, own_step)

    monkeypatch.setattr(Cost, "step_ended", disturbed)
    assert _captured(tmp_path / "disturbed") == calm
    assert captures == len(calm) > 32
