"""Optimizers that take turns, as those of a GAN do: each gets its captured steps.

A plan counts steps. Where two optimizers update in steps of their own, every even interval would meet the same one of
them for ever. So what a captured step is to the optimizer that updates in it, the first step after it is to each other
optimizer. Which one a step belongs to is known at its end only; as it opens, what came after such steps the last time
is taken for what comes now.
"""

from __future__ import annotations

from collections.abc import Callable

#: How many steps of one kind in a row are told apart.
_LONGEST_RUN = 1024

_Kind = frozenset[int]


class Turns:
    """Decides which TRAIN steps are captured beside those that the plan names.

    Args:
        due: The plan's answer for a step; asked again for an earlier step where a later one is to be like that.
    """

    def __init__(self, due: Callable[[int], bool]) -> None:
        self._due = due
        self._kinds: set[_Kind] = set()
        # What came after so many steps of a kind in a row, the last time.
        self._next: dict[tuple[_Kind, int], _Kind] = {}
        self._last: _Kind = frozenset()
        self._run = 0
        # The last step that the plan named, and the kinds that have been captured since.
        self._planned = -1
        self._captured: set[_Kind] = set()

    def opens(self, step: int) -> bool:
        """Whether the TRAIN step that opens now is captured."""
        if self._due(step):
            self._planned = step
            self._captured.clear()
            return True
        if len(self._kinds) < 2 or self._planned < 0:
            return False
        kind = self._next.get((self._last, self._run))
        if kind is None or kind in self._captured:
            return False
        return self._due(self._planned)

    def ended(self, optimizers: set[int], *, captured: bool) -> None:
        """A TRAIN step was updated by these."""
        if not optimizers:
            return
        kind = frozenset(optimizers)
        if captured:
            self._captured.add(kind)
        self._kinds.add(kind)
        self._next[self._last, self._run] = kind
        self._run = min(self._run + 1, _LONGEST_RUN) if kind == self._last else 1
        self._last = kind
