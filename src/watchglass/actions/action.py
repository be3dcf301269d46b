"""The contract of an action: told of new findings, asked now and then to go on with what it began."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from watchglass.records import Finding, Observation
from watchglass.store import Claim


@dataclass(frozen=True)
class Worker:
    """What an action may know of a worker.

    Attributes:
        name: ``"worker_0"``.
        active: Whether it has joined and neither left nor been found dead.
        train_step: Last TRAIN step whose end was read; -1 for none.
        step_s: Typical length of its TRAIN steps in seconds; 0 where unknown.
        claim: Its process.
        attempt: Its attempt.
    """

    name: str
    active: bool
    train_step: int
    step_s: float
    claim: Claim | None
    attempt: int = 0


class Action(ABC):
    """Something that is done about findings. Lives in the evaluator, in one thread; must not wait.

    A store that is away for a while is the action's own concern: what could not be written is tried again at a later
    tick.
    """

    @abstractmethod
    def found(self, finding: Finding) -> list[Observation]:
        """Called once for every new finding, at once; returns what shall be written into the journal."""

    def tick(self, workers: Sequence[Worker]) -> list[Observation]:
        """Called at the evaluator's pace with the workers as they are now; returns what shall be written."""
        return []

    @property
    def busy(self) -> bool:
        """Whether it has begun something that it must finish: the evaluator then stays until it has."""
        return False
