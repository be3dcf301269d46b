"""Every model of a process is examined over its own steps, and equal runs alike, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from watchglass import open_run
from watchglass.capture import Hook, attach, framework
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Verdict
from watchglass.rules import capture_for, default_rules

#: How many times as long everything takes on the busy machine, by its clocks.
IDLE, BUSY = 1, 20


def recorded(run: Path, train: Callable[[], None], busy: int = IDLE) -> Verdict:
    """The verdict on a run that is watched from its start, as by a launcher, on a machine of this load."""
    torch.manual_seed(0)
    with Hook(run, strict=True, **capture_for(default_rules())) as hook:
        # Only wall time passes faster: processor time is that of this machine.
        hook.cost.now_ns = lambda: busy * time.perf_counter_ns()
        hook.clock.now_ns = lambda: busy * time.monotonic_ns()
        attach(hook, framework("torch"))
        train()
    opened = open_run(run)
    return verdict(opened, replay(str(run), default_rules()))


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    inputs = torch.randn(steps, 16, 16)
    return list(zip(inputs, inputs[:, :, :4].argmax(2), strict=True))


def trial(steps: int = 80, *, rate: float = 2e-3, dead: bool = False) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    if dead:
        nn.init.constant_(model[0].bias, -50.0)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for inputs, labels in batches(steps):
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        F.cross_entropy(model(inputs), labels)


def search() -> None:
    """Five trials: the units of the fourth are dead, and the fifth diverges."""
    for rate, dead in ((2e-3, False), (1e-3, False), (5e-3, False), (2e-3, True), (300.0, False)):
        trial(rate=rate, dead=dead)


def left_in_evaluation_mode() -> None:
    """After an evaluation at step 45 of 300 nobody calls model.train()."""
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for step, (inputs, labels) in enumerate(batches(300)):
        if step == 45:
            model.eval()
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def captured(run: Path) -> dict[int, list[int]]:
    """Captured training steps, by model."""
    found: dict[int, list[int]] = {}
    for end, _ in open_run(run).worker().course:
        if end.mode.name == "TRAIN" and end.captures:
            found.setdefault(end.model, []).append(end.mode_step)
    return found


@pytest.mark.parametrize("busy", [IDLE, BUSY])
def test_the_fourth_and_the_fifth_model_of_a_search_are_examined(tmp_path: Path, busy: int) -> None:
    found = recorded(tmp_path / "run", search, busy)
    dead = {finding.model for finding in found.findings if finding.rule == "DeadRelu"}
    assert dead == {3}
    wrong = {finding.model for finding in found.findings if finding.severity.name != "INFO"}
    assert wrong == {3, 4}
    assert all(len(steps) >= 8 for steps in captured(tmp_path / "run").values())
    assert len(captured(tmp_path / "run")) == 5


@pytest.mark.parametrize("train", [search, left_in_evaluation_mode])
def test_equal_runs_have_the_same_captures_and_findings_on_an_idle_and_on_a_busy_machine(
    tmp_path: Path, train: Callable[[], None]
) -> None:
    idle, busy = (recorded(tmp_path / name, train, load) for name, load in (("idle", IDLE), ("busy", BUSY)))
    assert captured(tmp_path / "idle") == captured(tmp_path / "busy")
    assert [each.message for each in idle.findings] == [each.message for each in busy.findings]
    assert idle.status == "issues found"


@pytest.mark.parametrize("busy", [IDLE, BUSY])
def test_a_mode_that_changes_between_captures_is_seen_at_its_step(tmp_path: Path, busy: int) -> None:
    found = recorded(tmp_path / "run", left_in_evaluation_mode, busy)
    (finding,) = [each for each in found.findings if each.rule == "TrainEvalMode"]
    assert "in evaluation mode since step 45" in finding.message
