"""Facts about losses: what they are given, what they are made of, and how their labels lie to tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchglass.records.fact import DeclaredFact
from watchglass.records.operations import LossKind, loss_kind


@dataclass(frozen=True)
class LossArgument:
    """An argument of a loss.

    Attributes:
        shape: Its shape.
        dtype: Its type.
    """

    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True)
class ComputedLoss(DeclaredFact):
    """Shapes and dtypes of a loss's arguments, whether they broadcast, and what made the predictions.

    Attributes:
        function: Name of the loss function: the word of the loss.
        arguments: `shape` and `dtype` of `input` and `target`.
        broadcast: The common shape, if it is larger than either.
        operation: The operation that made the predictions: `softmax`, `log_softmax`, `sigmoid`, `hardsigmoid`, `tanh`,
            `relu`, `softplus`, `weighted_sum`; absent for other operations and outside a graph.
        normalized_over: Of a softmax, the size of its axis.
        reduction: Its reduction, if given by name.
        result: Shape of the result.
    """

    KIND = "loss_call"
    FROM = "loss functions of `torch.nn.functional`"
    WHEN = "captured steps, on change; sizes alone are no change"
    COST = "a few microseconds per loss function called at captured steps"
    UNSEEN = "no call of a loss function was seen"

    function: str = ""
    arguments: Mapping[str, LossArgument] = field(default_factory=dict)
    broadcast: tuple[int, ...] | None = None
    operation: str | None = None
    normalized_over: int | None = None
    reduction: str | None = None
    result: tuple[int, ...] = ()

    @property
    def kind(self) -> LossKind:
        """The kind of the loss."""
        return loss_kind(self.function)

    @property
    def predictions(self) -> tuple[int, ...]:
        """Shape of the predictions; () where it is not known."""
        return self.arguments.get("input", LossArgument()).shape

    @property
    def target(self) -> tuple[int, ...]:
        """Shape of the targets; () where it is not known."""
        return self.arguments.get("target", LossArgument()).shape

    @property
    def classes(self) -> int:
        """Classes that the predictions have, if the loss is one of classes."""
        return self.predictions[1 if len(self.predictions) > 1 else 0] if self.predictions else 0

    @property
    def normalizes(self) -> bool:
        """Whether the loss applies a softmax."""
        return self.kind.of_classes and self.kind.takes == "logits"

    @property
    def single(self) -> bool:
        """Whether it normalises over one unit."""
        return self.normalized_over == 1 or (self.normalizes and self.classes == 1)
