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


def run_words(*more: str) -> list[str]:
    return [sys.executable, "-m", "watchglass", "run", "--run", "run", *more, "train.py"]


def alive_with(mark: str) -> list[str]:
    """Command lines of the processes that inherited an environment variable of this value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="lists processes by Linux's /proc")
@pytest.mark.slow
def test_no_process_outlives_the_command_and_its_last_line_names_what_shows_more(in_tmp_path: Path) -> None:
    Path("train.py").write_text(SCRIPT)
    mark = f"mark-{os.getpid()}-{os.urandom(8).hex()}"
    environ = {**os.environ, "MARK": mark, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(run_words(), capture_output=True, text=True, env=environ)
    left = alive_with(mark)
    assert done.returncode == 0, done.stderr
    assert left == []
    assert not Path("run/profiler-report.html").exists()
    line = done.stderr.splitlines()[-1]
    assert line.endswith("watchglass report run")
    command = [sys.executable, "-m", "watchglass", "report", "--profiler", "run"]
    subprocess.run(command, capture_output=True, text=True, check=True)
    assert "watchglass profiler report" in Path("run/profiler-report.html").read_text()
    removed = subprocess.run(
        [sys.executable, "-m", "watchglass", "rm", "-y", "run"], capture_output=True, text=True, check=True
    )
    assert "kept" not in removed.stderr
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "script"), [(["--no-profiler"], SCRIPT), (["--quiet"], SCRIPT), ([], "print('no training')")]
)
@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
def test_a_run_without_data_for_it_names_no_report(in_tmp_path: Path, options: list[str], script: str) -> None:
    Path("train.py").write_text(script)
    done = subprocess.run(run_words("--evaluator", "none", *options), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--profiler" not in done.stderr
