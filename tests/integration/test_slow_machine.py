"""A script has the same findings on a machine that gives it a tenth of its time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from waiting import PATIENCE_S, until
from watchglass import open_run
from watchglass.records import Severity

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process, which needs signals of POSIX"),
]

#: How long the script runs and then stands still, again and again.
_RUNS_S, _STANDS_S = 0.005, 0.045

#: The second model's units are dead, which 16 captures show. The third is left in evaluation mode at its step 45.
SCRIPT = """
import os, sys, torch
from pathlib import Path
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
for trial in range(3):
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    if trial == 1:
        nn.init.constant_(model[2].bias, -50.0)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    if trial == 0:  # imports are over
        Path(sys.argv[1]).write_text(str(os.getpid()))
    for step in range(100):
        if trial == 2 and step == 45:
            model.eval()
        inputs = torch.randn(16, 16)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
Path(sys.argv[1]).unlink()
"""


class Ended(NamedTuple):
    """A run that has ended.

    Attributes:
        headline: The first line of its verdict.
        findings: Rule, severity, model, and the step since which it was so.
        stops: How often the training process was stopped.
    """

    headline: str
    findings: set[tuple[str, Severity, int, int]]
    stops: int


def watched(folder: Path, *, slow: bool) -> Ended:
    """The script under ``watchglass run``; if ``slow``, its process stands still for most of the time."""
    folder.mkdir()
    script, number, run = folder / "script.py", folder / "process", folder / "run"
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "watchglass", "run", "--run", str(run), str(script), str(number)]
    launcher = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    stops = 0
    try:
        process = int(until(lambda: number.read_text(), despite=(FileNotFoundError,)))
        with suppress(ProcessLookupError):  # it has ended
            while slow and number.exists():
                os.kill(process, signal.SIGSTOP)
                time.sleep(_STANDS_S)
                os.kill(process, signal.SIGCONT)
                time.sleep(_RUNS_S)
                stops += 1
        _, said = launcher.communicate(timeout=PATIENCE_S)
    finally:
        launcher.kill()  # its script ends with it
        launcher.wait()
    assert launcher.returncode == 0, said
    (headline,) = re.findall(r"^(?:[0-9]+ (?:error|warning|info)|(?:no issues found|not judged)).*", said, re.MULTILINE)
    found = open_run(run).journal.findings
    return Ended(headline, {(each.rule, each.severity, each.model, each.since) for each in found}, stops)


def test_a_script_has_the_same_findings_where_it_stands_still_for_most_of_the_time(tmp_path: Path) -> None:
    plain, slow = watched(tmp_path / "plain", slow=False), watched(tmp_path / "slow", slow=True)
    assert slow.stops > 20
    assert slow.findings == plain.findings
    assert slow.headline == plain.headline
    assert {("DeadRelu", Severity.ERROR, 1, 100), ("TrainEvalMode", Severity.WARNING, 2, 245)} <= plain.findings
    assert {model for _, severity, model, _ in plain.findings if severity is not Severity.INFO} == {1, 2}
