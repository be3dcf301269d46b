"""Steps of one mode of one worker, and how they number against its global steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Mode, StepEnd


class StepNumbers:
    """The complete steps of a mode, ascending. For ``Mode.GLOBAL`` step and global step are the same.

    Args:
        ends: Ends of steps of one worker, in any order.
        mode: Which of them.
    """

    def __init__(self, ends: Iterable[StepEnd], mode: Mode) -> None:
        pairs = sorted(
            (end.global_step if mode is Mode.GLOBAL else end.mode_step, end.global_step)
            for end in ends
            if mode in (end.mode, Mode.GLOBAL)
        )
        self._global = dict(pairs)
        self._steps = {number: step for step, number in pairs}

    def __len__(self) -> int:
        return len(self._global)

    def __iter__(self) -> Iterator[int]:
        return iter(self._global)

    def __contains__(self, step: object) -> bool:
        return step in self._global

    def __str__(self) -> str:
        if not self._global:
            return "none"
        steps = list(self._global)
        return f"{steps[0]} to {steps[-1]}"

    def global_step(self, step: int) -> int:
        """The global step of a step that is there."""
        return self._global[step]

    def of_global(self, global_steps: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        """Which of ``global_steps`` belong here: their steps, ascending int64[k], and their positions, intp[k]."""
        found = [
            (self._steps[number], index) for index, number in enumerate(global_steps.tolist()) if number in self._steps
        ]
        table = np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
        return table[:, 0], table[:, 1].astype(np.intp)
