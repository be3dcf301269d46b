"""The runs that the documentation shows a back-test on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from watchglass.testing import Step, build_run

#: By name of the run, in the order in which they were made.
NAMES = ("flat", "good", "high", "slow", "new")


def losses(name: str, steps: int = 300) -> NDArray[np.float64]:
    """Of a training run that learns, slowly learns, does not learn, or diverges at step 120."""
    at, noise = np.arange(steps), np.random.default_rng(1).normal(scale=0.05, size=steps)
    falling = 2.0 * np.exp(-at / 60) + 0.2
    courses = {
        "good": falling,
        "new": falling,
        "slow": 2.0 * np.exp(-at / 600) + 0.2,
        "flat": np.full(steps, 2.3),
        "high": np.where(at < 120, falling, falling[120] * 1.1 ** np.clip(at - 120, 0, 60)),
    }
    course: NDArray[np.float64] = courses[name] * (1 + (0.1 if name == "flat" else 1) * noise)
    return course


def make_runs(folder: Path, *names: str) -> None:
    """Write some of them below a folder."""
    for name in names or NAMES:
        build_run(folder / name, [Step(scalars={"loss": float(loss), "learning_rate": 0.1}) for loss in losses(name)])
