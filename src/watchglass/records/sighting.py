"""What the processes of a launch that recorded no step have seen of frameworks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sighting:
    """The frameworks of a process that recorded no training step, or of several."""

    frameworks: tuple[str, ...] = ()  #: Import names of those of the table of frameworks that were imported, sorted.
    backwards: int = 0  #: Number of backward passes that ran.

    def to_json(self) -> dict[str, Any]:
        """This as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Sighting | None:
        """What :meth:`to_json` gave; None for other data."""
        if not isinstance(data, Mapping):
            return None
        names, backwards = data.get("frameworks"), data.get("backwards")
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            return None
        if type(backwards) is not int or backwards < 0:
            return None
        return cls(tuple(sorted({name[:100] for name in names[:100]})), backwards)

    @classmethod
    def of_all(cls, sightings: Iterable[Sighting]) -> Sighting | None:
        """Those of several processes together; None for none."""
        each = list(sightings)
        if not each:
            return None
        names = {name for sighting in each for name in sighting.frameworks}
        return cls(tuple(sorted(names)), sum(sighting.backwards for sighting in each))
