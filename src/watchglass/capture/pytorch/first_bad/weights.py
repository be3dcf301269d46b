"""Whether the weights at the start of a step are finite, and which optimizer wrote them."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.facts.first_bad import Found, Look, in_weight
from watchglass.capture.module_places import ParameterPlace, Place
from watchglass.capture.pytorch.first_bad.extremes import look_at
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import parameters_of


class Weight(NamedTuple):
    """A parameter and its extremes."""

    parameter: Tensor
    place: ParameterPlace
    look: Look

    def found(self, what: str) -> Found:
        """It as an answer; ``what`` continues its name."""
        return in_weight(self.place, what)


class Weights:
    """The parameters of all models.

    Attributes:
        writers: Optimizers that have stepped.
    """

    def __init__(self, models: Models) -> None:
        self.writers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._models = models

    def look(self) -> list[Weight]:
        """Read all of them; of sharded ones the local part."""
        places = self.places()
        return [Weight(each, place, look) for place, each in places if (look := look_at(each)) is not None]

    def bad(self) -> Weight | None:
        """The first on the CPU that is not finite."""
        return next((one for one in self.look() if one.look.coming is None and not one.look.finite), None)

    def places(self) -> list[tuple[ParameterPlace, Tensor]]:
        """All parameters of known models, in order."""
        return [(place, parameter) for tree in self._models for parameter, place in tree.places()]

    def place_of(self, name: str) -> Place | None:
        """The module of a parameter."""
        return next((place.place for place, _ in self.places() if place.name == name), None)

    def writer_of(self, weight: Weight) -> str:
        """Type of the optimizer that updates it, ``""`` where none was seen."""
        for optimizer in self.writers:
            if any(parameter is weight.parameter for parameter in parameters_of(optimizer)):
                return type(optimizer).__name__
        return ""
