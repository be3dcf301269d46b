"""Facts about the modules of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class TrainingFlags(DeclaredFact):
    """Which modules are in training mode, when that changes.

    Attributes:
        model, training: Class of the outermost module, and its flag.
        modules, in_training: Number of modules, and of those in training mode.
        different, different_count: Modules whose flag differs from that of the surrounding module (path, type, flag),
            at most 32, and their number.
        sensitive: Modules that compute differently in training, such as dropout and batch norm: by type, how many are
            in training mode and how many are not.
        frozen_parameters: Number of parameters that require no gradient.
        gradients: Whether gradients can flow through the forward: not under `no_grad`, nor in a frozen model.
    """

    KIND = "training_flags"
    FROM = "`module.training`"
    WHEN = (
        "captured forwards, the first forward of each evaluation, and any forward with gradients before which the "
        "whole model changed its mode; on change within a mode"
    )
    COST = (
        "0.1 microseconds per module, at captured steps, at the first forward of an evaluation and where the mode "
        "changes"
    )

    model: str = ""
    training: bool | None = None
    modules: int = 0
    in_training: int = 0
    different: tuple[tuple[str, str, bool], ...] = ()
    different_count: int = 0
    sensitive: Mapping[str, tuple[int, int]] | None = None
    frozen_parameters: int = 0
    gradients: bool | None = None


@dataclass(frozen=True)
class NotCapturable(DeclaredFact):
    """Modules whose activations cannot be captured; the source says why.

    Attributes:
        modules: Their paths, or the classes of models.
    """

    KIND = "not_capturable"

    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionUnreadable(DeclaredFact):
    """Attention of the module in its source could not be read.

    Attributes:
        reason: Class and message of an error.
    """

    KIND = "attention_unreadable"

    reason: str = ""


@dataclass(frozen=True)
class InputGradientsUnavailable(DeclaredFact):
    """The input in its source has no gradient.

    Attributes:
        reason, what_to_try: Why, and the cure.
    """

    KIND = "input_gradients_unavailable"

    reason: str = ""
    what_to_try: str = ""


@dataclass(frozen=True)
class TensorShape(DeclaredFact):
    """The shape of a tensor at a step, if a collection requests shapes.

    Attributes:
        tensor, shape: Name and shape.
    """

    KIND = "shape"

    tensor: str
    shape: tuple[int, ...]
