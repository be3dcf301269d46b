"""Requests to one bucket: chooses a client, retries after passing failures, makes every failure one of our errors."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from watchglass.errors import ForkedError, MissingFileError, RunExistsError, StoreError, WatchglassError
from watchglass.store.media.credentials import RequestPatience
from watchglass.store.media.request_failures import FailureKind, RequestFailure, understood

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

#: Not Python's shared generator: random numbers of a script must not depend on being watched.
_chance = random.Random()
_Answer = TypeVar("_Answer")

#: Bytes that a request can carry within the ordinary time limit.
_CARRIED = 4 << 20
#: Bytes per second below which sending or fetching a large object is given up.
_SLOWEST = 1 << 19


class OutOfRangeError(StoreError):
    """A range begins where the object has ended."""


class ChangedError(StoreError):
    """An object was replaced while its pieces were read."""


class Requests:
    """Sends requests to a bucket; thread-safe.

    Clients are made on demand: one for each time limit, because each has separate connections.

    Args:
        location: For messages, without anything secret.
        connect: Makes a client. It gets the time limit of a request in seconds, and whether the client itself retries.
        patience: How long a call may take; also an attribute.
    """

    def __init__(self, location: str, connect: Callable[[float, bool], Client], patience: RequestPatience) -> None:
        self._location = location
        self._connect = connect
        self.patience = patience
        self._clients: dict[tuple[float, bool], Client] = {}
        self._lock = threading.Lock()

    def client(self, request_s: float, tries: bool) -> Client:
        """The one client of its kind."""
        with self._lock:
            found = self._clients.get((request_s, tries))
            if found is None:
                found = self._clients[request_s, tries] = self._connect(request_s, tries)
                _note_use()
            return found

    def close(self) -> None:
        """Close connections."""
        if not _is_forked():  # the lock may be held by a thread of the parent
            with self._lock:
                self._clients.clear()

    def shown(self, path: str) -> str:
        """A path as messages show it."""
        return f"{self._location.rstrip('/')}/{path}" if path else self._location

    def exists_error(self, path: str) -> RunExistsError:
        """The error for an object that must not exist."""
        shown = self.shown(path)
        return RunExistsError(f"{shown} exists and is never overwritten; choose another run or remove it first")

    def missing_error(self, path: str) -> MissingFileError:
        """The error for an object that does not exist."""
        return MissingFileError(f"{self.shown(path)} does not exist; check the path of the run")

    def ask(
        self,
        verb: str,
        path: str,
        call: Callable[[Client], _Answer],
        *,
        carried: int = 0,
        tries: bool = False,
    ) -> _Answer:
        """The result of ``call``, retried for a while after failures that may pass.

        Args:
            verb: For messages: "cannot <verb> <path>".
            path: For messages, too.
            call: Makes requests; it may be called several times.
            carried: Bytes that its requests carry at once, if more than a few megabytes.
            tries: Whether the client retries single requests, because ``call`` makes many.

        Raises:
            WatchglassError: It failed for good, or for too long.
        """
        deadline: float | None = None
        pause = self.patience.first_pause_s
        while True:
            try:
                return call(self._suitable(carried, tries))
            except (WatchglassError, MemoryError):
                raise
            except Exception as error:
                failure = understood(error)
            now = time.monotonic()
            deadline = deadline or now + self.patience.retry_s
            waited = pause * _chance.uniform(0.5, 1.0)
            if failure.kind is not FailureKind.PASSING or now + waited > deadline:
                raise self._error(verb, path, failure)
            time.sleep(waited)
            pause = min(2 * pause, self.patience.longest_pause_s)

    def _error(self, verb: str, path: str, failure: RequestFailure) -> WatchglassError:
        if failure.kind is FailureKind.EXISTS and verb == "write":
            return self.exists_error(path)
        if failure.kind is FailureKind.MISSING:
            if verb == "write":
                return StoreError(
                    f"cannot write {self.shown(path)}: there is no such bucket; create it or check its name"
                )
            return self.missing_error(path)
        kinds = {FailureKind.OUT_OF_RANGE: OutOfRangeError, FailureKind.CHANGED: ChangedError}
        return kinds.get(failure.kind, StoreError)(f"cannot {verb} {self.shown(path)}: {failure.cure}")

    def _suitable(self, carried: int, tries: bool) -> Client:
        """A client whose time limit suits the bytes that a request carries."""
        if _is_forked():
            raise ForkedError(
                f"cannot use {self._location} in a process forked from one that has used an object store: start it "
                "with spawn, or use the store in the child only"
            )
        request_s = self.patience.request_s
        while carried > _CARRIED and request_s < self.patience.request_s + carried / _SLOWEST:
            request_s *= 2
        try:
            return self.client(request_s, tries)
        except StoreError as error:
            raise StoreError(f"cannot use {self._location}: {error}") from None


#: The process that made the first client: a forked child does not have the threads of clients.
_used_by: int | None = None


def _note_use() -> None:
    global _used_by
    _used_by = os.getpid()


def _is_forked() -> bool:
    return _used_by is not None and _used_by != os.getpid()
