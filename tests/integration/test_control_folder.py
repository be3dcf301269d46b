"""A process is watched to its end although others put obstacles into the folder of its requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_training_run_ends_although_its_control_folder_holds_a_fifo(tmp_path: Path) -> None:
    script = """
import os, torch, watchglass
model = torch.nn.Linear(2, 2)
watchglass.watch(model, run="run")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(300):
    if step == 20:
        os.makedirs("run/control/stop/0000/0000", exist_ok=True)
        for name in ("request", "commit"):
            os.mkfifo(f"run/control/stop/0000/0000/{name}")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
