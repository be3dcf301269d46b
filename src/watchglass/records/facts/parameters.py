"""Facts about the parameters of models and optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class NamedParameters:
    """Some parameters.

    Attributes:
        count: How many there are.
        names: At most 32 of their names.
    """

    count: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeldParameters:
    """The parameters of one optimizer; :class:`Membership` has what its fields mean."""

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


@dataclass(frozen=True)
class Membership(DeclaredFact):
    """Which of the model's parameters the optimizers have, and which of their parameters belong to no model.

    Attributes:
        stepped: Name of the optimizer that has just stepped.
        optimizers: By name, their `type`, number of `parameters`, the `frozen` ones (they require no gradient), and
            `foreign` ones (of no model that was called), with `foreign_with_gradient` and `foreign_shapes`. Lists of
            parameters hold at most 32 `names`, and `count` counts all.
        trainable: Number of trainable parameters.
        left_out, left_out_with_gradient: Trainable parameters that no optimizer holds, not even one that is never
            called, and how many of them have a gradient.
        left_out_beside: Those with a gradient, of models of which an optimizer holds other parameters.
        without_gradient: Trainable parameters of the stepped optimizer that have no gradient.
        twice: Parameters that are held more than once, by one optimizer or by several.
        drawn: Names of weights with two or more axes that nothing trains (frozen, or with a learning rate of zero), and
            whose values are those that a function of `torch.nn.init` drew since watchglass observes the process, or
            `normal_` or `uniform_` of a tensor before the first captured forward, or are made of these without a change
            of their order (scaled, shifted, cut off); 32 values of each are compared. Not those of `torch.randn`. Of
            the first 1,024 such weights.
        written_once: The same for weights that were written in place once before `watch(model)`: by the constructor of
            their layer, or through `.data` later.
    """

    KIND = "membership"
    FROM = "parameter groups"
    WHEN = (
        "captured updates when groups or the number of trainable parameters changed, and the 1st, 2nd, 4th, 8th ... "
        "one, on change"
    )
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
