"""Where modules and parameters sit in their models, in any framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchglass.records import ModuleKind, Role, TensorInfo


@dataclass(frozen=True)
class Place:
    """Where a module or parameter sits: dotted path, type of the module, its position, whose it is, its kind."""

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
        """Name of something of the module, ``fc1.input.0``; of the model's own, ``input.0``."""
        return ".".join(filter(None, (self.path, *parts)))


@dataclass(frozen=True)
class ParameterPlace:
    """A parameter's name and the place of the module that owns it."""

    name: str
    leaf: str
    place: Place


#: Of what belongs to no module.
NOWHERE = Place("", "", -1)
