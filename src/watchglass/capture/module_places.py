"""Positions of modules and parameters in their models, in any framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from watchglass.records import ModuleKind, Role, TensorInfo, model_name


def path_in(model: int, *path: str) -> str:
    """A path below a model, with the name of the model in front unless that is the first: ``model_2.fc1``."""
    return ".".join(filter(None, (model_name(model) if model else "", *path)))


def path_below(model: int, path: str) -> str:
    """The inverse of :func:`path_in`: a path without the name of its model."""
    return path[len(model_name(model)) :].removeprefix(".") if model else path


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

    @property
    def is_root(self) -> bool:
        """Whether it is that of the model itself."""
        return not path_below(self.model or 0, self.path)

    def of(self, model: int) -> Place:
        """The same, below the model with this number."""
        return replace(self, path=path_in(model, self.path), model=model)


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

    def of(self, model: int) -> ParameterPlace:
        """The same, below the model with this number."""
        return replace(self, name=path_in(model, self.name), place=self.place.of(model))


#: Place of tensors that belong to no module.
NOWHERE = Place("", "", -1)
