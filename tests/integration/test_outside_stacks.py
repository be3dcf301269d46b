"""A process that holds the interpreter's lock for ever cannot record its stacks: the evaluator reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import watchglass
from waiting import until
from watchglass.errors import WatchglassError
from watchglass.evaluate.live.outside_stacks import outside_stacks

#: ``PyDLL`` keeps the lock during a call.
STANDS = """
import ctypes, sys

def stands_in_compiled_code():
    print("here", flush=True)
    ctypes.PyDLL(None).pause()

{}
stands_in_compiled_code()
"""
TRAINS = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(30):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
import time
for _ in range(200):  # the last steps are written, also if the machine stands still meanwhile
    time.sleep(0.01)
"""


def test_of_a_process_that_holds_the_lock() -> None:
    with subprocess.Popen([sys.executable, "-c", STANDS.format("")], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            threads = until(lambda: outside_stacks(process.pid), pause_s=0.1)
        finally:
            process.kill()
    assert [thread["trains"] for thread in threads] == [True]
    assert "stands_in_compiled_code" in [name for _, _, name in threads[0]["frames"]]


def test_of_no_process_of_python_and_without_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert outside_stacks(process.pid) == []
        finally:
            process.kill()
    monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)
    assert outside_stacks(os.getpid()) == []


@pytest.mark.slow
def test_a_hang_in_compiled_code_is_named_during_the_run(tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "train.py"
    script.write_text(STANDS.format(TRAINS))
    options = ["--run", str(run), "--rules", "Hang:threshold=25,factor=0,pauses=0", "--stop-on", "warning"]
    command = [sys.executable, "-m", "watchglass", "run", *options, str(script)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as launcher:
        try:
            findings = until(lambda: watchglass.open_run(run).journal.findings, despite=(WatchglassError,))
        finally:
            launcher.terminate()
    assert "in stands_in_compiled_code" in findings[0].message, "and not only that no stack could be read"
