"""Where modules and parameters sit in their models, in any framework."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.records import ModuleKind


@dataclass(frozen=True)
class Place:
    """Where a module or parameter sits: dotted path, type of the module, its position, whose it is, its kind."""

    path: str
    module_type: str
    index: int
    model: int | None = None
    kind: ModuleKind = ModuleKind.OTHER

    def named(self, *parts: str) -> str:
        """Name of something of the module, ``fc1.input.0``; of the model's own, ``input.0``."""
        return ".".join(part for part in (self.path, *parts) if part)


@dataclass(frozen=True)
class ParameterPlace:
    """A parameter's name and the place of the module that owns it."""

    name: str
    leaf: str
    place: Place


#: Of what belongs to no module.
NOWHERE = Place("", "", -1)
