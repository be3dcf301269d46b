"""The same small training is watched after each way in which PyTorch may have been looked for or imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from looks import IMPORTS, LOOKS, script
from waiting import PATIENCE_S
from watchglass import open_run
from watchglass.config import SessionConfig
from watchglass.launch.launcher import BOOTSTRAP

pytestmark = pytest.mark.slow

TRAINING = """
import torch
import torch.nn.functional as F
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), 0.1)
for _ in range(50):
    inputs = torch.randn(16, 8)
    loss = F.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BOOSTING = """
import numpy, xgboost, watchglass
inputs = numpy.random.default_rng(0).normal(size=(64, 4))
data = xgboost.DMatrix(inputs, inputs[:, 0] > 0)
xgboost.train({"max_depth": 2}, data, 50, [(data, "train")], callbacks=[watchglass.callback("xgboost")])
"""
EVERY_LOOK = "".join(LOOKS.values())

BEGINNINGS = {
    **{name: f"import {name}" for name in ("transformers", "datasets", "accelerate", "trl", "peft", "lightning")},
    "every look": script(EVERY_LOOK, "torch"),
    "lazy module": script(IMPORTS["lazy module"], "torch"),
    "import in a thread": script(IMPORTS["import in a thread"], "torch"),
    "past all finders": script(IMPORTS["finder in front that does not ask us"], "torch"),
}


def recorded_steps(folder: Path, text: str) -> int:
    """The TRAIN steps that were recorded of a script in a process of a launch."""
    (folder / "train.py").write_text(text)
    environment = {
        **os.environ, "PYTHONPATH": BOOTSTRAP, "WATCHGLASS_FRAMEWORKS": "torch",
        **SessionConfig(run=str(folder / "run")).to_env(),
    }  # fmt: skip
    command = [sys.executable, str(folder / "train.py")]
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "watchglass" not in done.stderr
    return len(open_run(folder / "run").worker().numbers())


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_training_is_watched_after(tmp_path: Path, beginning: str) -> None:
    if beginning.isidentifier() and find_spec(beginning) is None:
        pytest.skip(f"{beginning} is not installed")
    assert recorded_steps(tmp_path, f"{BEGINNINGS[beginning]}\n{TRAINING}") == 50


def test_a_thread_that_imports_and_trains_is_watched(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in TRAINING.splitlines())
    ends = "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"
    assert recorded_steps(tmp_path, f"import threading\ndef train():\n{body}\n{ends}") == 50


def test_boosting_is_watched_after_every_look(tmp_path: Path) -> None:
    assert recorded_steps(tmp_path, f"{script(EVERY_LOOK, 'xgboost')}\n{BOOSTING}") == 50
