"""Facts that the recorder's thread makes, so that the training thread does not wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from watchglass.records import DeclaredFact

_log = logging.getLogger("watchglass")
_Kind = TypeVar("_Kind", bound=DeclaredFact)


class DeferredFact(Generic[_Kind]):
    """A fact that the recorder's thread makes when it writes the step.

    Args:
        kind: Its kind.
        make: Makes it, or None to leave it out. Holds copies only.
    """

    __slots__ = ("KIND", "_fact", "_make")

    def __init__(self, kind: type[_Kind], make: Callable[[], _Kind | None]) -> None:
        self.KIND = kind.KIND
        self._make: Callable[[], _Kind | None] | None = make
        self._fact: _Kind | None = None

    def resolve(self) -> _Kind | None:
        """The fact, made at the first call; None to leave it out.

        A fault leaves out this fact alone.
        """
        make, self._make = self._make, None
        if make is not None:
            try:
                self._fact = make()
            except Exception as error:
                _log.debug("watchglass: a fact is not recorded: %s: %s", type(error).__name__, error)
        return self._fact


def data_of(fact: Any) -> dict[str, Any] | None:
    """The data to be stored of a fact, which may be deferred, or stored already; None to leave it out."""
    found = fact.resolve() if hasattr(fact, "resolve") else fact
    data: dict[str, Any] | None = found.to_data() if isinstance(found, DeclaredFact) else found
    return data
