"""Runs that complete no step for a while, for tests of rules about silences: made of numbers, or real ones."""

from __future__ import annotations

from typing import Any

from synthetic_steps import training
from watchglass.testing import Silence, Step

#: Waits for an answer after step 25: two seconds, or, if it is sick, until that is found.
SCRIPT = """
def wait_for_answer():
    time.sleep(2)
    while sick and not found():
        for _ in range(30):  # it is here, and not in found(), when its stack is read
            time.sleep(0.1)

for step in range(30):
    update()
    if step == 25:
        wait_for_answer()
"""


def silent(seconds: float, **silence: Any) -> list[Step | Silence]:
    """Twenty steps, and then none for a while."""
    return [*training(20), Silence(seconds=seconds, **silence)]


def with_pauses(**silence: Any) -> list[Step | Silence]:
    """A healthy run with long steps, and with pauses that are at most twice as long as the longest one before."""
    slow = Step(scalars={"loss": 1.0}, seconds=50.0)
    return [*silent(59, **silence), slow, Silence(seconds=90, **silence), slow, *training(2)]
