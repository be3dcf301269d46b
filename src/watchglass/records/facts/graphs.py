"""Facts from the graph of a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class OutOfReach:
    """Trainable parameters that a backward cannot reach.

    Attributes:
        count: How many there are.
        names: At most 32 of their names.
        ran, ran_without_graph: How many of them are in modules that ran with a graph, and without.
        cut_before: The first later module that takes values which have no graph and are no input of the model.
    """

    count: int = 0
    names: tuple[str, ...] = ()
    ran: int = 0
    ran_without_graph: int = 0
    cut_before: str | None = None


@dataclass(frozen=True)
class MadeBy:
    """An operation of a term of a loss.

    Attributes:
        operation: Its word.
        shape: Shape of its result.
        inside: True if the model's output contains it.
        known: False for an operation that is not declared.
        layer: Name of its weight.
        of: What it takes: places in the list of operations, `constant`, `parameter`, `unknown`.
        axis, size, axis_of_output, mixes: Of a softmax, log_softmax or logsumexp; `axis_of_output` is the axis before
            axes were swapped (absent if unclear), `mixes` is true if a reshape has put parts of several axes into it.
        min, max, exponent, factor: Of `clamp`, `pow`, and `mul` or `div` by one number.
        broadcast: Shape of what it broadcasts to a larger one.
        axes, elements, rows, reduction: Of a sum, a mean or a loss function: the axes reduced, elements for each
            result, size of the first axis.
    """

    operation: str = ""
    shape: tuple[int, ...] = ()
    inside: bool | None = None
    known: bool | None = None
    layer: str | None = None
    of: tuple[int | str, ...] | None = None
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


@dataclass(frozen=True)
class TermOfLoss:
    """A term that a loss is the sum of.

    Attributes:
        coefficient: What it is multiplied by; absent where that is a tensor.
        kind: `data` if it depends on data, `penalty` if it depends on parameters alone.
        whole: Whether `operations` are all.
        operations: At most 64, from the last layers to the loss.
    """

    coefficient: float | None = None
    kind: str = ""
    whole: bool = False
    operations: tuple[MadeBy, ...] = ()


@dataclass(frozen=True)
class TermsOfLoss(DeclaredFact):
    """The terms of the loss, with the operations that make each of a model's outputs; parameters out of reach.

    Attributes:
        complete: False for a graph that is too large to be described.
        opaque: Functions whose inside is hidden.
        backward, capture: Numbers of the backward in its step, and of the captured step of the model, from 1 on.
        batch: Samples of the last forward.
        terms: At most 12, those on data first.
        terms_count: All of them.
        unreached: Parameters out of reach, of models of which it reaches others; absent if there are none, or if
            something is opaque.
    """

    KIND = "loss_graph"
    FROM = "autograd's graph"
    WHEN = "the first three captured steps, then the 4th, 16th, 64th ..., on change"
    COST = "one reading of autograd's graph at the first three captured steps, then the 4th, 16th, 64th ..."

    complete: bool = False
    opaque: tuple[str, ...] = ()
    backward: int = 0
    capture: int = 0
    batch: int = 0
    terms: tuple[TermOfLoss, ...] = ()
    terms_count: int | None = None
    unreached: OutOfReach | None = None


@dataclass(frozen=True)
class FewNormalized:
    """A batch normalisation over at most two values per channel.

    Attributes:
        name: Name of its weight.
        values: Values per channel.
        batch: Samples.
    """

    name: str = ""
    values: int = 0
    batch: int = 0


@dataclass(frozen=True)
class ForwardLayers(DeclaredFact):
    """Operations with weights, what lies between them, depth, shortcuts and normalisations.

    Attributes:
        complete, opaque, backward, capture: As of `loss_graph`.
        nodes: Operations of the graph.
        layers: At most 256 operations with weights: name of the parameter, operation, inputs and outputs (units or
            channels; 0 if unknown).
        layers_count: All of them.
        pairs: At most 512: two places in `layers`, and the operations between them.
        pairs_count: All of them.
        kinds: Kinds of these operations. `product` multiplies two results, `scale` one by a constant or parameter,
            `residual` adds a shortcut.
        unknown: Operations that are not declared.
        depth, residuals, normalizations: Layers of the longest chain, shortcuts that end on it, normalisations on it.
        batch_normalizations: At most 16 of those in training mode over at most two values per channel. If there are
            any, the fact is recorded again at the fourth captured step.
        batch_normalizations_count: All in training mode.
    """

    KIND = "forward_graph"
    FROM = "autograd's graph"
    WHEN = "the same"
    COST = "the same reading"

    complete: bool = False
    opaque: tuple[str, ...] = ()
    backward: int = 0
    capture: int = 0
    nodes: int = 0
    layers: tuple[tuple[str, str, int, int], ...] = ()
    layers_count: int | None = None
    pairs: tuple[tuple[int, int, str], ...] = ()
    pairs_count: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    depth: int = 0
    residuals: int = 0
    normalizations: int = 0
    batch_normalizations: tuple[FewNormalized, ...] = ()
    batch_normalizations_count: int = 0


@dataclass(frozen=True)
class ReachedParameter:
    """A parameter that a backward reaches and no optimizer has stepped.

    Attributes:
        owner: Class of the outermost module that holds it, "" for none.
        name: Its name within that module.
        shape: Its shape.
        kind: Kind of its module.
        training: Whether the owner is in training mode.
        optimizer, optimizer_type: An optimizer that holds it and has not stepped so far, and its class.
        looks: Readings in a row with the same values.
        sampled: Values that were compared.
        min, max, std: Of these values.
    """

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


@dataclass(frozen=True)
class ReachedParameters(DeclaredFact):
    """Parameters that a backward reaches and that no optimizer updates, of modules that no optimizer knows.

    Attributes:
        backward: Number of the backward in its step.
        count: How many there are; 0 in a record that none is left.
        parameters: At most 32 of them.
        stepped: Name of an optimizer of such parameters that has stepped for the first time.
    """

    KIND = "unheld_parameters"
    FROM = "autograd's graph"
    WHEN = "the same"
    COST = "the same reading, and a copy of 1,024 elements of each of at most 32 such parameters"

    backward: int = 0
    count: int = 0
    parameters: tuple[ReachedParameter, ...] = ()
    stepped: str | None = None
