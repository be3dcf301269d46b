"""Facts about gradients, updates and running statistics."""

from __future__ import annotations

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact

Column = tuple[float | None, ...]


class AveragedGradient(DeclaredFact, kind="rank_gradients", needed_by="rules"):
    """Some elements of a gradient before and after ranks average it, and the wrapper that averages."""

    COST = "nothing with one process; with several, two copies of 16 elements of a gradient at captured steps"

    processes: int = 1
    parameter: str = ""
    wrapper: str = ""
    called: bool = False
    synchronised: bool = False
    own: tuple[float | str, ...] | None = None
    used: tuple[float | str, ...] | None = None
    model: int | None = None


class UpdateGroup(Declared):
    """The settings of an optimizer's group that its update depends on; None for those that are unknown."""

    lr: float | None = None
    weight_decay: float | None = None
    decoupled: bool = False
    eps: float | None = None
    beta2: float | None = None
    maximize: bool = False


class UpdateSample(DeclaredFact, kind="update_sample", needed_by="rules"):
    """Direction and size of updates against gradients, weights, decay and precision."""

    COST = "0.05 ms for each of at most 32 parameters, of which 1,024 elements are copied, at steps 8 to 64 apart"

    optimizer: str = ""
    since: int | None = None  #: steps
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


class SampledNoise(DeclaredFact, kind="gradient_noise", needed_by=""):
    """How much the gradients of the samples of a batch differ, in linear layers."""

    COST = "up to 0.1 ms for each of at most eight linear layers, of which rows are copied, at steps 2 to 64 apart"

    batch: int  #: samples
    micro_batches: int
    ranks: int
    noise: float
    signal: float
    samples: int = 0
    layers: tuple[str, ...] = ()


class NormalizationState(Declared):
    """Running statistics of one module."""

    module: str = ""
    type: str = ""
    training: bool = False
    momentum: float | None = None
    batches: int | None = None
    initial: bool = False
    moved: float | None = None  #: standard deviations
    mean_off: float | None = None  #: standard deviations of the input
    variance_ratio: float | None = None


class NormalizationStatistics(DeclaredFact, kind="running_statistics", needed_by="rules"):
    """How far the running statistics of normalisation have moved, and how far they are from their inputs."""

    COST = "a few reductions per normalisation at the 1st, 2nd, 4th, 8th ... captured step and the first evaluation"

    model_training: bool = False
    modules: tuple[NormalizationState, ...] | None = None
