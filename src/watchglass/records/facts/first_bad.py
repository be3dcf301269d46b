"""Facts about values that are not finite."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class NonfiniteLoss(DeclaredFact):
    """A backward began from a loss that is not finite.

    Attributes:
        value: It, "nan" or "inf".
    """

    KIND = "nonfinite_loss"
    WHEN = "each"

    value: str = ""


@dataclass(frozen=True)
class NonfiniteGradients(DeclaredFact):
    """An update uses gradients that are not finite.

    Attributes:
        tensors, count: Names of the gradients, and how many there are.
        first_in_backward: The one that the backward made first.
    """

    KIND = "nonfinite_gradients"
    WHEN = "each that is observed"

    tensors: tuple[str, ...] = ()
    count: int = 0
    first_in_backward: str | None = None
