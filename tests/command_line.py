"""What tests of the command line share: the answer of a command, and a training run to ask it about."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from waiting import until
from watchglass.config import RuleSpec
from watchglass.errors import WatchglassError
from watchglass.testing import Step


class Said(NamedTuple):
    """What a command ended with and printed."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error of a command that could not do what it was asked: one line on stderr, status 2, nothing else."""
        assert (self.status, self.out) == (2, "")
        (line,) = self.err.splitlines()
        assert line.startswith("watchglass: error: ")
        return line.removeprefix("watchglass: error: ")


Watchglass = Callable[..., Said]


@contextmanager
def interrupted_once(condition: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C for this process, as soon as it is so."""

    def interrupt() -> None:
        until(condition, despite=(WatchglassError,))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


#: Rules that end in every way on the broken one of :func:`training`: with findings, without, not applicable, and
#: starved of a statistic or a fact.
RULES = tuple(
    RuleSpec(name)
    for name in ("ExplodingTensor", "LossNotDecreasing", "VanishingGradient", "Overfit", "DeadRelu", "RepeatedBatch")
)


def training(steps: int = 120, *, broken_at: int | None = None) -> list[Step]:
    """Steps of a small training that learns, or turns into NaN."""
    generator = np.random.default_rng(3)
    weight = generator.normal(size=(16, 16)).astype(np.float32)
    made = []
    for number in range(steps):
        broken = broken_at is not None and number >= broken_at
        gradient = generator.normal(scale=0.1, size=(16, 16)).astype(np.float32)
        update = (-0.01 * gradient).astype(np.float32)
        weight = (weight + update).astype(np.float32)
        if broken:
            gradient[0, 0] = np.nan
        loss = float("nan") if broken else 2.0 * 0.98**number + 0.1
        statistics = {"fc.weight": weight, "gradient/fc.weight": gradient, "update/fc.weight": update}
        made.append(Step(scalars={"loss": loss, "learning_rate": 0.1}, statistics=statistics, weight=32))
    return made
