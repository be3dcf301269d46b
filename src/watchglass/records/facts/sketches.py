"""Sketches of the inputs, outputs and targets of a model."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact

_OF_STEPS = "[sketched steps](#sketches)"


@dataclass(frozen=True)
class SketchedUnits:
    """Moments of channels or units.

    Attributes:
        mean, std: Of each.
        axis: The axis of channels.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    axis: int | None = None


@dataclass(frozen=True)
class Correlated:
    """Correlations between the features of a table; :class:`InputSketch` has what its fields mean."""

    share: float = 0.0
    features: int = 0
    rows: int = 0


@dataclass(frozen=True)
class SketchedPadding:
    """The token that most rows end with or begin with; :class:`InputSketch` has what its fields mean."""

    token: int = 0
    side: str = ""
    share: float = 0.0
    rows: float = 0.0
    gradient: float | None = None


@dataclass(frozen=True)
class InputSketch(DeclaredFact):
    """Moments and quantiles of the model's inputs, by channel or feature.

    Of the first float tensor and the first integer tensor.

    Attributes:
        tensor, shape, dtype, elements, sampled, nonfinite, zeros: Of both. All but `elements` describe the sample.
        mean, std, quantiles: Of floats; quantiles at 0, 1, 5, 10, 25, 50, 75, 90, 95, 99 and 100 percent.
        channels: Of floats: `axis`, and `mean` and `std` of up to 64 channels. The axis is 1 for images unless colours
            are last, else the last axis.
        min, max, distinct, most_common: Of integers; `most_common` as `[value, share]`.
        correlations: Of floats with 3 to 256 features in a table: `share` of the pairs of features with an absolute
            correlation above 0.95, `features` (those that vary), `rows` (the latest up to 512 training rows).
        padding: Of integers in a table: the `token` that most rows end with (`side` "right") or begin with ("left"),
            the `share` of the elements in these runs, and the share of `rows` that have one; `gradient`: the norm of
            the gradient of that token's embedding, divided by the median over the tokens that get a gradient.
        into: Kinds of the modules that take this tensor unchanged, or a view of all of it; empty if the model changes
            the tensor first.
        model: Number of the model, if there are several.
    """

    KIND = "input_sketch"
    FROM = "the sample of the batch"
    WHEN = _OF_STEPS
    COST = "computed by the recorder's thread from the batch's sample, at about 80 of 5,000 steps"

    tensor: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    elements: int | None = None
    sampled: int | None = None
    nonfinite: int = 0
    zeros: int | None = None
    mean: float | None = None
    std: float | None = None
    quantiles: tuple[float, ...] | None = None
    channels: SketchedUnits | None = None
    correlations: Correlated | None = None
    min: int | None = None
    max: int | None = None
    distinct: int | None = None
    most_common: tuple[tuple[int, float], ...] | None = None
    padding: SketchedPadding | None = None
    into: tuple[str, ...] | None = None
    model: int | None = None


@dataclass(frozen=True)
class Neighbours:
    """How alike the nearest samples of a batch are; :class:`OutputSketch` has what its fields mean."""

    targets: float = 0.0
    errors: float = 0.0
    rows: int = 0


@dataclass(frozen=True)
class OutputSketch(DeclaredFact):
    """Spread of the final output over the batch by unit, predicted classes, and errors by class.

    Of the predictions of up to four loss functions of a forward. A row is a sample, or a position with a class.

    Attributes:
        function, number: The loss function, "" for an output that none takes; 1 for the first.
        shape, dtype, rows, columns: Of the output; rows in the sample, and classes or units.
        nonfinite: A share of all sampled elements.
        min, max, mean, std: Of all sampled elements.
        units, spread: Over the rows, by unit: `mean` and `std`, up to 64; the root mean square of these standard
            deviations.
        predicted, entropy, loss: Of classes: counts of the largest logit, mean entropy of the softmax, mean negative
            log-likelihood.
        right, confusion: Of classes (up to 64) or of a binary loss: share of right rows; `[true, predicted, rows]`.
        squared_error, constant_error, correlation: Of other values: against the targets; that of their mean; between
            outputs and targets within units.
        neighbours: Of training batches whose rows are samples: `targets` and `errors`, how alike they are in `rows`
            samples and the nearest one of each by its inputs (1: equal, about 0: nothing in common). At most 128
            samples and 256 elements of each.
        helped: Whether other models are called and not trained, such as a teacher or a target network.
        model: Number of the model, if there are several.
    """

    KIND = "output_sketch"
    FROM = "the predictions of loss functions, else the output of the outermost module"
    WHEN = _OF_STEPS
    COST = (
        "a copy of at most 32,768 elements of the final output and of the inputs, at about 80 of 5,000 steps; the "
        "recorder's thread computes"
    )

    function: str = ""
    number: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    rows: int = 0
    columns: int = 0
    nonfinite: float | None = None
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    spread: float | None = None
    units: SketchedUnits | None = None
    predicted: tuple[tuple[int, int], ...] | None = None
    entropy: float | None = None
    loss: float | None = None
    right: float | None = None
    confusion: tuple[tuple[int, int, int], ...] | None = None
    squared_error: float | None = None
    constant_error: float | None = None
    correlation: float | None = None
    neighbours: Neighbours | None = None
    helped: bool | None = None
    model: int | None = None


@dataclass(frozen=True)
class TargetSketch(DeclaredFact):
    """Counts of classes, or moments of the targets of each loss function.

    The rows of an output are among those of its target. If a script writes its loss with tensor operations, watchglass
    recognises the target in two cases. In the first, the script squares the difference between output and target, or
    takes its absolute value (`function` ""). In the second, it looks up log-probabilities of `log_softmax` by label, or
    multiplies them by one-hot labels (`nll_loss`).

    Attributes:
        function, number: The loss function; 1 for the first.
        shape, dtype, rows, columns: Of the target; rows in the sample, and classes or units.
        kind: `classes` (integers), `one_hot`, `shares` (of classes), `labels` (0 and 1), `values`.
        counts, distinct: Of classes and labels: `[class, rows]`, the 1,000 most frequent ones; how many there are.
        ignored, outside: Of classes: a share; rows whose class the output does not have.
        nonfinite: Of others: a share of all sampled elements.
        mean, variance, min, max, zeros, ones, spread, units: Of others; `min` and `max` of classes, too.
        whole: Of values: whether all are integers.
        smoothing, weighted, positive_weight, unreduced: Arguments of the loss function, if given; whether it returned a
            loss for each row.
        helped: Whether other models are called and not trained, such as a teacher or a target network.
        model: Number of the model, if there are several.
    """

    KIND = "target_sketch"
    FROM = "the targets of loss functions"
    WHEN = _OF_STEPS
    COST = (
        "a copy of at most 32,768 elements of the targets, at about 80 of 5,000 steps; the recorder's thread computes"
    )

    function: str = ""
    number: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    rows: int = 0
    columns: int = 0
    kind: str = ""
    counts: tuple[tuple[float, int], ...] | None = None
    distinct: int | None = None
    ignored: float | None = None
    outside: int | None = None
    nonfinite: float | None = None
    mean: float | None = None
    variance: float | None = None
    min: float | None = None
    max: float | None = None
    zeros: float | None = None
    ones: float | None = None
    spread: float | None = None
    units: SketchedUnits | None = None
    whole: bool | None = None
    smoothing: float | None = None
    weighted: bool | None = None
    positive_weight: float | None = None
    unreduced: bool | None = None
    helped: bool | None = None
    model: int | None = None
