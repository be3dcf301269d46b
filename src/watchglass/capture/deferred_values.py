"""Values that the recorder's thread computes, so that the training thread does not wait: numbers, data of facts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("watchglass")


@dataclass(slots=True, eq=False)
class DeferredNumbers:
    """Numbers that the recorder's thread computes from others once they have come from their device.

    Args:
        resolve: Waits for them and computes.
        nbytes: Bytes on the host until then.
    """

    resolve: Callable[[], Any]
    nbytes: int = 0


class DeferredData:
    """A fact's data, of a kind that is not declared yet, that the recorder's thread makes when it writes the step.

    Args:
        make: Makes the data: plain JSON values, or None to leave the fact out. Holds copies only.
    """

    __slots__ = ("_data", "_make")

    def __init__(self, make: Callable[[], dict[str, Any] | None]) -> None:
        self._make: Callable[[], dict[str, Any] | None] | None = make
        self._data: dict[str, Any] | None = None

    def resolve(self) -> dict[str, Any] | None:
        """The data, made at the first call; None to leave the fact out.

        A fault leaves out this fact alone.
        """
        make, self._make = self._make, None
        if make is not None:
            try:
                self._data = make()
            except Exception as error:
                _log.debug("watchglass: a fact is not recorded: %s: %s", type(error).__name__, error)
        return self._data
