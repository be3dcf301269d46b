"""Facts about updates that watchglass could not see, or does not see as it should."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class UnsteppedBackwards(DeclaredFact):
    """Backward passes after which no update was seen: the verdict has them in its headline.

    A later fact of a worker replaces an earlier one.

    Attributes:
        backwards: Their number.
        reason: Why none of them belongs to a step, as a clause that continues "backward ran 360 times and"; no full
            stop.
        changes: After how many of them weights had changed nevertheless. As an optimizer exists, these changes do not
            count as updates.
        steps: Updates before them; 0 if there was none.
        optimizer: Class of an optimizer that holds weights of a model in training mode and has not stepped; "" where
            none is known.
    """

    KIND = "unstepped_backwards"
    FROM = "`Tensor.backward`, optimizers, weights"
    WHEN = (
        "at the end of a process in which backward ran and neither an optimizer nor the script changed anything after "
        "it; with `steps`, if they are eight times as many as all updates before and as the most backwards for one of "
        "these"
    )

    backwards: int
    reason: str = "no optimizer stepped"
    changes: int = 0
    steps: int = 0
    optimizer: str = ""

    def __post_init__(self) -> None:
        if self.backwards <= 0:
            raise ValueError(f"backwards must be above 0 but got {self.backwards}")


@dataclass(frozen=True)
class BypassedUpdates(DeclaredFact):
    """Optimizer steps that bypassed PyTorch's hooks: steps without the learning rate of the optimizer.

    watchglass finds them by the weights that they change. A later fact of a worker replaces an earlier one.

    Attributes:
        since: The TRAIN step at which the first one was found.
        reason: Why the hooks missed them, as a clause without a full stop.
        steps: How many there were; absent if the process did not reach its end.
        worker: Worker of the process, for those who read the fact; never stored.
    """

    KIND = "updates_bypassed"
    FROM = "weights"
    WHEN = (
        "if an optimizer's `step` was replaced by a function that calls none of PyTorch's hooks, or other code updates "
        "the weights from some step on: at the first such step, and again at the end of the process"
    )

    since: int
    reason: str
    steps: int | None = None
    worker: str | None = None
