"""Records of a training run: steps, tensors, facts, and the rows they are stored in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from watchglass.errors import InvalidValueError
from watchglass.records.json_records import record_as_json, record_from_json

#: Version of the run format that this release writes: (major, minor). See docs/run-format.md.
FORMAT_VERSION = (2, 0)


#: Series of evaluations: the share of a batch's rows that captured training steps have had.
SEEN_ROWS = "rows_seen_in_training"


class Mode(IntEnum):
    """What the run did at a step. ``GLOBAL`` is the view over all, never stored."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4

    @classmethod
    def of(cls, mode: Mode | str) -> Mode:
        """The mode, or that of this name in any case: ``Mode.of("eval")``.

        Raises:
            InvalidValueError: There is no such mode.
        """
        if isinstance(mode, cls):
            return mode
        found = cls.__members__.get(mode.upper()) if isinstance(mode, str) else None
        if found is None:
            raise InvalidValueError(f'mode must be "train", "eval", "predict" or "global" but got {mode!r}')
        return found

    @classmethod
    def of_step(cls, mode: Mode | str) -> Mode:
        """The same for a step.

        Raises:
            InvalidValueError: A step cannot have this mode.
        """
        found = cls.__members__.get(mode.upper()) if isinstance(mode, str) else mode
        if not isinstance(found, cls) or found is cls.GLOBAL:
            raise InvalidValueError(f'mode must be "train", "eval" or "predict" but got {mode!r}')
        return found


class Role(str, Enum):
    """The role of a tensor in the run; decides which rules look at it."""

    WEIGHT = "weight"
    BIAS = "bias"
    GRADIENT = "gradient"
    UPDATE = "update"
    INPUT = "input"
    OUTPUT = "output"
    OPTIMIZER_STATE = "optimizer_state"
    LOSS = "loss"
    METRIC = "metric"
    LABEL = "label"
    PREDICTION = "prediction"
    CUSTOM = "custom"


class ModuleKind(str, Enum):
    """The function of a module in its model, in any framework; each adapter determines it, and rules select by it.

    ``LINEAR`` and ``CONVOLUTION`` compute weighted sums; ``RECTIFIER`` is exactly zero where its input is negative;
    the derivative of a ``SATURATING`` one goes to zero on both sides; ``ACTIVATION`` is any other activation;
    ``CONTAINER`` only calls other modules. ``OTHER`` is the rest, also of tensors without a module.
    """

    LINEAR = "linear"
    CONVOLUTION = "convolution"
    RECURRENT = "recurrent"
    EMBEDDING = "embedding"
    NORMALIZATION = "normalization"
    ATTENTION = "attention"
    RECTIFIER = "rectifier"
    SATURATING = "saturating"
    SOFTMAX = "softmax"
    ACTIVATION = "activation"
    DROPOUT = "dropout"
    POOLING = "pooling"
    CONTAINER = "container"
    OTHER = "other"


#: Models of one worker that rules judge; further ones are only recorded.
MOST_MODELS = 1024


def model_name(model: int) -> str:
    """Name of the model with this number: ``"model"`` for the first, then ``"model_2"``, ``"model_3"``."""
    return f"model_{model + 1}" if model else "model"


def series_name(name: str, model: int) -> str:
    """Name of a scalar of a model: without a prefix for the first model, ``model_2/loss`` for the second."""
    return f"{model_name(model)}/{name}" if model else name


@dataclass(frozen=True)
class TensorInfo:
    """One catalog row: the meaning of a tensor id. A later row with the same id replaces the earlier one (an alias).

    Attributes:
        tensor_id: Number that rows refer to; unique within one worker of one attempt.
        name: ``fc1.weight``, ``gradient/fc1.weight``, ``update/fc1.weight``, ``fc1.input.0``, ``fc1.output``, ``loss``.
        role: Role of the tensor.
        module: Dotted path of the module that owns it, wrappers stripped; "" for the root or for none.
        module_type: Class name of that module, for instance ``"ReLU"``; "" for none.
        layer_index: Position of the module in its model, 0 first; -1 for none. Orders "first" and "last" layers.
        shape: Shape when first seen; ``()`` for a scalar.
        dtype: NumPy-style name of the dtype as captured, ``"float32"``, ``"bfloat16"``.
        unit_axis: Axis that counts units (neurons, channels), or None.
        trainable: Whether an optimizer may change it; None if that has no meaning.
        placement: ``local``, ``replicated``, ``shard`` or ``partial``: how ranks' rows relate to the whole tensor.
        collections: Names of user collections it was saved under.
        model: Number of its model, in the order in which models were first trained or evaluated; None for none, as for
            the scalars that a script saves.
        module_kind: Kind of that module, in any framework.
    """

    tensor_id: int
    name: str
    role: Role
    module: str = ""
    module_type: str = ""
    layer_index: int = -1
    shape: tuple[int, ...] = ()
    dtype: str = ""
    unit_axis: int | None = None
    trainable: bool | None = None
    placement: str = "local"
    collections: tuple[str, ...] = ()
    model: int | None = None
    module_kind: ModuleKind = ModuleKind.OTHER

    def to_json(self) -> dict[str, Any]:
        """This row as plain JSON types."""
        return record_as_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorInfo:
        """The row that :meth:`to_json` gave; unknown keys of newer minor versions are ignored."""
        return record_from_json(cls, data)


#: Columns of the statistics matrix (float64), in order. Counts are exact up to 2**53. ``min`` to ``l2`` are over the
#: finite values only; ``min`` and ``max`` are NaN if there is none. ``m2`` is the sum of squared deviations from the
#: mean, ``l2`` the Euclidean norm.
STATISTIC_FIELDS = (
    "count", "nan", "posinf", "neginf", "zero", "min", "max", "sum", "abs_sum", "m2", "l2",
)  # fmt: skip

#: Columns that are derived from these. Their names are here so that the needs of rules are known without NumPy.
DERIVED_FIELDS = (
    "finite", "nonfinite", "mean", "abs_mean", "variance", "std", "rms", "zero_ratio", "nonzero_abs_mean",
    "l1", "abs_l1", "abs_l2", "abs_max", "abs_variance", "abs_std",
)  # fmt: skip

#: Those of :data:`STATISTIC_FIELDS` that are counts (stored as unsigned 64-bit integers).
COUNT_FIELDS = STATISTIC_FIELDS[:5]

#: Leading mantissa bits of a bin: a histogram counts finite, nonzero elements by sign, binary exponent and these bits.
HISTOGRAM_MANTISSA_BITS = 1


class Reduction(IntEnum):
    """Exact numbers that the columns of statistics lack, computed only if a collection requests them."""

    MEDIAN = 1
    PROD = 2
    ABS_MEDIAN = 3
    ABS_MIN = 4


class Origin(IntEnum):
    """Why a statistics row was written. Rows written because of a finding never feed a rule."""

    PLANNED = 0
    FINDING = 1


class UnitKind(IntEnum):
    """The meaning of a bitmap over units.

    Attributes:
        INACTIVE: The unit was zero on every element of the step.
        SATURATED: At least 99 % of its elements were beyond the limits of the activation that took them.
        UNUSED: The expert of a router got less than a hundredth of a fair share.
    """

    INACTIVE = 1
    SATURATED = 2
    UNUSED = 3


class StepPhase(IntEnum):
    """A part of the time of a step, by the clock of the training thread. Together they are the whole step.

    Attributes:
        DATA: Waits for a data loader: for its next batch, and for its start.
        PREPARE: From the arrival of a batch to the call of the model: work on the batch.
        COPY: Copies of tensors from the host to a device, in whichever of the other phases they are made.
        FORWARD: From the call of the model to the backward, with the loss. In an evaluation, the call of the model.
        BACKWARD: The backward.
        UPDATE: From the end of the backward to the end of the optimizer's step, with the clipping of gradients.
        COMPUTE: The call of a compiled step: its forward, backward and update together.
        OTHER: The rest, such as logging, checkpoints, and work between an evaluation and the next step.
    """

    DATA = 0
    PREPARE = 1
    COPY = 2
    FORWARD = 3
    BACKWARD = 4
    UPDATE = 5
    COMPUTE = 6
    OTHER = 7


class Pause(IntEnum):
    """What the training thread does for a millisecond or more within a phase of a step, if that is known.

    Attributes:
        COLLECTION: Python's garbage collector runs in this thread.
        SAVE: ``torch.save`` writes.
        PROFILE: PyTorch's profiler begins or ends, or what it recorded is read or exported.
    """

    COLLECTION = 1
    SAVE = 2
    PROFILE = 3


class Loader(IntEnum):
    """A data loader in the times of batches: the first one that the script reads, the next, and all beyond the eighth.

    The names in lower case are those of the loaders everywhere else: ``"loader"``, ``"loader_2"``, ``"loader_more"``.
    """

    LOADER = 1
    LOADER_2 = 2
    LOADER_3 = 3
    LOADER_4 = 4
    LOADER_5 = 5
    LOADER_6 = 6
    LOADER_7 = 7
    LOADER_8 = 8
    LOADER_MORE = 9


#: Names of the phases, in their order.
PHASE_NAMES = tuple(phase.name.lower() for phase in StepPhase)


@dataclass(frozen=True)
class StepEnd:
    """A worker finished a step and wrote all its records."""

    global_step: int  #: Counts a worker's steps over all modes from 0, in the order in which they began.
    mode: Mode  #: TRAIN, EVAL or PREDICT.
    mode_step: int  #: Counts the steps of that mode from 0.
    #: For TRAIN the mode step itself; else the last TRAIN step begun before this one, -1 for none. Aligns workers whose
    #: evaluation differs (rank 0 alone validates, uneven shards).
    train_step: int
    start_ns: int  #: Worker's monotonic clock when the step began.
    end_ns: int  #: The same when it ended.
    captures: int = 0  #: Number of statistics rows of the step.
    #: Number of the model that it trained (TRAIN) or evaluated (EVAL, PREDICT). Of models that are updated together
    #: from the same losses it is the lowest number.
    model: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key that is the same for every worker: a TRAIN step, then the evaluation that follows it."""
        return (self.train_step, 0 if self.mode is Mode.TRAIN else int(self.mode), self.mode_step)
