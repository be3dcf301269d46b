"""Functions with steps inside that cannot be seen, and what is said of them."""

from __future__ import annotations

import logging

from watchglass.capture.frameworks import HiddenPart
from watchglass.capture.port import Port
from watchglass.records import facts

_log = logging.getLogger("watchglass")


class HiddenFunctions:
    """Reports functions with steps inside that cannot be seen, each once. For the training thread.

    Args:
        port: Gets the facts.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._reported: set[str] = set()

    def report(self, part: HiddenPart, name: str, *, warns: bool = True) -> None:
        """Record that a function has such steps, and log it."""
        if name in self._reported:
            return
        self._reported.add(name)
        if warns:
            _log.warning("watchglass: %s", part.of(name))
        self._port.add_fact(facts.HiddenSteps((name,)), part.of(name))
