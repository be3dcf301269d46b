"""The stages of real runs: each process that trains has an initialization, however it came to its first step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchglass import open_run

pytestmark = pytest.mark.slow

TRAIN = """
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
"""
BEGIN = "import torch\nfrom torch import nn\ntorch.set_num_threads(1)\n" + TRAIN
SCRIPTS = {
    "plain": BEGIN + "train(nn.Linear(4, 1))\n",
    "late import": "import time\ntime.sleep(0.2)\nif __name__ == '__main__':\n"
    + "".join(f"    {line}\n" for line in (BEGIN + "train(nn.Linear(4, 1))").splitlines()),
    "evaluation first": BEGIN
    + "model = nn.Linear(4, 1)\nwith torch.no_grad():\n    model(torch.ones(2, 4))\ntrain(model)\n",
    # The parent has read a loader, so its phases have begun, and the child trains at once.
    "forked": BEGIN
    + """
import multiprocessing, time
from torch.utils.data import DataLoader
model = nn.Linear(4, 1)
for batch in DataLoader(torch.zeros(8, 4)):
    pass
time.sleep(0.1)
def begin(model):
    with open("begun_ns", "w") as file:
        print(time.monotonic_ns(), file=file)
    train(model)
child = multiprocessing.get_context("fork").Process(target=begin, args=(model,))
child.start()
child.join()
""",
    "spawned": BEGIN
    + """
import torch.multiprocessing
def work(rank):
    train(nn.Linear(4, 1))
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=1)
""",
    "ranks": BEGIN
    + """
import torch.distributed
torch.distributed.init_process_group("gloo")
train(nn.parallel.DistributedDataParallel(nn.Linear(4, 1)))
torch.distributed.destroy_process_group()
""",
}


@pytest.mark.usefixtures("preloaded_python")
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_every_process_has_an_initialization(in_tmp_path: Path, name: str) -> None:
    Path("train.py").write_text(SCRIPTS[name])
    ranks = 2 if name == "ranks" else 1
    program = ["train.py"]
    if ranks > 1:
        program = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program]
    words = ["-m", "watchglass", "run", "--run", "run", "--evaluator", "none", *program]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    run = open_run("run")
    assert len(run.workers) == ranks
    for worker in run.workers:
        first = run.stages(worker).stages[0]
        assert (first.name, first.seconds > 0) == ("initialization", True)
        if name == "forked":  # the time of the parent belongs to no step of the child
            ended_ns = int(run.worker(worker).tables.steps.log.latest["end_ns"][0])
            assert run.phases(worker=worker).seconds[0] < (ended_ns - int(Path("begun_ns").read_text())) / 1e9
