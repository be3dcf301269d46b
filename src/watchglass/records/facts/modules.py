"""Facts about the modules and parameters of models, and the optimizers that hold these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact


class TrainingFlags(DeclaredFact, kind="training_flags", needed_by="rules"):
    """Which modules are in training mode, when that changes."""

    COST = (
        "0.1 microseconds per module, at captured steps, at the first forward of an evaluation and where the mode "
        "changes"
    )

    model: str = ""
    training: bool | None = None
    modules: int = 0
    in_training: int = 0
    different: tuple[tuple[str, str, bool], ...] = ()  #: path, type, flag
    different_count: int = 0
    sensitive: Mapping[str, tuple[int, int]] | None = None  #: by type: in training, and not
    frozen_parameters: int = 0
    gradients: bool | None = None


class NotCapturable(DeclaredFact, kind="not_capturable"):
    """Modules whose activations cannot be captured; the source says why."""

    modules: tuple[str, ...] = ()


class HiddenSteps(DeclaredFact, kind="hidden_steps"):
    """Compiled functions with whole steps inside, which cannot be recorded; the source says why, and the cure."""

    functions: tuple[str, ...] = ()


class HiddenWaits(DeclaredFact, kind="hidden_waits"):
    """Compiled functions read data themselves, so waits for data are a part of phase ``compute``; the source says why.

    Attributes:
        loop: The loop that calls them.
    """

    loop: str = ""


class AttentionUnreadable(DeclaredFact, kind="attention_unreadable"):
    """Attention of the module in its source could not be read."""

    reason: str = ""


class InputGradientsUnavailable(DeclaredFact, kind="input_gradients_unavailable"):
    """The input in its source has no gradient."""

    reason: str = ""
    what_to_try: str = ""


class TensorShape(DeclaredFact, kind="shape"):
    """The shape of a tensor at a step, if a collection requests shapes."""

    tensor: str
    shape: tuple[int, ...]


class NamedParameters(Declared):
    """Some parameters."""

    count: int = 0
    names: tuple[str, ...] = ()


class HeldParameters(Declared):
    """The parameters of one optimizer."""

    type: str = ""
    parameters: int = 0
    frozen: NamedParameters = NamedParameters()
    foreign: int = 0
    foreign_with_gradient: int = 0
    foreign_shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def trainable(self) -> int:
        """How many of them are not frozen."""
        return self.parameters - self.frozen.count


class Membership(DeclaredFact, kind="membership", needed_by="rules"):
    """Which of the model's parameters the optimizers have, and which of their parameters belong to no model."""

    COST = "a microsecond per parameter, at a handful of steps and when an optimizer or what is frozen changes"
    UNSEEN = "no step of an optimizer was seen"

    stepped: str = ""
    optimizers: Mapping[str, HeldParameters] = field(default_factory=dict)
    trainable: int = 0
    left_out: NamedParameters | None = None
    left_out_with_gradient: int = 0
    left_out_beside: NamedParameters | None = None
    without_gradient: NamedParameters | None = None
    twice: NamedParameters | None = None
    drawn: tuple[str, ...] = ()
    written_once: tuple[str, ...] = ()

    @property
    def of_stepped(self) -> HeldParameters | None:
        """What the optimizer that has just stepped holds; None where that is not recorded."""
        return self.optimizers.get(self.stepped)
