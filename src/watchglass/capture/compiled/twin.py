"""A compiled function and its twin, the same function traced a second time, which also returns collected values."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from watchglass.capture.compiled.collecting import Values
from watchglass.capture.port import Port
from watchglass.records import facts

_log = logging.getLogger("watchglass")


class Twin:
    """Runs the twin of one compiled function. For the training thread.

    Nothing runs twice: the twin is called in place of the function, at steps that are due. If it cannot be traced, the
    function itself runs, then and from now on.

    Args:
        port: Gets the fact that it cannot be traced.
        name: Name of the function, in the warning.
        trace: Called with the arguments ahead of each call; traces the twin if that is needed for them, and changes
            nothing. Whatever it raises ends the use of the twin.
        run: Called with the arguments; returns the result of the function, and the values.
    """

    def __init__(
        self, port: Port, name: str, trace: Callable[..., object], run: Callable[..., tuple[Any, Values]]
    ) -> None:
        self._port, self._name, self._trace, self._run = port, name, trace, run
        self.usable = True  #: Whether it was always traced so far.

    def ready(self, *args: Any, **kwargs: Any) -> bool:
        """Whether it can be called with these arguments; the first time, that compiles it."""
        if not self.usable:
            return False
        try:
            self._trace(*args, **kwargs)
        except Exception as error:
            self.give_up(error)
        return self.usable

    def give_up(self, error: Exception) -> None:
        """It cannot be traced: never use it again, and say so once."""
        self.usable = False
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        _log.warning(
            "watchglass: tensors of %s are not captured, its loss is: tracing it a second time raised %s",
            self._name, reason,
        )  # fmt: skip
        self._port.records.current().add_fact(facts.NotCapturable((self._name,)), reason)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Values]:
        """The result of the function, and the values. What the function raises, this raises."""
        return self._run(*args, **kwargs)
