"""Facts about gradients and updates, of which some elements are sampled, and about running statistics."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact

Column = tuple[float | None, ...]


@dataclass(frozen=True)
class AveragedGradient(DeclaredFact):
    """Some elements of a gradient before and after ranks average it, and the wrapper that averages.

    Attributes:
        processes: How many train together.
        parameter: Name of the observed parameter: the last trainable one of at least four elements.
        wrapper, called: `DistributedDataParallel`, `FullyShardedDataParallel` or empty; whether the model is called
            through it.
        synchronised: Whether the wrapper exchanges gradients: false if the model is not called through it, or only
            inside `no_sync`.
        own, used: The same elements of the gradient, as this rank computed it and as its optimizer uses it; omitted
            where they cannot be read, as in compiled models.
        model: Number of the model, if it is known.
    """

    KIND = "rank_gradients"
    FROM = "a hook on one parameter of each model, where several processes train together"
    WHEN = "captured updates"
    COST = "nothing with one process; with several, two copies of 16 elements of a gradient at captured steps"

    processes: int = 1
    parameter: str = ""
    wrapper: str = ""
    called: bool = False
    synchronised: bool = False
    own: tuple[float | str, ...] | None = None
    used: tuple[float | str, ...] | None = None
    model: int | None = None


@dataclass(frozen=True)
class UpdateGroup:
    """The settings of an optimizer's group that its update depends on; None for those that are unknown.

    Attributes:
        lr, weight_decay: Learning rate, and weight decay.
        decoupled: Whether the decay is no part of the gradient that the optimizer uses.
        eps: What is added to the denominator.
        beta2: Decay of the second moment, where it is corrected for its start.
        maximize: Whether the optimizer climbs.
    """

    lr: float | None = None
    weight_decay: float | None = None
    decoupled: bool = False
    eps: float | None = None
    beta2: float | None = None
    maximize: bool = False


@dataclass(frozen=True)
class UpdateSample(DeclaredFact):
    """Direction and size of updates against gradients, weights, decay and precision.

    Attributes:
        optimizer, since: Its class; steps since its last sample, absent for the first.
        groups: `lr`, `weight_decay`, `decoupled`, `eps`, `beta2`, `maximize` of each group.
        tensors, layer, kind, dims, dtype, group, elements: Columns with a row for each sampled parameter: name,
            position and kind of its module, number of axes, dtype, index of its group, sampled elements.
        update, weight, gradient: Root mean square; the weight before the update, the gradient as the optimizer got it.
        cosine_gradient: Cosine of update and gradient: below 0 while the optimizer descends. This gradient includes
            coupled decay; this update excludes decoupled decay.
        cosine_weight, gradient_weight: Cosine of update and weight, of gradient and weight.
        cosine_previous: Cosine of this update and that of the last sample.
        moved, cosine_moved: Root mean square of the weight's change since the last sample; its cosine with the change
            before that.
        unchanged, unmoved: Share of the elements with a gradient that this update did not change by a single bit; share
            of them that no update has changed since the last sample.
        zero_gradient: Share of elements whose gradient is exactly zero.
        decay: Weight decay over gradient, as root mean squares; if decoupled, its part of the update over the rest of
            it.
        below_epsilon, tiny_moment, zero_moment: Share of elements whose root of the second moment (corrected for its
            start) is below `eps`, is below 1e-8, is zero; the first two among those above zero.
        gradient_over_moment: Root mean square of the gradient over that root; at least `eps` is divided by. It is near
            1 while gradients keep their size.
    """

    KIND = "update_sample"
    FROM = "some elements of weights, gradients and optimizer state"
    WHEN = "captured updates, at least 8 and later 64 steps apart"
    COST = "0.05 ms for each of at most 32 parameters, of which 1,024 elements are copied, at steps 8 to 64 apart"

    optimizer: str = ""
    since: int | None = None
    groups: tuple[UpdateGroup, ...] = ()
    tensors: tuple[str, ...] = ()
    layer: tuple[int, ...] = ()
    kind: tuple[str, ...] = ()
    dims: tuple[int, ...] = ()
    dtype: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    elements: Column = ()
    update: Column = ()
    weight: Column = ()
    gradient: Column = ()
    cosine_gradient: Column = ()
    cosine_weight: Column = ()
    gradient_weight: Column = ()
    cosine_previous: Column = ()
    moved: Column = ()
    cosine_moved: Column = ()
    unchanged: Column = ()
    unmoved: Column = ()
    zero_gradient: Column = ()
    decay: Column = ()
    below_epsilon: Column = ()
    tiny_moment: Column = ()
    zero_moment: Column = ()
    gradient_over_moment: Column = ()


@dataclass(frozen=True)
class SampledNoise(DeclaredFact):
    """How much the gradients of the samples of a batch differ, in linear layers.

    Attributes:
        batch, micro_batches, ranks: Samples of the forward, forwards of the update, processes that train together.
        samples, layers: Samples that were compared, names of the weights.
        noise: Variance of the gradient of a sample, summed over the weights.
        signal: The square of the mean gradient of a sample, less the noise that is left in the mean; may be negative.
    """

    KIND = "gradient_noise"
    FROM = "inputs of linear layers, gradients of their outputs"
    WHEN = "captured updates, at least 2 and later 64 steps apart, where a rule needs it"
    COST = "up to 0.1 ms for each of at most eight linear layers, of which rows are copied, at steps 2 to 64 apart"

    batch: int
    micro_batches: int
    ranks: int
    noise: float
    signal: float
    samples: int = 0
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class NormalizationState:
    """Running statistics of one module; :class:`NormalizationStatistics` has what its fields mean."""

    module: str = ""
    type: str = ""
    training: bool = False
    momentum: float | None = None
    batches: int | None = None
    initial: bool = False
    moved: float | None = None
    mean_off: float | None = None
    variance_ratio: float | None = None


@dataclass(frozen=True)
class NormalizationStatistics(DeclaredFact):
    """How far the running statistics of normalisation have moved, and how far they are from their inputs.

    Attributes:
        model_training: Whether the outermost module is in training mode.
        modules: At most 64 modules with buffers `running_mean` and `running_var`: `module`, `type`, `training`,
            `momentum`; `batches` tracked so far; `initial`: whether all means are exactly 0 and all variances exactly
            1; `moved`: change of the means since the last such fact, in standard deviations; `mean_off`: distance from
            the mean of the module's input, in standard deviations of the input; `variance_ratio`: median ratio to the
            variance of the input. The last two come from at most 65,536 elements of the input, and are absent in
            evaluations.
    """

    KIND = "running_statistics"
    FROM = "buffers of modules, and the inputs of these"
    WHEN = "the 1st, 2nd, 4th, 8th ... captured forward, and beginning of an evaluation"
    COST = "a few reductions per normalisation at the 1st, 2nd, 4th, 8th ... captured step and the first evaluation"

    model_training: bool = False
    modules: tuple[NormalizationState, ...] | None = None
