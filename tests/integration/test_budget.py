"""What watching costs is in the run, and everything that speaks of the run says so."""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from limited import PLENTY, watching_within
from watchglass import open_run
from watchglass.capture.limits import DEFAULT_LIMITS, CaptureLimits
from watchglass.capture.planning.budget import MAX_INTERVAL
from watchglass.diagnose import verdict
from watchglass.records import Verdict
from watchglass.view import Judged, Terms, duration, json_document, render_report, verdict_text

STEPS = 120


def watched(run: Path, limits: CaptureLimits = DEFAULT_LIMITS, **settings: Any) -> Verdict:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching_within(limits, model, run, **settings):
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    return verdict(open_run(run))


def written(run: Path) -> int:
    return sum(path.stat().st_size for path in (run / "attempts").rglob("*") if path.is_file())


def spoken(found: Verdict) -> tuple[str, dict[str, Any], str]:
    """The cost as shown on the terminal, to a program and in a report."""
    text = " ".join(verdict_text(found, verbose=True).split())
    return (
        text,
        json.loads(json_document(Judged([found], Terms())))["capture"],
        html.unescape(render_report(open_run(found.run), found)),
    )


def test_bound_budget_bytes_and_memory_are_reported_everywhere(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", overhead_budget=0.05)
    counters = found.capture
    assert counters["train_steps"] == STEPS
    assert 0 < counters["callback_ns"] < counters["train_ns"]
    assert counters["recorder_cpu_ns"] > 0
    assert counters["device_ns"] == 0
    assert (counters["overhead_budget"], counters["fixed_interval"]) == (0.05, False)
    assert counters["peak_bytes"]["cpu"] > 4 * (8 * 16 + 16 + 16 * 3 + 3)
    # All but the frame that says so, the joining one and headers.
    assert 0 <= written(tmp_path / "run") - counters["bytes_written"] < 4096
    cost = duration((counters["callback_ns"] + counters["recorder_cpu_ns"]) / 1e9)
    text, data, page = spoken(found)
    line = f"capture cost at most {cost}; budget 0.5 s + 5 % of {duration(counters['train_ns'] / 1e9)}"
    for shown in (text, page):
        assert line in shown
        assert f"tensors examined at steps 0 to 32 and {counters['captured_steps'] - 33} more" in shown
        assert " written, at most " in shown
        assert " of memory" in shown
    assert data == counters


def test_raw_tensors_are_among_the_bytes(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", save_raw=True, save_interval=4)
    tensors = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.safetensors"))
    assert tensors > 100_000
    assert found.capture["bytes_written"] > tensors * 0.5
    assert abs(written(tmp_path / "run") - found.capture["bytes_written"]) < 0.3 * tensors


def test_a_fixed_interval_has_no_budget(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", save_interval=10)
    text, data, page = spoken(found)
    assert data["fixed_interval"] is True
    assert data["interval"] == 10
    assert "budget" not in text
    assert "; budget" not in page


def test_what_captured_steps_take_longer_is_not_called_the_slowdown_of_the_run(tmp_path: Path) -> None:
    """All other steps are slower too, and nothing compares these with a run that is not watched."""
    found = watched(tmp_path / "run", save_interval=4)
    certain = {**found.capture, "observed_extra_ns": 1e6, "train_ns": 1e9, "train_steps": 100, "captured_steps": 25}
    assert "slowdown" not in verdict_text(found.__class__(**{**vars(found), "capture": certain}))


def test_changes_of_the_interval_are_records(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", PLENTY, overhead_budget=1.0)
    changes = open_run(tmp_path / "run").facts("capture_interval")
    assert changes
    assert changes[-1].data["interval"] == found.capture["interval"] < MAX_INTERVAL
    assert 1 <= changes[-1].data["captures_per_doubling"] <= 8


def test_the_allowance_pays_for_captures_that_the_share_does_not(tmp_path: Path) -> None:
    found = watched(tmp_path / "run", PLENTY, overhead_budget=1e-9)
    captured = list(open_run(tmp_path / "run").tensor("0.weight").steps())
    assert captured == [*range(32), *range(32, 64, 4), *range(64, STEPS, 8)]
    assert found.capture["captured_steps"] == len(captured)


def test_without_an_allowance_and_a_share_there_is_one_price_and_no_more_captures(tmp_path: Path) -> None:
    watched(tmp_path / "run", replace(DEFAULT_LIMITS, allowance_ns=0), overhead_budget=1e-9)
    assert list(open_run(tmp_path / "run").tensor("0.weight").steps()) == [0, 1]


KILLED = """
    import os, signal, time
    import torch
    import torch.nn.functional as F
    from watchglass.session import current_hook

    current_hook().port.cost.report_ns = 0  # not once in ten seconds
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(41):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(4, 8)), torch.tensor([0, 1, 2, 0])).backward()
        optimizer.step()
    recorder = current_hook().port._recorder
    while recorder._whole_kept < recorder._queue.whole_put:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_says_what_it_had_cost(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(KILLED))
    command = [sys.executable, "-m", "watchglass", "run", "-v", "--run", "run", "--save-interval", "10", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, timeout=180, check=False
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(41))
    found = verdict(run)
    assert found.capture["train_steps"] == 41, "as of the last captured step"
    assert found.capture["callback_ns"] > 0
    assert found.capture["train_ns"] > 0
    assert found.capture["recovered_steps"] > 0
    text, data, page = spoken(found)
    for shown in (text, page, " ".join(done.stderr.split())):
        assert "capture cost at most" in shown
        assert "recovered from the flight recorder" in shown
    assert data["interval"] == 10


def test_the_cost_is_reported_rarely(tmp_path: Path) -> None:
    watched(tmp_path / "run", save_interval=1)
    assert DEFAULT_LIMITS.cost_report_ns == 10_000_000_000
    assert open_run(tmp_path / "run").facts("capture_cost") == []
