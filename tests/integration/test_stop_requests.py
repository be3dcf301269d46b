"""A reader of a run stops the job, at a step that its workers share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waiting import PATIENCE_S, until
from watchglass.errors import EXIT_STOPPED, EndOfRunError, WatchglassError
from watchglass.run import open_run, request_stop

TRAIN = """
import time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
while True:
    loss = model(torch.ones(2, 4)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_job_stops_at_the_next_step_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "watchglass", "run", "--run", "run", "--evaluator", "none", "train.py"]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(open_run(tmp_path / "run").steps()) > 3, despite=(WatchglassError,))
        step = request_stop(open_run(tmp_path / "run"), "requested by a test")
        _, said = job.communicate(timeout=PATIENCE_S)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == EXIT_STOPPED
    assert "stopped by request" in said
    run = open_run(tmp_path / "run")
    assert 3 < step <= run.steps()[-1]
    with pytest.raises(EndOfRunError, match="has ended, so it cannot be stopped"):
        request_stop(run, "again")
