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


@dataclass(frozen=True)
class ComparedLabels:
    """The labels of one loss, compared with tokens. Ignored labels do not count.

    Attributes:
        function: Name of the loss function.
        agreeing: Shares (0..1) of the labels that are the token at the `same` position, the `next` one, or the
            `second` after it.
        axis, length: Axis and number of the positions.
        judged, distinct: Labels in the sample, and how many of them are different.
        right: Share of a few predictions that are right, the smaller one of first positions and of neighbours; absent
            if none was compared.
    """

    function: str = ""
    agreeing: Mapping[str, float] = field(default_factory=dict)
    axis: int = 0
    length: int = 0
    judged: int = 0
    distinct: int = 0
    right: float | None = None


@dataclass(frozen=True)
class SeenByAttention:
    """Calls of attention that are alike.

    Attributes:
        queries, keys: Positions that look, and that are looked at.
        itself: Whether both come from one tensor; absent where that is not known.
        next: Share (0..1) of the positions that see the next one; absent where that is not known.
        calls: How many calls they are.
    """

    queries: int = 0
    keys: int = 0
    itself: bool | None = None
    next: float | None = None
    calls: int = 0


@dataclass(frozen=True)
class TokensAndLabels(DeclaredFact):
    """How class labels lie to the tokens that the model embeds, and whether attention sees the next token.

    Attributes:
        losses: Up to four calls of losses.
        embedded: How many tensors of tokens are embedded.
        attention: Calls of attention.
        recurrent: For each call of a recurrent module, whether it is bidirectional.
    """

    KIND = "token_targets"
    FROM = "embeddings, attention and loss functions"
    WHEN = "the first three captured steps, then the 4th, 8th, 16th ..."
    COST = (
        "0.3 ms per attention and loss, and a copy of 4,096 tokens and labels, at the first three captured steps, "
        "then the 4th, 8th, 16th ...; nothing without an embedding"
    )

    losses: tuple[ComparedLabels, ...] = ()
    embedded: int = 0
    attention: tuple[SeenByAttention, ...] = ()
    recurrent: tuple[bool, ...] = ()
