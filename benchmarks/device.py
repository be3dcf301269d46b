"""The same measurement on a GPU, and whether the training's thread ever waits for it because of us."""

from __future__ import annotations

import dataclasses
import gc
import tempfile
from collections.abc import Callable

import torch

import limits
from configurations import Configuration
from pairs import Comparison, Step, compare
from watched import Measured, complaints, housekeeper, watching
from workloads import Training, large_transformer

MODEL = "large transformer"

#: Steps that are made before the device is waited for: work is queued ahead, as in a training run.
TURN = 10
_WARM_UP_TURNS = 3


def available() -> bool:
    """Whether there is a GPU to measure on."""
    return torch.cuda.is_available()


def measure(
    configuration: Configuration,
    *,
    half_width: float,
    limit_s: float,
    progress: Callable[[Comparison], None],
    make: Callable[[], Training] = lambda: large_transformer("cuda"),
    wait: Callable[[], None] = torch.cuda.synchronize,
    waits: Callable[[Step, Step], list[str]] | None = None,
) -> Measured:
    """Compare one watched training with two bare ones, in turns of several steps at whose end the device is done.

    Args:
        configuration: How the training is watched.
        half_width: How well the control must be known.
        limit_s: Enough in any case.
        progress: Called after every block.
        make: Makes the training.
        wait: Waits for the device.
        waits: Finds waits for the device in a watched step, given also a bare one; :func:`found_waits` when None.
    """
    subject, bare, other = (make() for _ in range(3))
    for training in (bare, other):
        training.step()
    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        with watching(subject, configuration, folder) as watched:
            turns = [_turn(step, wait) for step in (watched.step, bare.step, other.step)]
            for _ in range(_WARM_UP_TURNS):
                for turn in turns:
                    turn()
            found = (waits or found_waits)(watched.step, bare.step)
            wait()
            gc.collect()
            comparison = compare(
                *turns,
                block=2,
                half_width=half_width,
                limit_s=limit_s,
                charged_s=watched.background,
                trim=configuration.trim,
                before_block=housekeeper(watched),
                progress=progress,
            )
        seen = limits.captured(make(), configuration.captured)
        found += complaints(watched, configuration, seen)
    return Measured(dataclasses.replace(comparison, bare_ms=comparison.bare_ms / TURN), seen, found)


def found_waits(watched: Step, bare: Step, mode: Callable[[str], None] = torch.cuda.set_sync_debug_mode) -> list[str]:
    """Make a turn of steps in which PyTorch raises where a thread waits for the device: empty when none does.

    Raises:
        RuntimeError: The bare training waits itself, so nothing can be said.
    """
    mode("error")
    try:
        bare()
        try:
            for _ in range(TURN):
                watched()
        except RuntimeError as error:
            return [f"a watched step waits for the device: {str(error).splitlines()[0]}"]
    finally:
        mode("default")
    return []


def _turn(step: Step, wait: Callable[[], None]) -> Step:
    def turn() -> None:
        for _ in range(TURN):
            step()
        wait()

    return turn
