"""Facts about losses: what they are given, what they are made of, and how their labels lie to tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact
from watchglass.records.operations import LossKind, loss_kind


class LossArgument(Declared):
    """An argument of a loss."""

    shape: tuple[int, ...] = ()
    dtype: str = ""


class ComputedLoss(DeclaredFact, kind="loss_call", needed_by="rules"):
    """Shapes and dtypes of a loss's arguments, whether they broadcast, and what made the predictions."""

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
        """Classes that the predictions have, if the loss is one of classes.

        PyTorch has them along axis 1, other frameworks along the last one: it is the axis that targets, or losses that
        are not averaged, lack.
        """
        shape = self.predictions
        if len(shape) < 2:
            return shape[0] if shape else 0
        last = any(each == shape[:-1] != (shape[0], *shape[2:]) for each in (self.target, self.result))
        return shape[-1 if last else 1]

    @property
    def normalizes(self) -> bool:
        """Whether the loss applies a softmax."""
        return self.kind.of_classes and self.kind.takes == "logits"

    @property
    def single(self) -> bool:
        """Whether it normalises over one unit."""
        return self.normalized_over == 1 or (self.normalizes and self.classes == 1)


class ComparedLabels(Declared):
    """The labels of one loss, compared with tokens. Ignored labels do not count."""

    function: str = ""
    agreeing: Mapping[str, float] = field(default_factory=dict)  #: 0..1, by `same`, `next` and `second`
    axis: int = 0
    length: int = 0
    judged: int = 0
    distinct: int = 0
    right: float | None = None  #: 0..1


class SeenByAttention(Declared):
    """Calls of attention that are alike."""

    queries: int = 0
    keys: int = 0
    itself: bool | None = None
    next: float | None = None  #: 0..1 of the positions
    calls: int = 0


class TokensAndLabels(DeclaredFact, kind="token_targets", needed_by="rules"):
    """How class labels lie to the tokens that the model embeds, and whether attention sees the next token."""

    COST = (
        "0.3 ms per attention and loss, and a copy of 4,096 tokens and labels, at the first three captured steps, "
        "then the 4th, 8th, 16th ...; nothing without an embedding"
    )

    losses: tuple[ComparedLabels, ...] = ()
    embedded: int = 0
    attention: tuple[SeenByAttention, ...] = ()
    recurrent: tuple[bool, ...] = ()  #: whether each is bidirectional


class OutOfReach(Declared):
    """Trainable parameters that a backward cannot reach."""

    count: int = 0
    names: tuple[str, ...] = ()
    ran: int = 0
    cut_before: str | None = None


class MadeBy(Declared):
    """An operation of a term of a loss."""

    operation: str = ""
    shape: tuple[int, ...] = ()
    known: bool | None = None
    layer: str | None = None
    of: tuple[int | str, ...] | None = None  #: places in the list of operations, or `constant`, `parameter`, `unknown`
    axis: int | None = None
    size: int | None = None
    axis_of_output: int | None = None
    mixes: bool | None = None
    min: float | None = None
    max: float | None = None
    exponent: float | None = None
    factor: float | None = None
    broadcast: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    elements: int | None = None
    rows: int | None = None
    reduction: str | None = None


class TermOfLoss(Declared):
    """A term that a loss is the sum of."""

    coefficient: float | None = None
    kind: str = ""  #: `data` or `penalty`
    whole: bool = False
    operations: tuple[MadeBy, ...] = ()


class _ReadGraph(Declared):
    """What facts from one reading of autograd's graph have in common."""

    complete: bool = False
    opaque: tuple[str, ...] = ()
    backward: int = 0  #: from 1 on, in its step
    capture: int = 0  #: from 1 on, of the model's captured steps


class TermsOfLoss(_ReadGraph, DeclaredFact, kind="loss_graph", needed_by="rules"):
    """The terms of the loss, with the operations that make each of a model's outputs; parameters out of reach."""

    COST = "one reading of autograd's graph at the first three captured steps, then the 4th, 16th, 64th ..."

    batch: int = 0
    terms: tuple[TermOfLoss, ...] = ()
    terms_count: int | None = None
    unreached: OutOfReach | None = None


class FewNormalized(Declared):
    """A batch normalisation over at most two values per channel."""

    name: str = ""
    values: int = 0
    batch: int = 0


class ForwardLayers(_ReadGraph, DeclaredFact, kind="forward_graph", needed_by="rules"):
    """Operations with weights, what lies between them, depth, shortcuts and normalisations."""

    COST = "the same reading"

    nodes: int = 0
    layers: tuple[tuple[str, str, int, int], ...] = ()  #: parameter, operation, inputs, outputs
    layers_count: int | None = None
    pairs: tuple[tuple[int, int, str], ...] = ()  #: two places in `layers`, operations between
    pairs_count: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)  #: by operation
    depth: int = 0
    residuals: int = 0
    normalizations: int = 0
    batch_normalizations: tuple[FewNormalized, ...] = ()
    batch_normalizations_count: int = 0


class ReachedParameter(Declared):
    """A parameter that a backward reaches and no optimizer has stepped."""

    owner: str = ""
    name: str = ""
    shape: tuple[int, ...] = ()
    kind: str = "other"
    training: bool = True
    optimizer: str | None = None
    optimizer_type: str | None = None
    looks: int = 0
    sampled: int = 0
    min: float = math.nan
    max: float = math.nan
    std: float = math.nan

    @property
    def full_name(self) -> str:
        """Its name with that of its module; ``"a parameter"`` where it has none."""
        return ".".join(filter(None, (self.owner, self.name))) or "a parameter"


class ReachedParameters(DeclaredFact, kind="unheld_parameters", needed_by="rules"):
    """Parameters that a backward reaches and that no optimizer updates, of modules that no optimizer knows."""

    COST = "the same reading, and a copy of 1,024 elements of each of at most 32 such parameters"

    backward: int = 0
    count: int = 0
    parameters: tuple[ReachedParameter, ...] = ()
    stepped: str | None = None
