"""A second watch in a process: its settings hold from the next step on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from waiting import until
from watchglass import open_run
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.run import is_judged


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
        optimizer.step()


def test_other_settings_hold_at_once_also_on_the_fast_path(run_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=run_path, save_interval=1000, strict=True) as hook:
        for number in range(60):
            if number == 40:
                adapter = PyTorchAdapter.of(hook.port)
                assert adapter is not None
                assert adapter.fast_path.on
                assert watchglass.watch(model, save_interval=10) is hook
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()
    assert list(open_run(run_path).tensor("weight").steps()) == [0, 40, 50]


def test_the_same_run_again_ends_the_watch_before_it_and_another_run_does_not(in_tmp_path: Path) -> None:
    first = watchglass.watch(nn.Linear(4, 3), run="run", strict=True)
    train(model := nn.Linear(4, 3), 2)
    second = watchglass.watch(model, run=in_tmp_path / "run", strict=True)
    assert (first.active, second.active) == (False, True)
    train(model, 3)
    other = watchglass.watch(nn.Linear(4, 3), run="other", strict=True)
    assert second.active
    other.close()
    second.close()
    assert open_run("run", attempt=1).steps() == [0, 1, 2]


NOTEBOOK = """
import torch, watchglass
from torch import nn
import torch.nn.functional as F
def cell():
    global hook
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hook = watchglass.watch(model, run="run", rules="default")
    for _ in range(40):
        inputs = torch.randn(32, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), (inputs.sum(1) > 0).long()).backward()
        optimizer.step()
cell()
cell()
hook.close()
print("closed")
"""


@pytest.mark.slow
def test_a_cell_that_is_run_again_has_a_verdict_for_each_run(in_tmp_path: Path) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
    until(lambda: open_run("run").journal.statuses and is_judged(open_run("run")))  # on a slow machine it comes later
    assert done.stderr.count("watchglass: verdict on ") == 2, done.stderr
    assert done.stderr.count("found in 40 steps") == 2, done.stderr
    assert "held by" not in done.stderr


def test_a_script_may_go_to_another_folder_before_its_first_step(
    in_tmp_path: Path,
) -> None:
    for name in ("here", "there"):
        (in_tmp_path / name).mkdir()
    os.chdir("here")
    model = nn.Linear(4, 3)
    with watchglass.watch(model, run="run", rules="default", strict=True):
        os.chdir(in_tmp_path / "there")
        train(model, 5)
    assert open_run(in_tmp_path / "here" / "run").steps() == [0, 1, 2, 3, 4]
    assert any((in_tmp_path / "here" / "run" / "journal").iterdir())
    assert not any((in_tmp_path / "there").iterdir())


def test_what_watching_has_cost_is_not_forgotten_with_the_settings(run_path: Path) -> None:
    model = nn.Linear(4, 3)
    with watchglass.watch(model, run=run_path, save_interval=5, strict=True) as hook:
        train(model, 20)
        before = hook.port.cost.report()
        watchglass.watch(model, save_interval=7)
        after = hook.port.cost.report()
    assert before["callback_ns"] > 0
    assert before["train_ns"] > 0
    # The step that was open may have ended since.
    for name in ("callback_ns", "train_ns", "train_steps"):
        assert after[name] >= before[name]


def test_what_a_second_call_cannot_change_is_said(
    run_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "settings.toml").write_text("")
    model = nn.Linear(4, 3)
    with caplog.at_level(logging.WARNING, "watchglass"), watchglass.watch(model, run=run_path, strict=True):
        watchglass.watch(model)
        assert not caplog.messages
        watchglass.watch(model, rules="default", stop_on="error", config_file=tmp_path / "settings.toml")
    (message,) = caplog.messages
    assert "rules and stop_on and config_file of this call of watch are ignored" in message
