"""Sources of the settings of a training run, and the records that they select."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from watchglass import Collection, Hook, Mode, open_run
from watchglass.config import SessionConfig
from watchglass.errors import InvalidValueError, MissingFileError

pytestmark = pytest.mark.usefixtures("preloaded_python")

TRAINING = """
import torch, sys
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
{watch}
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(30):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def place(empty_home: Path) -> Iterator[Path]:
    """A working directory with nothing in it, which the search for files does not leave."""
    return empty_home


def train(model: nn.Module, steps: int = 30) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        inputs = torch.randn(16, 8)
        loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def captured(run: str, name: str, worker: str | None = None) -> list[int]:
    return [int(step) for step in open_run(run).tensor(name).steps(Mode.TRAIN, worker)]


def test_watch_takes_settings_from_the_nearest_file_and_code_comes_first(place: Path, model: nn.Module) -> None:
    (place / "watchglass.toml").write_text("save_interval = 10\n[collections.gradients]\nsave_interval = 15\n")
    with watchglass.watch(model, run="run", strict=True, collections={"biases": False, "weights": {"end_step": 15}}):
        train(model)
    assert captured("run", "0.weight") == [0, 10]
    assert captured("run", "gradient/0.weight") == [0, 15]
    assert captured("run", "0.output") == [0, 10, 20]
    assert not open_run("run").tensor_names(role="bias")


def test_a_bad_file_is_reported_before_anything_is_watched(place: Path, model: nn.Module) -> None:
    (place / "watchglass.toml").write_text("save_interval = 0")
    with pytest.raises(InvalidValueError, match=r"watchglass\.toml: save_interval must be >= 1 but got 0"):
        watchglass.watch(model, run="run")
    with pytest.raises(MissingFileError, match=r"other\.toml does not exist"):
        watchglass.watch(model, run="run", config_file="other.toml")
    (place / "watchglass.toml").unlink()
    with pytest.raises(InvalidValueError, match=r"save_intervall is unknown \(did you mean \"save_interval\"\?\)"):
        watchglass.watch(model, run="run", save_intervall=3)
    assert not (place / "run").exists()


def test_a_switched_off_watch_reads_no_file(place: Path, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "watchglass.toml").write_text("save_interval = 0")
    monkeypatch.setenv("WATCHGLASS", "0")
    watchglass.watch(model, run="run")
    train(model)
    assert not (place / "run").exists()


def test_a_second_watch_says_more_of_the_same_run(place: Path, model: nn.Module) -> None:
    with watchglass.watch(model, run="run", strict=True, save_interval=10) as hook:
        assert watchglass.watch(model, collections=["weights", "gradients"]) is hook
        train(model)
    assert captured("run", "0.weight") == [0, 10, 20]
    assert not open_run("run").tensor_names(role="output")


def test_a_hook_made_by_a_script_reads_no_file(place: Path) -> None:
    (place / "watchglass.toml").write_text("save_interval = 0")
    hook = Hook("run", collections=[Collection("default")])
    assert hook.port.config == SessionConfig("run", collections=(Collection("default"),))
    hook.close()


def launch(place: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "watchglass", "run", "--run-dir", "run", *words, "train.py"]
    return subprocess.Popen(command, cwd=place, env={**os.environ, **env}, stderr=subprocess.PIPE, text=True)


def test_the_command_line_comes_before_the_script_and_the_script_before_the_file(place: Path) -> None:
    (place / "watchglass.toml").write_text("save_interval = 3\nsave_shape = true\n")
    (place / "train.py").write_text(
        TRAINING.format(watch="import watchglass; watchglass.watch(model, save_interval=15, save_raw=True)")
    )
    words = ("--evaluator=none", "--collection", "outputs:save_interval=10", "--collection", "updates:end_step=0")
    with launch(place, *words) as done:
        said = done.communicate(timeout=120)[1]
    assert done.returncode == 0, said
    assert f"settings from {place / 'watchglass.toml'}" in said
    run = str(place / "run")
    assert captured(run, "0.weight") == [0, 15]
    assert captured(run, "0.output") == [0, 10, 20]
    assert not open_run(run).tensor_names(role="update")
    assert open_run(run).tensor("0.weight").value(15).shape == (16, 8)


@pytest.mark.slow
def test_one_worker_keeps_tensors_and_the_others_only_what_every_step_has(place: Path) -> None:
    (place / "train.py").write_text(TRAINING.format(watch=""))
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "here"}
    words = ("--include-workers", "one", "--save-interval", "3")
    ranks = [launch(place, *words, RANK=str(rank), **shared) for rank in range(2)]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    run = open_run(place / "run")
    assert captured(str(place / "run"), "0.weight", "worker_0") == list(range(0, 30, 3))
    assert run.tensor_names(worker="worker_1", role="weight") == []
    for worker in ("worker_0", "worker_1"):
        steps, losses = run.scalars("loss", worker=worker)
        assert list(steps) == list(range(30))
        assert len(losses) == 30
    assert run.finished
    statuses = {status.rule: status.status.value for status in run.journal.statuses}
    assert statuses["DeadRelu"] in ("NoIssuesFound", "IssuesFound"), run.journal.statuses
    assert "Starved" not in statuses.values()
