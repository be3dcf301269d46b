"""Sends the objects of a spool on a separate thread, in order, with retries."""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from watchglass.config import Timing
from watchglass.errors import RunExistsError
from watchglass.store import layout
from watchglass.store.contract import Store
from watchglass.store.spool.abandoned import write_once
from watchglass.store.spool.folder import SpooledObject, read_object

_log = logging.getLogger("watchglass")

#: Errors of reading a whole file that may pass: the process lacks a resource for the moment.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
#: Replaces a segment that the disk has lost: readers report it as damaged and continue. A missing segment would stop
#: them.
_LOST = b"lost by the disk on which it waited"


class Sending:
    """Sends objects to a store in the order in which they were added. One thread adds and closes.

    The sending thread begins with the first object.

    Args:
        store: The store.
        worker: The worker that wrote them.
        folder: The spool's folder, for messages; "" for memory alone.
        timing: How long uploads pause and the end waits.
        arrived: Called with path and size of each object that the store has taken, on the sending thread.

    Attributes:
        on_disk: Bytes in files.
        in_memory: Bytes in memory.
        conflict: Why nothing more is sent: another process has written objects of this worker; "" otherwise.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        folder: str,
        timing: Timing,
        arrived: Callable[[str, int], None],
    ) -> None:
        self._store, self._worker, self._folder = store, worker, folder
        self._timing = timing
        self._arrived = arrived
        self.on_disk = self.in_memory = 0
        self.conflict = ""
        self._waiting: deque[SpooledObject] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = self._given_up = False
        self._lost = ""
        self._unreachable = False
        self._progress_s = 0.0
        # Not the module's: random numbers of the run must not depend on being watched.
        self._chance = random.Random()

    @property
    def closed(self) -> bool:
        """Whether nothing more is to be added."""
        return self._closing

    def add(self, found: SpooledObject) -> None:
        """Send this one behind all others."""
        with self._change:
            self._waiting.append(found)
            self._count(found, 1)
            self._change.notify_all()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="watchglass-uploader", daemon=True)
            with suppress(RuntimeError):  # the interpreter ends, and begins no threads: close will send it
                thread.start()
                self._thread = thread

    def close(self, patience_s: float) -> None:
        """Send the rest, as far as the store takes it, and log what it does not take.

        Args:
            patience_s: Longest wait without progress; the longest wait in all is ten times as long.
        """
        with self._change:
            if self._closing:
                return
            self._closing = True
            self._change.notify_all()
            began = now = self._progress_s = time.monotonic()
            longest_s = patience_s * self._timing.upload_limit_ratio
            report_s = began + self._timing.silent_end_s
            while self._waiting and not self.conflict:
                left_s = min(self._progress_s + patience_s, began + longest_s) - now
                if left_s <= 0:
                    break
                if now >= report_s:
                    report_s = float("inf")
                    self._report_wait(patience_s)
                if self._thread is None and self._tried(self._waiting[0]):
                    left_s = 0.0
                elif self._thread is None:
                    left_s = min(left_s, self._timing.upload_pauses_s[0])
                self._change.wait(min(left_s, max(0.0, report_s - now)))
                now = time.monotonic()
            self._given_up = True
            self._change.notify_all()
        if self._thread is not None:
            # If its request gets no answer, it ends with the time limit of the request or with the process.
            self._thread.join(self._timing.sender_end_s)
        if self._waiting:
            self._report_rest()

    def _count(self, found: SpooledObject, sign: int) -> None:
        if found.file is None:
            self.in_memory += sign * found.size
        else:
            self.on_disk += sign * found.size

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closing)
                if pause_s and self._pause(pause_s * (1 - 0.5 * self._chance.random())):
                    pause_s = 0.0
                if self._given_up or not self._waiting:
                    return
                first = self._waiting[0]
            if self._tried(first):
                pause_s = 0.0
            elif self.conflict:
                return
            else:
                first_s, longest_s = self._timing.upload_pauses_s
                pause_s = min(longest_s, max(first_s, 2 * pause_s))

    def _pause(self, seconds: float) -> bool:
        """Wait; returns whether the spool was closed meanwhile, which cuts the pause short."""
        before = self._closing
        return self._change.wait_for(lambda: self._given_up or self._closing is not before, seconds)

    def _tried(self, first: SpooledObject) -> bool:
        """Send the next object; returns whether it is done."""
        try:
            sent = self._send(first)
        except RunExistsError as error:
            with self._change:
                self.conflict = str(error)
                self._change.notify_all()
            _log.warning("watchglass: %s", error)
            return False
        except Exception as error:  # after any fault, a retry may succeed
            self._report_unreachable(error)
            return False
        self._sent(first, sent)
        return True

    def _send(self, found: SpooledObject) -> bool:
        """Write an object to the store; returns whether there was anything to write."""
        try:
            content = read_object(found)
        except OSError as error:
            if error.errno in _PASSING:
                raise
            if found.path != self._lost:  # its replacement may have to be sent several times
                self._lost = found.path
                _log.warning("watchglass: %s of %s is lost: %s", found.path, self._store.location, error)
            if layout.parse_segment(found.path) is None:
                return False
            content = _LOST
        write_once(self._store, found.path, content, self._worker)
        return True

    def _sent(self, found: SpooledObject, sent: bool) -> None:
        if sent and self._unreachable:
            self._unreachable = False
            _log.info("watchglass: %s is reachable again", self._store.location)
        found.forget()
        with self._change:
            self._waiting.popleft()
            self._count(found, -1)
            self._progress_s = time.monotonic()
            self._change.notify_all()
        if sent:
            try:
                self._arrived(found.path, found.size)
            except Exception as error:  # the rest still has to be sent
                _log.info("watchglass: after %s had arrived: %s: %s", found.path, type(error).__name__, error)

    def _report_unreachable(self, error: Exception) -> None:
        if not self._unreachable:
            self._unreachable = True
            where = self._folder or "memory"
            _log.warning("watchglass: %s; records are buffered in %s and sent later", error, where)

    def _report_wait(self, patience_s: float) -> None:
        left = f"leaves the rest in {self._folder}" if self.on_disk else "discards the rest"
        _log.warning(
            "watchglass: the script has ended; %d bytes of %s are still being sent to %s. The process exits after "
            "that, or after %.0f s without progress; Ctrl-C %s",
            self.on_disk + self.in_memory, self._worker, self._store.location, patience_s, left,
        )  # fmt: skip

    def _report_rest(self) -> None:
        if self.conflict:
            return  # logged already, and no process can send it
        where = self._store.location
        if self.on_disk:
            _log.warning(
                "watchglass: %s is unreachable: %d bytes of %s are buffered in %s. To send them, run "
                "`watchglass follow %s` on this machine, or start the next attempt",
                where, self.on_disk, self._worker, self._folder, where,
            )  # fmt: skip
        if self.in_memory:
            _log.warning(
                "watchglass: %s is unreachable: %d bytes of %s were buffered in memory, since the disk refused them. "
                "They are lost, except the last steps in the flight recorder", where, self.in_memory, self._worker,
            )  # fmt: skip
