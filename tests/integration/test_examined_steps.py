"""Every model of a process is examined over its own steps, and equal runs alike, however busy the machine is."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from watchglass import open_run
from watchglass.capture import Hook, attach, loop
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.records import Verdict
from watchglass.rules import capture_for, default_rules
from watchglass.view import verdict_text

#: How many times as long everything takes on the busy machine.
IDLE, BUSY = 1, 20


class Machine:
    """Clocks of a machine of some load, on which reading the time is all the work that there is.

    So the cost of a run does not depend on the machine of the test.
    """

    def __init__(self, load: int) -> None:
        self._load = load
        self._worked_ns = 0

    def used_ns(self) -> int:
        """Processor time so far: a callback uses a twentieth of a millisecond."""
        self._worked_ns += 50_000
        return self._worked_ns

    def callbacks_ns(self) -> int:
        """The clock of callbacks."""
        return self._load * self._worked_ns

    def steps_ns(self) -> int:
        """The clock of steps: the script's work takes some tenths of a millisecond for each."""
        self._worked_ns += 300_000
        return self._load * self._worked_ns


class Recorded(NamedTuple):
    """A run: where it is, and the verdict on it."""

    run: Path
    verdict: Verdict


def recorded(folder: Path, train: Callable[[], None], busy: int = IDLE) -> Recorded:
    """A run that is watched from its start, as by a launcher, on a machine of this load; recorded once."""
    return _recorded(folder.parent, train, busy)


@functools.cache
def _recorded(folder: Path, train: Callable[[], None], busy: int) -> Recorded:
    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    torch.manual_seed(0)
    machine = Machine(busy)
    # The recorder's thread costs nothing there.
    with (
        mock.patch("time.thread_time_ns", return_value=0),
        Hook(run, strict=True, **capture_for(default_rules())) as hook,
    ):
        hook.port.cost.now_ns, hook.port.cost.used_ns = machine.callbacks_ns, machine.used_ns
        hook.port.clock.now_ns = machine.steps_ns
        attach(hook.port, loop("torch"))
        train()
    opened = open_run(run)
    return Recorded(run, verdict(opened, replay(str(run), default_rules())))


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
    run, found = recorded(tmp_path, search, busy)
    dead = {finding.model for finding in found.findings if finding.rule == "DeadRelu"}
    assert dead == {3}
    wrong = {finding.model for finding in found.findings if finding.severity.name != "INFO"}
    assert wrong == {3, 4}
    text = " ".join(verdict_text(found).split())
    assert "since step 240, the first of model_4" in text
    assert "since step 320, the first of model_5" in text
    assert all(len(steps) >= 8 for steps in captured(run).values())
    assert len(captured(run)) == 5


@pytest.mark.parametrize("train", [search, left_in_evaluation_mode])
def test_equal_runs_have_the_same_captures_and_findings_on_an_idle_and_on_a_busy_machine(
    tmp_path: Path, train: Callable[[], None]
) -> None:
    idle, busy = (recorded(tmp_path, train, load) for load in (IDLE, BUSY))
    assert captured(idle.run) == captured(busy.run)
    assert [each.message for each in idle.verdict.findings] == [each.message for each in busy.verdict.findings]
    assert idle.verdict.status == "issues found"


@pytest.mark.parametrize("busy", [IDLE, BUSY])
def test_a_mode_that_changes_between_captures_is_seen_at_its_step(tmp_path: Path, busy: int) -> None:
    found = recorded(tmp_path, left_in_evaluation_mode, busy)
    (finding,) = [each for each in found.verdict.findings if each.rule == "TrainEvalMode"]
    assert "in evaluation mode since step 45" in finding.message
