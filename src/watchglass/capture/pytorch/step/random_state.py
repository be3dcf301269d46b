"""States of the global random generators, as far as a forward draws from them."""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

#: Captured forwards of a model after which it is known from which generators it draws. To look costs up to 60
#: microseconds, so it is rare from then on: one that began to draw later is found out as its forward is repeated.
_LOOKS, _RARELY = 4, 16


class Draws(NamedTuple):
    """From which of the global generators a forward draws: PyTorch's for the CPU, Python's, NumPy's legacy one."""

    framework: bool = False
    python: bool = False
    numpy: bool = False

    def states(self) -> Randomness:
        """The states of these generators now."""
        # Called at every step: 0.7, 7 and 23 microseconds. The legacy generator on purpose: it is the global one.
        return Randomness(
            torch.get_rng_state() if self.framework else None,
            random.getstate() if self.python else None,
            np.random.get_state(legacy=False) if self.numpy else None,  # noqa: NPY002
        )


NONE, ALL = Draws(), Draws(True, True, True)


class Randomness(NamedTuple):
    """States of generators; None for one that is not known."""

    framework: Tensor | None = None
    python: Any = None
    numpy: Any = None

    def drawn(self) -> Draws:
        """From which of these generators something was drawn since."""
        now = Draws(*(state is not None for state in self)).states()
        return Draws(*(not _equal(before, after) for before, after in zip(self, now, strict=True)))

    def restore(self) -> None:
        """Put the generators back into these states."""
        if self.framework is not None:
            torch.set_rng_state(self.framework)
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            np.random.set_state(self.numpy)  # noqa: NPY002


class Habits:
    """From which generators each model's forwards were seen to draw: only those are worth recording."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[nn.Module, Draws] = weakref.WeakKeyDictionary()
        self._looks: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def of(self, root: nn.Module) -> Draws:
        """The known draws of a model."""
        return self._known.get(root, NONE)

    def begin(self, root: nn.Module) -> Randomness:
        """The states to record before a forward; call :meth:`end` after it."""
        looks = self._looks.get(root, 0)
        if looks < _LOOKS:
            return ALL.states()
        return (self.of(root)._replace(framework=True) if looks % _RARELY == 0 else self.of(root)).states()

    def end(self, root: nn.Module, before: Randomness) -> Draws:
        """That forward has ended; returns the generators that it drew from."""
        looks = self._looks[root] = self._looks.get(root, 0) + 1
        if looks <= _LOOKS or before.framework is not None:
            self._known[root] = before.drawn()
        return self.of(root)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore all generators after the block."""
    before = ALL.states()
    try:
        yield
    finally:
        before.restore()


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)
