"""Fact ``clip``: ways of clipping gradients, and how often each has something to clip."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace

from watchglass.records import facts

#: The metric beside the fact: the norm of all gradients before they are clipped.
NORM_BEFORE_CLIP = "gradient_norm_before_clip"
#: Calls after which the counts of a way are recorded again.
_APART = 32
_MOST_SETTINGS = 32


@dataclass
class _Clipping:
    """One way of clipping, and its counts since the last record."""

    fact: facts.Clip
    calls: int = 0
    compared: int = 0
    exceeded: int = 0

    def count(self, norm: float | None) -> None:
        """A call with gradients of this norm; None where it is not known."""
        self.calls += 1
        limit = self.fact.max_norm
        if norm is not None and limit is not None:
            self.compared += 1
            self.exceeded += not norm <= limit

    def recorded(self) -> facts.Clip:
        """The fact with the counts; resets these."""
        fact = replace(self.fact, calls=self.calls, compared=self.compared, exceeded=self.exceeded)
        self.calls = self.exceeded = self.compared = 0
        return fact


class Clippings:
    """Counts the calls of each way of clipping. For one thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Clipping] = {}

    def called(self, key: Hashable, make: Callable[[], facts.Clip], norm: float | None) -> facts.Clip | None:
        """Count a call; returns the fact of a way that is new.

        Args:
            key: What the way is known by.
            make: Makes the fact of a new one, without counts.
            norm: The norm of the gradients, if it is known.
        """
        known = self._known.get(key)
        if known is not None:
            known.count(norm)
            return None
        if len(self._known) >= _MOST_SETTINGS:
            return None  # a limit that changes all the time
        known = self._known[key] = _Clipping(make())
        known.count(norm)
        return known.recorded()

    def due(self) -> Iterator[facts.Clip]:
        """The facts of ways with many calls since they were recorded."""
        return (each.recorded() for each in self._known.values() if each.calls >= _APART)
