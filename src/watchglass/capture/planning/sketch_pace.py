"""The steps at which inputs, outputs and targets are sketched: dense at the start, then ever rarer."""

from __future__ import annotations

import math

from watchglass.records import Mode

#: Sketches in each doubling of a mode's step number.
_PER_DOUBLING = 8


def sketch_spacing(step: int) -> int:
    """Steps of a mode between sketches around one of them: 1 for the first 16, then eight sketches in each doubling."""
    return 1 if step < 2 * _PER_DOUBLING else 1 << (step.bit_length() - _PER_DOUBLING.bit_length())


def is_power_of_two(number: float) -> bool:
    """Whether it is 1, 2, 4, 8 ...: the captures at which facts are recorded that change slowly."""
    return number >= 1 and math.frexp(number)[0] == 0.5


class SketchPace:
    """The steps of each mode and model at which sketches are made, among those that are captured.

    A run of 100 steps has about 40, one of 5,000 steps about 80.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[Mode, int], int] = {}

    def due(self, mode: Mode, model: int, step: int) -> bool:
        """Whether a step is one of them. The second call for a step answers False: one sketch of its micro-batches."""
        if step < self._next.get((mode, model), 0):
            return False
        self._next[mode, model] = step + sketch_spacing(step)
        return True
