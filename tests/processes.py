"""Processes that a test starts and looks at from outside, none of which outlives it; and a training run for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from waiting import PATIENCE_S

#: A script that knows nothing of us. Its arguments: when it ends and when its loss becomes NaN, each a number of steps
#: or a file that a test makes when it is time, and seconds per step.
TRAIN = """
import os, sys, time
import torch
from torch import nn
import torch.nn.functional as F

end, broken_at, pause = sys.argv[1], sys.argv[2], float(sys.argv[3])

def is_time(when, step):
    return step == int(when) if when.isdigit() else os.path.exists(when)

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
step, broken = -1, False
try:
    while not is_time(end, step + 1):
        step += 1
        inputs = torch.randn(16, 8)
        loss = F.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        if not broken and is_time(broken_at, step):
            broken, loss = True, loss * float("nan")
            print("broken at", step, flush=True)
        loss.backward()
        optimizer.step()
        time.sleep(pause)
finally:
    print("rank", os.environ.get("RANK", 0), "ended at", step, flush=True)
    if "WORLD_SIZE" in os.environ:
        torch.distributed.barrier()  # torchrun terminates the other ranks when the first one ends
        os._exit(86)  # it was stopped: threads of gloo's abort a process that ends by itself now and then
"""
#: For what never happens.
NEVER = "never"


class Processes:
    """Starts processes of Python, each in a group of its own."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, python: str | Path = ""
    ) -> subprocess.Popen[str]:
        """Starts ``python words``, whose output is kept."""
        process = subprocess.Popen(
            [str(python or sys.executable), *map(str, words)],
            cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kills what still runs, with all that it has started."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def ended(process: subprocess.Popen[str], timeout_s: float = PATIENCE_S) -> tuple[int, str, str]:
    """Waits for the end of a process; its exit status, and what it has written on stdout and stderr."""
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err
