"""The worker's side of the stop protocol: looking for a request, saying which step is seen, hearing the last step."""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import suppress
from typing import Any

from watchglass.errors import MissingFileError
from watchglass.store import Pace, Store, layout

_log = logging.getLogger("watchglass")


class StopControl:
    """Looks at the store itself, which takes as long as that takes.

    Once a stop is requested it tells, again at every look, which TRAIN step this worker has seen, until the evaluator
    commits the step at which all workers stop.
    """

    def __init__(self, store: Store, attempt: int, worker: str) -> None:
        self._store = store
        self._request = layout.stop_request(attempt)
        self._seen = layout.stop_seen(attempt, worker)
        self._commit = layout.stop_commit(attempt)
        #: Whether a stop was requested.
        self.requested = False

    def poll(self, train_step: int) -> tuple[int, str] | None:
        """``(stop_at_step, reason)`` once committed, else None."""
        if not self.requested:
            # Asked again and again by a training that is not stopped: a look, no read that fails.
            if self._store.size(self._request) is None:
                return None
            self.requested = True
        seen = json.dumps({"train_step": train_step, "wall_ns": time.time_ns()})
        self._store.write(self._seen, seen.encode(), replace=True)
        commit = self._read(self._commit)
        return None if commit is None else (int(commit["stop_at_step"]), str(commit.get("reason", "")))

    def close(self) -> None:
        """Nothing is held open."""

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            data: dict[str, Any] = json.loads(self._store.read(path))
        except MissingFileError:
            return None
        return data


class PatientStopControl:
    """Looks on a thread of its own, for stores that may answer late or never: whoever asks does not wait.

    Args:
        control: Looks at the store.
        pace: How often: ``control_s``, and ``answer_s`` once a stop was requested.
    """

    def __init__(self, control: StopControl, pace: Pace) -> None:
        self._control = control
        self._pace = pace
        self._train_step = -1
        self._stop: tuple[int, str] | None = None
        self._closed = threading.Event()
        self._blind = False
        with suppress(RuntimeError):  # the interpreter ends, and begins no threads: there is nothing left to stop
            threading.Thread(target=self._look, name="watchglass-stop", daemon=True).start()

    def poll(self, train_step: int) -> tuple[int, str] | None:
        """``(stop_at_step, reason)`` once it was seen to be committed, else None."""
        self._train_step = train_step
        return self._stop

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        while self._stop is None and not self._closed.is_set():
            try:
                self._stop = self._control.poll(self._train_step)
                self._blind = False
            except Exception as error:  # a store may come back, and whoever asks for a stop again is heard then
                if not self._blind and not self._closed.is_set():
                    self._blind = True
                    _log.info("watchglass: no stop request can be seen at present: %s", error)
            self._closed.wait(self._pace.answer_s if self._control.requested else self._pace.control_s)
