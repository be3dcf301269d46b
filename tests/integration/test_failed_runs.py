"""What a real interpreter does at its end, which the preloaded one of other tests only imitates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import os, signal, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 4)
    torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
    optimizer.step()
"""

#: Waits, where the script is watched, until its steps are safe.
RECORDED = """
from watchglass.session import current_hook
hook = current_hook()
while hook is not None and hook.port._recorder._whole_kept < hook.port._recorder._queue.whole_put:
    time.sleep(0.01)
"""


def watched(tmp_path: Path, end: str) -> tuple[int, int, str, dict[str, object]]:
    """Exit status bare and watched, what was printed on stderr bare, and the JSON of ``check``."""
    script = tmp_path / "train.py"
    script.write_text(TRAINING + end)
    command = [sys.executable, "-m", "watchglass", "run", "-q", "--run", tmp_path / "run", script]
    bare = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    check = [sys.executable, "-m", "watchglass", "check", tmp_path / "run", "--format", "json"]
    found = json.loads(subprocess.run(check, capture_output=True, check=False).stdout)
    assert run.stderr == bare.stderr
    return bare.returncode, run.returncode, bare.stderr, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "bare", "status", "headline"),
    [
        ("raise ValueError('bad')", 1, 1, "failed after 20 training steps: ValueError: bad (train.py:13)"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -2, 130,
         "interrupted after 20 training steps: Ctrl-C (train.py:13)"),
        (RECORDED + "os._exit(0)", 0, 0, "no issues found"),
    ],
)  # fmt: skip
def test_the_end_of_a_script_is_its_own(tmp_path: Path, end: str, bare: int, status: int, headline: str) -> None:
    alone, together, _, found = watched(tmp_path, end)
    assert (alone, together) == (bare, status)
    assert str(found["headline"]).replace(f"{tmp_path}/", "") == headline
