"""Facts about the calls that a script makes, and the updates that it makes without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact


class OrderOfCalls(Declared):
    """One order of the calls of a round."""

    calls: tuple[tuple[str, int], ...]  #: name, times in a row
    times: int  #: rounds


class CalledObject(Declared):
    """An object whose calls are in an order."""

    type: str | None = None
    scheduled: bool | None = None
    optimizer: str | None = None
    observed: bool | None = None
    stepped: bool | None = None
    optimizers: tuple[str, ...] | None = None


class Calls(DeclaredFact, kind="calls", needed_by="rules"):
    """backward, zero_grad, optimizer, scheduler, scaler and clip calls in their order."""

    COST = "under a microsecond per call; nothing without calls"

    orders: tuple[OrderOfCalls, ...] = ()
    rounds: int = 0
    others: int = 0  #: rounds of further orders
    objects: Mapping[str, CalledObject] = field(default_factory=dict)
    processes: int | None = None

    def objects_of(self, kind: str) -> dict[str, CalledObject]:
        """The objects of a kind that were called: ``"optimizer"``, ``"scheduler"``, ``"module"``; by name."""
        return {name: each for name, each in self.objects.items() if name.partition("_")[0] == kind}


class LeftoverGradients(DeclaredFact, kind="leftover_gradients", needed_by="rules"):
    """Gradients that are not zero before a step's first backward."""

    COST = "up to four gradients per optimizer are examined, at captured steps"

    optimizer: str
    looked_at: int
    nonzero: int  #: of those that are present
    present: int = 0  #: of those looked at


class ReadLine(Declared):
    """A line of the script that reads tensors."""

    at: str = ""  #: "train.py:37"
    call: str = ""  #: "item"
    device: str = ""
    phase: str = ""
    count: int | None = None
    seconds: float | None = None


class ReadLines(DeclaredFact, kind="tensor_reads", needed_by=""):
    """Lines of the script that read numbers of tensors one by one, or wait for a device."""

    COST = (
        "0.2 microseconds at every step; about ten steps of a run are observed, with two microseconds for each of at "
        "most 1,024 reads"
    )

    seconds: float | None = None
    complete: bool = False
    reads: tuple[ReadLine, ...] = ()


class Clip(DeclaredFact, kind="clip", needed_by="report"):
    """Gradient clipping: its limit, its caller, how often it had something to clip."""

    COST = "about a microsecond per clip call, at every step"

    function: str = ""
    caller: str = ""  #: "module:function"
    max_norm: float | None = None
    clip_value: float | None = None
    norm_type: float | None = None
    norm_of: str | None = None
    calls: int = 0
    compared: int = 0  #: calls
    exceeded: int = 0  #: of the compared calls


class LossScale(DeclaredFact, kind="loss_scale", needed_by="report"):
    """The scale of a gradient scaler, when it changes."""

    COST = "about a microsecond per update of a gradient scaler"

    scale: float | None = None
    before: float | None = None


class StepSkipped(DeclaredFact, kind="step_skipped", needed_by="rules"):
    """Updates that a gradient scaler skipped."""

    COST = "nothing"

    loss_scale: float | None = None


class UnsteppedBackwards(DeclaredFact, kind="unstepped_backwards"):
    """Backward passes after which no update was seen: the verdict has them in its headline."""

    backwards: int
    reason: str = "no optimizer stepped"  #: continues "backward ran 360 times and"
    changes: int = 0
    steps: int = 0
    optimizer: str = ""

    def __post_init__(self) -> None:
        if self.backwards <= 0:
            raise ValueError(f"backwards must be above 0 but got {self.backwards}")


class BypassedUpdates(DeclaredFact, kind="updates_bypassed"):
    """Optimizer steps that bypassed PyTorch's hooks: steps without the learning rate of the optimizer."""

    since: int
    reason: str  #: a clause without a full stop
    steps: int | None = None
    worker: str | None = None  #: for readers; never stored
