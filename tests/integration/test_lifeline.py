"""The lifeline of a process that accompanies a run, in a separate process, because it sets signals."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os
from watchglass.supervise import Lifeline

ours, theirs = os.pipe()
lifeline = Lifeline(ours)
print(lifeline.goes_on(0.0))
os.getppid = lambda: 1  # the starter has died, and a process that it forked holds the other end open
print(lifeline.open, lifeline.wait(0.0), lifeline.goes_on(0.0))
"""


@pytest.mark.slow
def test_a_lifeline_that_others_hold_open_ends_with_the_starter() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n") == ["True", "True True False", ""]
