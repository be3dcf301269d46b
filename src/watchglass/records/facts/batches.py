"""Facts about batches and the loaders that make them, and sketches of what goes into a model and comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact


class BatchInputs(DeclaredFact, kind="batch", needed_by="rules"):
    """Hash of the model's inputs, with the data worker where known."""

    COST = "a copy of at most 64 KiB of the inputs at captured steps and at the beginning of some epochs"

    hashes: tuple[str, ...] = ()  #: 16 digits each
    varied: int = 0  #: sampled elements that differ from the most frequent one
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sampled: int = 0
    elements: int = 0
    iterations: Mapping[str, int] | None = None  #: by loader
    same_tensor: bool | None = None
    part: float | None = None  #: 0..1 of the rows of the tensor that it is a view of
    loader: str | None = None
    iteration: int | None = None
    workers: tuple[int, ...] | None = None

    @property
    def of_epoch(self) -> bool:
        """Whether it is about the first batches of an epoch."""
        return self.loader is not None or self.workers is not None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first input; ``()`` where there is none."""
        return next(iter(self.shapes.values()), ())


class LoaderSettings(DeclaredFact, kind="data_loader", needed_by="report"):
    """Settings of each data loader, when it is first iterated over."""

    COST = "a microsecond per epoch"
    UNSEEN = "no data loader was seen"

    loader: str = ""
    data_set: str | None = None
    iterable: bool | None = None
    sampler: str | None = None
    batch_size: int | None = None
    batches: int | None = None
    drop_last: bool | None = None
    num_workers: int | None = None
    in_order: bool | None = None
    persistent_workers: bool | None = None
    worker_init_fn: str | None = None
    generator: bool | None = None


class RowsSeen(DeclaredFact, kind="rows_seen_in_training", needed_by="report"):
    """Which batches of evaluations are training data: the share of their rows that training steps have had."""

    COST = (
        "a copy of at most 64 rows of the inputs, of each at most 64 numbers or 256 tokens, at about 80 of 5,000 "
        "training steps and at each batch of an evaluation"
    )


class SketchedUnits(Declared):
    """Moments of channels or units."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    axis: int | None = None  #: of channels


class Correlated(Declared):
    """Correlations between the features of a table."""

    share: float = 0.0  #: 0..1 of the pairs of features
    features: int = 0
    rows: int = 0


class SketchedPadding(Declared):
    """The token that most rows end with or begin with."""

    token: int = 0
    side: str = ""  #: "left" or "right"
    share: float = 0.0  #: 0..1 of the elements
    rows: float = 0.0  #: 0..1 of the rows
    gradient: float | None = None


class InputSketch(DeclaredFact, kind="input_sketch", needed_by="rules"):
    """Moments and quantiles of the model's inputs, by channel or feature."""

    COST = "computed by the recorder's thread from the batch's sample, at about 80 of 5,000 steps"

    tensor: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    elements: int | None = None
    sampled: int | None = None
    nonfinite: int = 0  #: elements
    zeros: int | None = None  #: elements
    mean: float | None = None
    std: float | None = None
    quantiles: tuple[float, ...] | None = None  #: at 0, 1, 5, 10, 25, 50, 75, 90, 95, 99 and 100 percent
    channels: SketchedUnits | None = None
    correlations: Correlated | None = None
    min: int | None = None
    max: int | None = None
    distinct: int | None = None
    most_common: tuple[tuple[int, float], ...] | None = None  #: value, share (0..1)
    padding: SketchedPadding | None = None
    into: tuple[str, ...] | None = None  #: kinds of modules
    model: int | None = None


class Neighbours(Declared):
    """How alike the nearest samples of a batch are."""

    targets: float = 0.0
    errors: float = 0.0
    rows: int = 0


class _SketchedRows(Declared):
    """What sketches of outputs and of targets have in common."""

    function: str = ""
    number: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    rows: int = 0
    columns: int = 0
    nonfinite: float | None = None  #: 0..1
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    spread: float | None = None
    units: SketchedUnits | None = None
    helped: bool | None = None
    model: int | None = None


class OutputSketch(_SketchedRows, DeclaredFact, kind="output_sketch", needed_by="rules"):
    """Spread of the final output over the batch by unit, predicted classes, and errors by class."""

    COST = (
        "a copy of at most 32,768 elements of the final output and of the inputs, at about 80 of 5,000 steps; the "
        "recorder's thread computes"
    )

    std: float | None = None
    predicted: tuple[tuple[int, int], ...] | None = None  #: class, rows
    entropy: float | None = None
    loss: float | None = None
    right: float | None = None  #: 0..1
    confusion: tuple[tuple[int, int, int], ...] | None = None  #: true class, predicted class, rows
    squared_error: float | None = None
    constant_error: float | None = None
    correlation: float | None = None
    neighbours: Neighbours | None = None


class TargetSketch(_SketchedRows, DeclaredFact, kind="target_sketch", needed_by="rules"):
    """Counts of classes, or moments of the targets of each loss function."""

    COST = (
        "a copy of at most 32,768 elements of the targets, at about 80 of 5,000 steps; the recorder's thread computes"
    )

    kind: str = ""
    counts: tuple[tuple[float, int], ...] | None = None  #: class, rows
    distinct: int | None = None
    ignored: float | None = None  #: 0..1
    outside: int | None = None  #: rows
    variance: float | None = None
    zeros: float | None = None  #: 0..1
    ones: float | None = None  #: 0..1
    whole: bool | None = None
    smoothing: float | None = None
    weighted: bool | None = None
    positive_weight: float | None = None
    unreduced: bool | None = None
