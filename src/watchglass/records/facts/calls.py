"""Facts about the calls that a script makes, and the gradients that it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class OrderOfCalls:
    """One order of the calls of a round; :class:`Calls` has what its fields mean."""

    calls: tuple[tuple[str, int], ...]
    times: int


@dataclass(frozen=True)
class CalledObject:
    """An object whose calls are in an order; :class:`Calls` has what its fields mean."""

    type: str | None = None
    scheduled: bool | None = None
    optimizer: str | None = None
    observed: bool | None = None
    stepped: bool | None = None
    optimizers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Calls(DeclaredFact):
    """backward, zero_grad, optimizer, scheduler, scaler and clip calls in their order.

    Attributes:
        orders: A list of `calls` (`[[name, times in a row], ...]`) and `times` (rounds of this order since the last
            `calls` fact).
        rounds: Rounds observed so far; between captures, rounds of equal steps are not observed.
        objects: By name, the object that is called: its `type`; of an optimizer whether it is `scheduled`; of a
            scheduler its `optimizer`, whether its `step` is `observed`, and whether it has `stepped` since it was made;
            of a module the `optimizers` that hold some of its parameters.
        processes: Processes that train together by `torch.distributed`, 1 without it.
        others: Rounds of orders beyond the 32nd.
    """

    KIND = "calls"
    FROM = "wrapped functions, optimizer hooks"
    WHEN = (
        "a new order: at once. Changed shares of known orders: at captured steps, 16 rounds apart. While steps are "
        "alike, calls are observed only around the first eight captured steps, then the 16th, 32nd, 64th ..."
    )
    COST = "under a microsecond per call; nothing without calls"

    orders: tuple[OrderOfCalls, ...] = ()
    rounds: int = 0
    others: int = 0
    objects: Mapping[str, CalledObject] = field(default_factory=dict)
    processes: int | None = None

    def objects_of(self, kind: str) -> dict[str, CalledObject]:
        """The objects of a kind that were called: ``"optimizer"``, ``"scheduler"``, ``"module"``; by name."""
        return {name: each for name, each in self.objects.items() if name.partition("_")[0] == kind}


@dataclass(frozen=True)
class LeftoverGradients(DeclaredFact):
    """Gradients that are not zero before a step's first backward.

    It covers every way to clear gradients: `zero_grad`, `grad = None`, in place.

    Attributes:
        optimizer: Name of the optimizer; `script` for updates that a script writes itself.
        looked_at, present, nonzero: Examined parameters, those of them with a gradient, and those of these where it is
            not zero.
    """

    KIND = "leftover_gradients"
    FROM = "the gradients"
    WHEN = "captured steps, on change; as rarely as `calls` while steps are alike"
    COST = "up to four gradients per optimizer are examined, at captured steps"

    optimizer: str
    looked_at: int
    nonzero: int
    present: int = 0


@dataclass(frozen=True)
class ReadLine:
    """A line of the script that reads tensors; :class:`ReadLines` has what its fields mean."""

    at: str = ""
    call: str = ""
    device: str = ""
    phase: str = ""
    count: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ReadLines(DeclaredFact):
    """Lines of the script that read numbers of tensors one by one, or wait for a device.

    Of one step, from one update to the next.

    Attributes:
        seconds: Time of the step.
        complete: Whether all of it was observed; a line with 1,024 reads ends the look.
        reads: For at most eight lines of the script: `at` (`train.py:37`), `call` (`item`), type of the `device`,
            `phase` of the step, `count`, `seconds` in these calls.
    """

    KIND = "tensor_reads"
    FROM = "methods of `torch.Tensor`, `torch.cuda.synchronize`"
    WHEN = (
        "single steps after a captured one, where a rule needs it and [phases](profiling.md#phases-of-steps) are "
        "recorded: three in a row after the 2nd, 8th, 32nd ... captured step"
    )
    COST = (
        "0.2 microseconds at every step; about ten steps of a run are observed, with two microseconds for each of at "
        "most 1,024 reads"
    )

    seconds: float | None = None
    complete: bool = False
    reads: tuple[ReadLine, ...] = ()
