"""Looking for a request to stop while a training is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable

from watchglass.record.opening import StopControl

_log = logging.getLogger("watchglass")


class StopLookout:
    """Looks until a stop is committed; a store that cannot be asked is asked again. For the recorder's thread.

    Args:
        on_stop: Called with ``(stop_at_step, reason)`` once a stop is committed.
    """

    def __init__(self, on_stop: Callable[[int, str], None]) -> None:
        self._on_stop = on_stop
        self._control: StopControl | None = None
        self._blind = False

    def watch(self, control: StopControl) -> None:
        """Where to look from now on."""
        self._control = control

    def look(self, train_step: int) -> None:
        """Look once; ``train_step`` is the last one seen."""
        if self._control is None:
            return
        try:
            stop = self._control.poll(train_step)
        except Exception as error:
            # A store may come back, and whoever asks for a stop again is heard then.
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
