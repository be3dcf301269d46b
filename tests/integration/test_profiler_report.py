"""The profiler report that `watchglass run` writes at the end of a real run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import until
from watchglass.launch.profiler_report import ReportProcess

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
    return [sys.executable, "-m", "watchglass", "run", "--run", "run", "--evaluator", "none", *more, "train.py"]


def environment(switch: str = "1") -> dict[str, str]:
    return {**os.environ, "WATCHGLASS_PROFILER_REPORT": switch}


@pytest.mark.slow
def test_a_profiled_run_has_its_report_and_says_where(in_tmp_path: Path) -> None:
    Path("train.py").write_text(SCRIPT)
    done = subprocess.run(run_words(), capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"watchglass: profiler report {Path('run/profiler-report.html')}")
    page = until(Path("run/profiler-report.html").read_text, despite=(OSError,))  # on a slow machine it comes later
    assert "watchglass profiler report" in page
    removed = subprocess.run(
        [sys.executable, "-m", "watchglass", "rm", "-y", "run"], capture_output=True, text=True, check=True
    )
    assert "kept" not in removed.stderr
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "script", "switch"),
    [
        (["--no-profiler-report"], SCRIPT, "1"),
        (["--no-profiler"], SCRIPT, "1"),
        ([], SCRIPT, "0"),
        ([], "print('no training')", "1"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
def test_other_runs_have_none(in_tmp_path: Path, options: list[str], script: str, switch: str) -> None:
    Path("train.py").write_text(script)
    done = subprocess.run(run_words(*options), capture_output=True, text=True, env=environment(switch))
    assert done.returncode == 0, done.stderr
    assert "profiler report" not in done.stderr
    assert not Path("run/profiler-report.html").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
def test_a_report_that_cannot_be_written_changes_no_exit_status(in_tmp_path: Path) -> None:
    Path("train.py").write_text(SCRIPT + "import os\nos.makedirs('run/profiler-report.html/x')\nraise SystemExit(7)\n")
    done = subprocess.run(run_words(), capture_output=True, text=True, env=environment())
    assert done.returncode == 7
    (line,) = [line for line in done.stderr.splitlines() if "profiler report" in line]
    assert "watchglass report --profiler run" in line or "still being written" in line


def process(program: str, output: str | None = None) -> ReportProcess:
    return ReportProcess("s3://bucket/run", output, os.environ, (sys.executable, "-c", program))


def test_a_process_gets_the_run_and_the_file_and_succeeds() -> None:
    found = process("import sys; assert sys.argv[1:] == ['-o', 'p.html', '--', 's3://bucket/run']", "p.html")
    assert found.wait(30)
    assert found.failure == ""
    found.end()


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        ("import sys; sys.exit('a\\nwatchglass: error: the disk is full')", "the disk is full"),
        ("import os; os._exit(3)", "the process that writes it ended with status 3"),
    ],
)
def test_a_failure_has_its_reason(program: str, failure: str) -> None:
    found = process(program)
    assert found.wait(30)
    assert found.failure == failure
    found.end()


def test_a_process_that_goes_on_is_ended() -> None:
    found = process("import time; time.sleep(600)")
    assert not found.wait()
    found.end()
    assert found.wait()
