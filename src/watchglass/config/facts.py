"""Facts that capture can record: what each is, what it costs, and whether it is recorded when nobody says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class FactKind:
    """One kind of fact that can be switched on and off.

    Attributes:
        default_on: Whether it is recorded when nobody says otherwise.
        cost: What it costs, and when.
        help: What it is, in one sentence.
    """

    default_on: bool
    cost: str
    help: str


#: Kinds of facts by name. docs/facts.md describes their data.
FACTS: Mapping[str, FactKind] = MappingProxyType(
    {
        "calls": FactKind(
            True,
            "under a microsecond per call; nothing while nothing is heard",
            "backward, zero_grad, optimizer, scheduler, scaler and clip calls in their order",
        ),
        "leftover_gradients": FactKind(
            True,
            "up to four gradients per optimizer looked at, at captured steps",
            "gradients that are not zero before a step's first backward",
        ),
        "clip": FactKind(
            True,
            "about a microsecond per clip call, at every step",
            "gradient clipping: its limit, its caller, how often it had something to clip",
        ),
        "loss_scale": FactKind(
            True,
            "about a microsecond per update of a gradient scaler",
            "the scale of a gradient scaler, when it changes",
        ),
        "step_skipped": FactKind(True, "nothing", "updates that a gradient scaler left out"),
        "batch": FactKind(
            True,
            "a copy of at most 64 KiB of the inputs at captured steps and at the beginning of some epochs",
            "hash of the model's inputs, with the data worker where it can be told",
        ),
        "data_loader": FactKind(
            True, "a microsecond per epoch", "settings of each data loader, when it is first iterated over"
        ),
        "input_sketch": FactKind(
            True,
            "computed by the recorder's thread from the batch's sample, at most every 64 steps",
            "moments and quantiles of the model's inputs, by channel or feature",
        ),
        "training_flags": FactKind(
            True,
            "0.1 microseconds per module, at captured steps and at the first forward of an evaluation",
            "which modules are in training mode, when that changes",
        ),
        "membership": FactKind(
            True,
            "a microsecond per parameter, at a handful of steps and when an optimizer changes",
            "which of the model's parameters the optimizers have, and which of theirs are no model's",
        ),
        "loss_call": FactKind(
            True,
            "a few microseconds per loss function called at captured steps",
            "shapes and dtypes of a loss's arguments, whether they broadcast, and what made the predictions",
        ),
    }
)


def chosen_facts(names: Iterable[str] | None) -> frozenset[str]:
    """The kinds to record: those named, or those that are on by default where ``names`` is None."""
    if names is None:
        return frozenset(name for name, kind in FACTS.items() if kind.default_on)
    return frozenset(names)
