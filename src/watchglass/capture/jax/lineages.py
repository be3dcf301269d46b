"""Tells equal models apart: a model is trained by a chain of calls, each of which takes what the one before returned.

Two models of one structure exist where the latest parameters of the first are still there as a call trains others, and
both are trained further. Parameters that only came to be others, as by a copy to another device, are the same model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from watchglass.capture.jax.models import PytreeModels

#: Maximum number of models of equal structure: a script may keep the parameters of each trial of a search.
_MOST = 16


class ModelLineage(NamedTuple):
    """Where a function takes and returns the parameters of a model.

    Attributes:
        model: Its number as the function was traced.
        taken: Takes the first parameter out of its arguments; None if it is not there.
        returned: The same out of its result.
    """

    model: int
    taken: Callable[[Any], Any] | None = None
    returned: Callable[[Any], Any] | None = None


class ModelLineages:
    """Follows the models of a process. For the training thread.

    Args:
        models: The models by structure.
    """

    def __init__(self, models: PytreeModels) -> None:
        self._models = models
        # The first parameter of each model after its latest update, and of what may be a further equal of a model.
        self._heads: dict[int, Callable[[], Any]] = {}
        self._strays: dict[int, Callable[[], Any]] = {}
        self._is_stray = False

    def goes_on(self, lineage: ModelLineage, arguments: Any) -> bool:
        """Whether a call plainly trains the model that its function was traced for, as most do; changes nothing."""
        leaf, head = _leaf(lineage.taken, arguments), self._heads.get(lineage.model)
        return leaf is None or (head is not None and head() is leaf and lineage.model not in self._strays)

    def trained(self, lineage: ModelLineage, arguments: Any) -> int:
        """The number of the model that a call trains."""
        leaf, base = _leaf(lineage.taken, arguments), lineage.model
        self._is_stray = False
        if leaf is None:
            return base
        head, stray = self._heads.get(base), self._strays.get(base)
        if stray is None and (head is None or head() is leaf):
            return base
        number = self.known(base, leaf)
        if stray is not None and stray() is not None and (number is not None or stray() is leaf):
            del self._strays[base]
            if stray() is not leaf or _lives(self._heads[base]):
                twin = self._models.twin(base)
                self._heads[twin] = stray
                return twin if stray() is leaf else base if number is None else number
            self._heads[base] = stray
            return base
        if number is not None:
            return number
        equal = self._models.equal(base)
        left = next((each for each in equal if each not in self._heads or not _lives(self._heads[each])), None)
        self._is_stray = left is None and len(equal) < _MOST
        return base if left is None else left

    def known(self, base: int, leaf: Any) -> int | None:
        """The number of the model, equal to ``base``, whose latest parameters have this array; None if none has."""
        return next(
            (each for each in self._models.equal(base) if each in self._heads and self._heads[each]() is leaf), None
        )

    def evaluated(self, lineage: ModelLineage, arguments: Any) -> int:
        """The number of the model that a call evaluates."""
        leaf = _leaf(lineage.taken, arguments)
        found = None if leaf is None else self.known(lineage.model, leaf)
        return lineage.model if found is None else found

    def updated(self, lineage: ModelLineage, number: int, result: Any) -> None:
        """The call has returned, and has updated that model."""
        leaf = _leaf(lineage.returned, result)
        if leaf is not None:
            self.moved(lineage.model, number, leaf)

    def moved(self, base: int, number: int, leaf: Any) -> None:
        """The first parameter of a model is this array now."""
        is_stray, self._is_stray = self._is_stray, False
        try:
            head = weakref.ref(leaf)
        except TypeError:  # an array of another kind, without weak references
            return
        if is_stray:
            self._strays[base] = head
        else:
            self._heads[number] = head


def _leaf(take: Callable[[Any], Any] | None, tree: Any) -> Any:
    if take is None:
        return None
    try:
        return take(tree)
    except Exception:  # arguments in another form than those that were traced
        return None


def _lives(head: Callable[[], Any]) -> bool:
    leaf = head()
    return leaf is not None and not (isinstance(leaf, jax.Array) and leaf.is_deleted())
