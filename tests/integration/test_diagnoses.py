"""The example's five faults through the command line, and its healthy run. Rules have real runs in tests/unit/rules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preloaded import Preloaded
from watchglass import open_run
from watchglass.diagnose import verdict

pytestmark = pytest.mark.slow

FAULTS = {
    "learning-rate": ("learning_rate_too_high", 4),
    "sigmoid-stack": ("deep_saturating_activations", 10),
    "dying-relu": ("dying_relu", 10),
    "identical-init": ("identical_initialization", 10),
    "overfit": ("overfitting", 160),
}


@pytest.fixture(autouse=True)
def python(preloaded: Preloaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that has imported what the example imports."""
    monkeypatch.setattr(sys, "executable", str(preloaded.importing("sklearn.datasets")))


def train(script: Path, folder: Path, *arguments: str, options: Sequence[str] = ()) -> None:
    command = [sys.executable, "-m", "watchglass", "run", "--run", str(folder), *options, str(script), *arguments]
    environ = {**os.environ, "WATCHGLASS_STRICT": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def check(folder: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "watchglass", "check", str(folder), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_own_first_cause(tmp_path: Path, digits_script: Path, fault: str) -> None:
    cause, epochs = FAULTS[fault]
    # A fixed interval, as a time budget lets a slow machine capture too little.
    options = ("--save-interval", "16")
    train(digits_script, tmp_path / "run", "--fault", fault, "--epochs", str(epochs), options=options)
    run = open_run(tmp_path / "run")
    first = verdict(run).diagnoses[0]
    assert first.causes[0].cause.id == cause
    assert first.what_to_try
    status, said = check(tmp_path / "run")
    assert status == 1
    assert said["findings"]


def test_the_healthy_run_has_no_issues(tmp_path: Path, digits_script: Path) -> None:
    train(digits_script, tmp_path / "run", "--epochs", "20")
    status, said = check(tmp_path / "run")
    assert (status, [row["rule"] for row in said["findings"] if row["severity"] != "info"]) == (0, [])


def test_a_divergence_names_its_first_bad_module_in_json(tmp_path: Path, digits_script: Path) -> None:
    train(digits_script, tmp_path / "run", "--fault", "learning-rate", "--epochs", "2")
    _, said = check(tmp_path / "run")
    assert set(said) >= {"run", "status", "findings"}
    keys = [
        "id",
        "rule",
        "severity",
        "step",
        "last_step",
        "count",
        "mode",
        "worker",
        "tensors",
        "value",
        "limit",
        "message",
        "causes",
        "try",
    ]
    for row in said["findings"]:
        assert set(keys) <= set(row)
    [broken] = [row for row in said["findings"] if row["severity"] == "error"]
    modules = open_run(tmp_path / "run").facts("model")[0].data["module_types"]
    bad = open_run(tmp_path / "run").facts("first_bad_module")[0].data
    assert bad["level"] == "rerun"
    assert bad["module"] in modules
    assert any(name.startswith((bad["module"], f"gradient/{bad['module']}")) for name in broken["tensors"])
