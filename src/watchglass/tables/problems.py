"""The invalid records of a worker, up to a number that a person could read."""

from __future__ import annotations

from dataclasses import replace

from watchglass.errors import DamagedDataError
from watchglass.store import Frame, Problem, describe

#: The problems that are listed one by one: a foreign run may hold millions.
MOST = 10_000


class Problems:
    """The first problems, and the number of all. For one thread."""

    def __init__(self) -> None:
        self._first: list[Problem] = []
        self._more = 0
        self._last: Problem | None = None

    def add(self, frame: Frame, error: DamagedDataError) -> None:
        """Add a frame that is invalid, or has an invalid row."""
        found = describe(frame, error)
        if len(self._first) < MOST:
            self._first.append(found)
        else:
            self._more, self._last = self._more + 1, found

    def all(self) -> list[Problem]:
        """The first :data:`MOST` of them; where there are more, the last one with the number of the others."""
        if self._last is None:
            return list(self._first)
        others = f" (and {self._more - 1} more problems before it)" if self._more > 1 else ""
        return [*self._first, replace(self._last, what=f"{self._last.what}{others}")]
