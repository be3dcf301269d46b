"""However a training run ends, its records and its end are in the run; one that never begins leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from watchglass import open_run

pytestmark = pytest.mark.usefixtures("preloaded_python")

STEPS = 21

TRAIN = """
    import os, sys, threading
    import torch
    import torch.nn.functional as F
    import watchglass

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def watch():
        return watchglass.watch(model, run="run", save_interval=10)

    def train():
        for _ in range(21):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(5, 4)), torch.randint(3, (5,))).backward()
            optimizer.step()

    def nothing_yet():
        assert not os.path.exists("run"), os.listdir("run")
        assert [thread.name for thread in threading.enumerate()] == ["MainThread"]

"""

#: How a script goes on, its exit status, and what the run says of how it ended.
ENDS = {
    "by itself": ("watch(); train()", 0, "finished"),
    "by an exception": ("watch(); train(); raise RuntimeError('broken')", 1, "failed"),
    "by an exception that was caught": (
        "watch(); train()\ntry: raise RuntimeError\nexcept RuntimeError: pass", 0, "finished"
    ),
    "by an exit": ("watch(); train(); sys.exit(3)", 3, "finished"),
    # Importing Arrow makes Python forget that it was interrupted, so not as late as that.
    "by an interrupt": ("import pyarrow; watch(); train(); raise KeyboardInterrupt", -2, "failed"),
    "in a block": ("with watch(): train()", 0, "finished"),
    "by an exception in a block": ("with watch():\n    train(); raise RuntimeError('broken')", 1, "failed"),
    "inside a step": ("watch(); train(); model(torch.randn(5, 4)); raise RuntimeError('broken')", 1, "failed"),
}  # fmt: skip


def outcome(folder: Path, body: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(textwrap.dedent(TRAIN) + body)
    command = [sys.executable, *words, "train.py"]
    environ = {**os.environ, "WATCHGLASS_STRICT": "1"}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_everything_is_written_however_the_script_ends(tmp_path: Path, end: str) -> None:
    body, status, said = ENDS[end]
    done = outcome(tmp_path, body)
    assert done.returncode == status, done.stderr
    assert "watchglass" not in done.stderr.replace("watchglass.watch", "")
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(STEPS))
    assert len(run.scalars("loss")[1]) == STEPS
    assert run.tensor("0.weight").steps() == run.tensor("gradient/2.bias").steps() == [0, 10, 20]
    (left,) = (event for event in run.worker().lifecycle if event["event"] == "left")
    assert left["status"] == said
    assert left["counters"]["train_steps"] == STEPS
    assert not any(left["counters"]["dropped"].values())


@pytest.mark.parametrize("words", [(), ("-m", "watchglass", "run", "--run", "run", "--evaluator=none")])
def test_nothing_is_written_before_the_first_training_step(tmp_path: Path, words: tuple[str, ...]) -> None:
    body = """
nothing = nothing_yet if len(sys.argv) < 2 else lambda: None
nothing()
watch()
nothing()
with torch.no_grad():
    for _ in range(3):
        F.cross_entropy(model(torch.randn(5, 4)), torch.tensor([0, 1, 2, 0, 1]))
watchglass.save_scalar("reward", 1.0)
nothing()
model(torch.randn(5, 4))
nothing()
"""
    done = outcome(tmp_path, body.replace("len(sys.argv) < 2", str(not words)), *words)
    assert done.returncode == 0, done.stderr
    assert not words or not list((tmp_path / "run" / "attempts").glob("*/segments/*"))
    assert words or not (tmp_path / "run").exists()
