"""Steps of one mode of one worker, and the steps of its attempts that they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import InvalidValueError

#: Steps as ``range(10, 20)`` or ``(10, 20)``, both half-open.
Range: TypeAlias = range | tuple[int, int]


class StepPlace(NamedTuple):
    """The place of a recorded step: the attempt, and the worker's global step within that attempt."""

    attempt: int
    global_step: int


class StepNumbers:
    """The complete steps of a mode over the attempts that count, ascending.

    Args:
        rows: The steps as rows of :data:`~watchglass.run.numbering.course.COURSE`, one for each.
        name: The column that they ascend by.
    """

    def __init__(self, rows: NDArray[Any], name: str) -> None:
        self._rows, self._steps = rows, np.ascontiguousarray(rows[name])

    @cached_property
    def _known(self) -> dict[int, tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """Global steps and steps of each attempt."""
        attempts = self._rows["attempt"]
        chosen = {attempt: attempts == attempt for attempt in np.unique(attempts).tolist()}
        return {attempt: (self._rows["own"][own], self._steps[own]) for attempt, own in chosen.items()}

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps.tolist())

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int | np.integer) and self._index(int(step)) is not None

    def __str__(self) -> str:
        return f"{self._steps[0]} to {self._steps[-1]}" if len(self) else "none"

    @property
    def last(self) -> int:
        """The last step, -1 where there is none."""
        return int(self._steps[-1]) if len(self) else -1

    def place(self, step: int) -> StepPlace:
        """The place of a step that this has; KeyError for others."""
        index = self._index(int(step))
        if index is None:
            raise KeyError(step)
        return StepPlace(*self._rows[["attempt", "own"]][index].item())

    def _index(self, step: int) -> int | None:
        index = int(np.searchsorted(self._steps, step))
        return index if index < len(self) and int(self._steps[index]) == step else None

    def of_global(self, attempt: int, global_steps: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """An attempt's ``global_steps`` that belong here: their steps, ascending int64[k], and positions, intp[k].

        For equal global steps all positions, in their order.
        """
        numbers, steps = self._known.get(attempt, (np.empty(0, np.uint64), np.empty(0, np.int64)))
        wanted = np.asarray(global_steps, np.uint64)
        if not len(numbers) or not len(wanted):
            return np.empty(0, np.int64), np.empty(0, np.intp)
        place = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
        index = np.flatnonzero(numbers[place] == wanted)
        found = steps[place[index]]
        if len(found) > 1 and (found[1:] < found[:-1]).any():
            order = np.argsort(found, kind="stable")
            found, index = found[order], index[order]
        return found, index

    def own(self, attempt: int) -> NDArray[np.uint64]:
        """Global steps of an attempt that belong here, ascending."""
        return self._known[attempt][0] if attempt in self._known else np.empty(0, np.uint64)

    def within(self, low: int, high: int) -> list[int]:
        """Those of ``[low, high)``, ascending."""
        first, last = np.searchsorted(self._steps, [low, high])
        found: list[int] = self._steps[first:last].tolist()
        return found

    def between(self, low: int, high: int) -> dict[int, tuple[int, int]]:
        """The global steps of steps ``[low, high)``, by attempt, half-open."""
        found: dict[int, tuple[int, int]] = {}
        for attempt, (numbers, steps) in self._known.items():
            first, last = np.searchsorted(steps, [low, high])
            if first < last:
                found[attempt] = int(numbers[first]), int(numbers[last - 1]) + 1
        return found


def half_open(steps: Range | None) -> tuple[int, int] | None:
    """A range of steps as two numbers, half-open; None for None.

    Raises:
        InvalidValueError: It is not a range, or has gaps.
    """
    if steps is None:
        return None
    if isinstance(steps, range):
        if steps.step != 1:
            raise InvalidValueError(f"steps must be a range without gaps but got {steps}")
        return steps.start, max(steps.start, steps.stop)
    given: Any = steps
    if not (isinstance(given, tuple | list) and len(given) == 2 and all(hasattr(n, "__index__") for n in given)):
        raise InvalidValueError(f"steps must be range(first, end) or (first, end), end exclusive, but got {steps!r}")
    return int(given[0]), max(int(given[0]), int(given[1]))
