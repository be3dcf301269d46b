"""Real training runs under ``watchglass run``, evaluated while they train, for rules that need a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import watchglass
from real_runs import RealRuns, Watch
from waiting import PATIENCE_S
from watchglass.config import RuleSpec

#: What each script begins with.
BEGIN = """
import sys, time, torch
from torch import nn
from watchglass import open_run
from watchglass.errors import UnknownNameError

run, sick = sys.argv[1], sys.argv[2] == "sick"
torch.set_num_threads(1)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def update():
    inputs = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def found():
    return bool(open_run(run).journal.findings)

def samples():
    try:
        return len(open_run(run).samples("cpu.limit"))
    except UnknownNameError:
        return 0
"""


class LaunchedRuns(RealRuns):
    """Tests of one rule on a script and its healthy twin under a launcher. Derive, set the class attributes.

    The rule has found the sick run while it trained.
    """

    #: What the script does, after :data:`BEGIN`; ``sick`` decides only what makes the run sick.
    script: ClassVar[str]
    #: Parameters of the rule that differ from its defaults.
    parameters: ClassVar[dict[str, Any]] = {}
    #: What runs the script in several processes: a module and its arguments.
    ranks: ClassVar[Sequence[str]] = ()
    #: Options of the launcher for the healthy twin.
    twin_options: ClassVar[Sequence[str]] = ()

    def rules(self) -> list[RuleSpec]:
        """This one: what the others need is not captured."""
        return [RuleSpec(self.rule, self.parameters)]

    def train(self, watch: Watch, *, sick: bool) -> None:
        raise NotImplementedError("a script trains")

    def record(self, run: Path, capture: dict[str, Any], *, sick: bool) -> None:
        script = run.parent / "train.py"
        script.write_text(BEGIN + self.script)
        values = ",".join(f"{name}={value:g}" for name, value in self.parameters.items())
        options = ["--run-dir", str(run), "--rules", f"{self.rule}:{values}" if values else self.rule]
        options += () if sick else self.twin_options
        command = [*self.ranks, "-m", "watchglass", "run", *options, str(script), str(run), "sick" if sick else "twin"]
        done = subprocess.run(
            [sys.executable, *command], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        live = watchglass.open_run(run).journal.findings
        assert bool(self.found(live)) is sick, [finding.message for finding in live]
