"""What the recorder's thread looks at from time to time while it records: above all, for a request to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from watchglass.record.opening import StopControl

_log = logging.getLogger("watchglass")


class Lookout:
    """Looks until a stop is committed; a store that cannot be asked is asked again. For the recorder's thread.

    Args:
        on_stop: Called with ``(stop_at_step, reason)`` once a stop is committed.
        beside: Called at each look, also after a stop; what it raises is reported, and it is not called again.
    """

    def __init__(self, on_stop: Callable[[int, str], None], beside: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._beside: Callable[[], None] | None = beside
        self._control: StopControl | None = None
        self._blind = False

    def watch(self, control: StopControl) -> None:
        """Where to look from now on."""
        self._control = control

    def look(self, train_step: int) -> None:
        """Look once; ``train_step`` is the last one seen."""
        if self._beside is not None:
            try:
                self._beside()
            except Exception as error:
                self._beside = None
                _log.warning("watchglass: %s: %s; the run is recorded all the same", type(error).__name__, error)
        if self._control is None:
            return
        try:
            stop = self._control.poll(train_step)
        except Exception as error:
            # A store may come back, and a request that is repeated is seen then.
            if not self._blind:
                self._blind = True
                _log.warning("watchglass: no stop request can be seen at present: %s", error)
            return
        self._blind = False
        if stop is not None:
            self.close()
            self._on_stop(*stop)

    def close(self) -> None:
        """Look no more."""
        if self._control is not None:
            self._control.close()
            self._control = None
