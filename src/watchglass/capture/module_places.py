"""Positions of modules and parameters in their models, in any framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchglass.records import ModuleKind, Role, TensorInfo


@dataclass(frozen=True)
class Place:
    """Position of a module or parameter: dotted path, type and kind of the module, its index, number of its model."""

    path: str
    module_type: str
    index: int
    model: int | None = None
    kind: ModuleKind = ModuleKind.OTHER

    def describe(self, name: str, role: Role, **more: Any) -> TensorInfo:
        """Catalog row of a tensor of the module, with id 0."""
        return TensorInfo(
            0, name, role, self.path, self.module_type, self.index, model=self.model, module_kind=self.kind, **more
        )  # fmt: skip

    def named(self, *parts: str) -> str:
        """Name of a tensor of the module, ``fc1.input.0``; of the model itself, ``input.0``."""
        return ".".join(filter(None, (self.path, *parts)))


@dataclass(frozen=True)
class ParameterPlace:
    """A parameter's name, the place of the module that owns it, and which axis counts its units, the last one if -1."""

    name: str
    leaf: str
    place: Place
    unit_axis: int = 0

    def axis_of_units(self, axes: int) -> int | None:
        """The axis that counts its units, from 0; None of a number."""
        return self.unit_axis % axes if axes else None


#: Place of tensors that belong to no module.
NOWHERE = Place("", "", -1)
