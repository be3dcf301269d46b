"""A training run that is watched for a measurement, and the evidence that it was watched as configured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import watchglass
from background import Background, delete_oldest
from configurations import FLUSH_INTERVAL_S, Configuration
from limits import Captured
from pairs import Comparison
from workloads import Training

#: Raw tensors on disk beyond which the oldest files go, so that a long measurement fills no disk.
_KEPT_BYTES = 2 << 30

#: Roles of what `limits.captured` counts.
_ROLES = ("weight", "bias", "gradient", "update", "output")


@dataclass(frozen=True)
class Measured:
    """What a measurement found.

    Attributes:
        comparison: Times and ratios.
        seen: What a capture looks at.
        complaints: What the run lacks of what it was to hold; empty where the figure can be believed.
        bound: What watchglass itself says that it cost at most, over a bare step, as a ratio like the measured one;
            NaN if it is not measured.
    """

    comparison: Comparison
    seen: Captured
    complaints: list[str]
    bound: float = math.nan


@dataclass
class Watched:
    """A training run under watch.

    Attributes:
        training: The training.
        run: Its run directory.
        background: Processor seconds that watchglass uses outside the training thread.
        hook: The hook that watches it.
        steps: Training steps made so far.
    """

    training: Training
    run: Path
    background: Background
    hook: watchglass.Hook
    steps: int = 0

    def bound_s(self) -> float:
        """Seconds that watchglass says it has cost so far, at most: what stands in the verdict."""
        costs = {**self.hook.port.cost.report(), **self.hook.port._recorder.report()}
        return float(costs["callback_ns"] + costs["recorder_cpu_ns"] + costs["device_ns"]) / 1e9

    def step(self) -> None:
        """Make one training step."""
        self.training.step()
        self.steps += 1


@contextmanager
def watching(training: Training, configuration: Configuration, folder: str) -> Iterator[Watched]:
    """Watch a training run; its first step is made here."""
    run = Path(folder) / "run"
    background = Background()
    # Strict, so that a fault ends the measurement: a watchglass that had switched itself off would cost nothing.
    # The time of three runs passes for each step of the watched run: work by the clock would be done three times as
    # often for each of its steps.
    handle = watchglass.watch(
        training.model,
        run=run,
        strict=True,
        flush_interval_s=3 * FLUSH_INTERVAL_S,
        **configuration.settings,
    )
    watched = Watched(training, run, background, handle)
    try:
        watched.step()
        yield watched
    finally:
        handle.close()


def housekeeper(watched: Watched) -> Callable[[], None]:
    """What to do from time to time, off the clock: find new threads, and keep the disk from filling."""

    def keep_house() -> None:
        watched.background.look()
        delete_oldest(watched.run, ["*.safetensors"], _KEPT_BYTES)

    return keep_house


def complaints(watched: Watched, configuration: Configuration, expected: Captured) -> list[str]:
    """What the run lacks of what its configuration says, once it is closed: empty where the figure can be believed."""
    run = watchglass.open_run(watched.run)
    dropped = run.worker().lifecycle[-1]["counters"]["dropped"]
    found = [f"{count} {what} dropped" for what, count in dropped.items() if count]
    steps = run.steps()
    if len(steps) != watched.steps:
        found.append(f"{len(steps)} of {watched.steps} steps recorded")
    names = [name for role in _ROLES for name in run.tensor_names(role=role)]
    if configuration.interval is not None:
        interval = configuration.interval or watched.steps
        due = set(range(0, watched.steps, interval))
        captures = set(run.tensor(names[0]).steps()) if names else set()
        if captures != due:
            found.append(f"{len(captures)} of {len(due)} captures recorded, {len(captures - due)} where none was due")
    if len(names) < expected.tensors:
        found.append(f"{len(names)} of {expected.tensors} tensors recorded")
    if configuration.avoided:
        norms = run.scalars("gradient_norm")[0]
        if (norms[norms > configuration.warm_up] % configuration.avoided).any():
            found.append("the gradient norm was due on steps that were timed")
    return found
