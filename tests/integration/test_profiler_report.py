"""The profiler report that `watchglass run` writes at the end of a real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_run_writes_its_report(in_tmp_path: Path) -> None:
    Path("train.py").write_text(SCRIPT)
    words = [
        sys.executable, "-m", "watchglass", "run", "--run", "run", "--evaluator", "none", "--module-times",
        "--save-interval", "16",
        "--profiler-report", "profile.json", "train.py",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "profiler report profile.json (" in done.stderr
    document = json.loads(Path("profile.json").read_text())
    assert document["job"]["training_steps"] == 30
    assert document["job"]["initialization_s"] > 0
    assert [row["module"] for row in document["modules"]] == ["", "0", "1"]
    assert "StepOutlier" in {rule["rule"] for rule in document["rules"]}
    again = subprocess.run(words, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (2, "")
    assert "profile.json exists; choose another file" in again.stderr
