"""docs/profiling.md: its examples run on a run that its command writes, and its metrics are those of the sources."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from amd_smi import FakeAmdSmi
from nvml import FakeNvml
from watchglass.cli import main
from watchglass.profile import open_sources
from watchglass.profile.sources import (
    AmdProcessesSource,
    AmdSource,
    AmdStateSource,
    NvidiaSource,
    NvidiaStateSource,
    ProcessTree,
)

#: Trains until the machine has been sampled a dozen times since its first steps.
SCRIPT = """
import time
import torch
import watchglass
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def samples_after(steps):
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.02)
    rows = watchglass.open_run("profiled").samples().to_arrow().to_pylist()
    return sum(row["times"] for row in rows if row["metric"] == "cpu.utilization")

before = samples_after(20)
while samples_after(20) < before + 12:
    pass
"""


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "profiling.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
def test_every_example_of_the_page_runs(page: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(SCRIPT)
    (command,) = re.findall(r"^\$ watchglass (run .*)$", page, re.MULTILINE)
    words = [sys.executable, "-m", "watchglass", *shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    (traced,) = re.findall(r"^\$ watchglass (trace .*)$", page, re.MULTILINE)
    assert main(shlex.split(traced)) == 0
    shown = json.loads(gzip.decompress(Path("trace.json.gz").read_bytes()))["traceEvents"]
    assert {event["name"] for event in shown} >= {"step 10", "step 19", "forward", "backward"}
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        exec(compile(block, f"docs/profiling.md, block {number}", "exec"), names)  # noqa: S102 - the page's own
    assert "cpu.utilization" in capsys.readouterr().out
    assert len(names["during"]) > 10  # type: ignore[arg-type]
    assert len(names["operators"]) > 5  # type: ignore[arg-type]
    assert len(names["times"]) == 1  # type: ignore[arg-type]
    names.clear()  # the run keeps its segments mapped


def test_every_metric_is_described_with_its_unit(page: str) -> None:
    described: dict[str, str] = {}
    only_nvidia: set[str] = set()
    for line in page.partition("## Metrics")[2].partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            names, units = (cell.strip() for cell in line.split("|")[1:3])
            listed = re.findall(r"`([\w.]+)`", names)
            each = units.split(", ") if ", " in units else [units] * len(listed)
            described |= dict(zip(listed, each, strict=True))
            only_nvidia |= {*listed} if line.endswith("; only NVIDIA |") else set()
    tree = ProcessTree(os.getpid(), True)
    tree.search()
    sources, _ = open_sources(os.getpid(), True, {"CUDA_VISIBLE_DEVICES": ""})
    found: dict[str, str] = {}
    of_amd: dict[str, str] = {}
    for names, vendor in (
        (found, [*sources, NvidiaSource(FakeNvml()), NvidiaStateSource(FakeNvml(), tree)]),
        (of_amd, [source(FakeAmdSmi(), {}) for source in (AmdSource, AmdStateSource)]),
        (of_amd, [AmdProcessesSource(FakeAmdSmi(), tree, {})]),
    ):
        for source in vendor:
            for now_ns in (0, 1_000_000_000):
                names |= {reading.metric.name: reading.metric.unit for reading in source.read(now_ns)}
            source.close()
    assert described == found
    assert of_amd.items() <= found.items()
    assert {name for name in set(found) - set(of_amd) if name.startswith("gpu.")} == only_nvidia
