"""The spool: what is written to a store that may be away or slow waits on the local disk and is sent from there.

Whoever writes hands an object over to the disk and goes on. A thread of the spool's own sends the objects in their
order, one after another, and tries again for as long as it takes. Should the process die, the folder is what it leaves:
:func:`~watchglass.store.spool.left.send_left` sends that, from any process of this machine.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from watchglass.errors import NoRoomError, RunExistsError, StoreError, WatchglassError
from watchglass.store import layout
from watchglass.store.contract import Buffer, Content, Entry, Store
from watchglass.store.spool import folder as spool_folder
from watchglass.store.spool.folder import SpooledObject, SpoolFolder, read_object
from watchglass.store.spool.left import write_once

_log = logging.getLogger("watchglass")

#: Share of the room that raw tensors may take: the rest is for what says how the training went.
RAW_SHARE = 0.75
#: Seconds until the next try: of the first one, and the longest. Each is up to a half shorter, by chance, so that the
#: workers of a run do not come back to a store all at once.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: Of which reading a file may fail although the file is whole: the process is short of something just now.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
#: Stands for a segment that the disk has lost: readers say that it is damaged and go on, while they wait behind a hole.
_LOST = b"lost by the disk on which it waited"
#: When a worker ends: seconds that it waits without a word.
_QUIET_S = 3.0
#: When a worker ends: seconds without any progress, and in all, after which the rest is left to others.
PATIENCE_S, LONGEST_PATIENCE_S = 60.0, 600.0


@dataclass(frozen=True)
class _InMemory:
    """An object that the disk did not take."""

    path: str
    size: int
    content: bytes


class Spool(Store):
    """A store of which writing is handing over; everything else is what the store behind it says.

    Objects arrive in the order in which they were written. For one writing thread.

    Attributes:
        folder: Where objects wait, for the worker's claim; "" where they wait in memory alone.
        refused: Why the disk is not used; "" where it is.
        arrived: Called with path and size of each object that the store has taken, by whoever sends it; nobody waits
            for that, and an error of ours that it raises changes nothing.
    """

    appends = False

    def __init__(
        self,
        store: Store,
        worker: str,
        label: Mapping[str, Any],
        *,
        most_bytes: int,
        memory_bytes: int,
        pause_s: tuple[float, float] | None = None,
    ) -> None:
        """Make the folder; the thread begins with the first object.

        Args:
            store: Where objects go in the end.
            worker: Whose they are.
            label: What the folder is of: at least ``run``, ``attempt`` and ``worker``.
            most_bytes: What may wait on the disk; 0 for nothing.
            memory_bytes: What may wait in memory where the disk takes nothing.
            pause_s: Seconds until a failed upload is tried again, the first time and at most.
        """
        self.location = store.location
        self._store = store
        self._worker = worker
        self._most_bytes = most_bytes
        self._most_in_memory = memory_bytes
        self._pauses_s = pause_s or (FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._folder: SpoolFolder | None = None
        self.folder = self.refused = ""
        if most_bytes > 0:
            try:
                self._folder = SpoolFolder(worker, label)
                self.folder = str(self._folder.path)
            except OSError as error:
                self.refused = f"{error.strerror or error}"
        self.arrived: Callable[[str, int], None] | None = None
        self._waiting: deque[SpooledObject | _InMemory] = deque()
        self._on_disk = self._in_memory = self._number = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = self._given_up = False
        self._conflict = self._lost = ""
        self._away = False
        self._progress_s = 0.0
        # Not the module's: a training's chance must not depend on being watched.
        self._chance = random.Random()

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """Hand an object over; it is on this machine's disk then, and in the store as soon as that takes it.

        Raises:
            NoRoomError: Too much waits already, or neither disk nor memory takes it.
            RunExistsError: Somebody else has written objects of this worker.
            StoreError: The spool is closed, or ``replace`` was asked for: what is replaced must not wait.
        """
        if replace or self._closing:
            why = "replaces nothing" if replace else "is closed"
            raise StoreError(f"the spool of {self._worker} {why}; write {path} to {self.location} itself")
        if self._conflict:
            raise RunExistsError(self._conflict)
        size = len(data) if isinstance(data, bytes) else sum(memoryview(part).nbytes for part in data)
        self._add(self._on_the_disk(path, data, size) or self._kept_in_memory(path, data, size))

    def _on_the_disk(self, path: str, data: Content, size: int) -> SpooledObject | None:
        """The object as a file; None where the disk is not to be used."""
        # What is lost with this process must be the end of what was written, so nothing on the disk overtakes memory.
        if self._folder is None or self._in_memory:
            return None
        room = self._most_bytes * (1 if layout.parse_segment(path) else RAW_SHARE)
        if self._on_disk + size > room:
            raise NoRoomError(
                f"the spool is full: {self._on_disk} bytes wait in {self.folder} for {self.location}, "
                f"and {size} more do not fit into {room:.0f}; see to the store, or raise spool_bytes"
            )
        try:
            found = self._folder.add(self._number, path, data)
        except OSError as error:
            if not self.refused:
                self.refused = error.strerror or str(error)
                _log.warning(
                    "watchglass: %s cannot be written (%s); what %s does not take waits in memory, at most %d bytes",
                    self.folder, self.refused, self.location, self._most_in_memory,
                )  # fmt: skip
            return None
        self.refused = ""
        return found

    def _kept_in_memory(self, path: str, data: Content, size: int) -> _InMemory:
        if self._in_memory + size > self._most_in_memory:
            raise NoRoomError(
                f"{self._in_memory} bytes wait in memory for {self.location}, and {size} more do not fit into "
                f"{self._most_in_memory}; see to the store, and give the disk at {spool_folder.parent_folder()} room"
            )
        return _InMemory(path, size, data if isinstance(data, bytes) else b"".join(data))

    def _add(self, found: SpooledObject | _InMemory) -> None:
        with self._change:
            self._number += 1
            self._waiting.append(found)
            self._count(found, 1)
            self._change.notify_all()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="watchglass-uploader", daemon=True)
            with suppress(RuntimeError):  # the interpreter ends, and begins no threads: close will send it
                thread.start()
                self._thread = thread

    def _count(self, found: SpooledObject | _InMemory, sign: int) -> None:
        if isinstance(found, _InMemory):
            self._in_memory += sign * found.size
        else:
            self._on_disk += sign * found.size

    @property
    def waiting_bytes(self) -> int:
        """What is not in the store yet."""
        return self._on_disk + self._in_memory

    @property
    def memory_bytes(self) -> int:
        """The part of it that the disk did not take."""
        return self._in_memory

    def close(self, patience_s: float | None = None) -> None:
        """Send what waits, as far as the store takes it; what it does not take stays in the folder.

        The store behind is left open.

        Args:
            patience_s: Give up after so many seconds without progress, and ten times as many in all; 60 s if None.
        """
        patience_s = PATIENCE_S if patience_s is None else patience_s
        with self._change:
            if self._closing:
                return
            self._closing = True
            self._change.notify_all()
            began = now = self._progress_s = time.monotonic()
            longest_s = patience_s * LONGEST_PATIENCE_S / PATIENCE_S
            telling_s = began + _QUIET_S
            while self._waiting and not self._conflict:
                left_s = min(self._progress_s + patience_s, began + longest_s) - now
                if left_s <= 0:
                    break
                if now >= telling_s:
                    telling_s = float("inf")
                    self._tell_waiting(patience_s)
                if self._thread is None and self._tried(self._waiting[0]):
                    left_s = 0.0
                elif self._thread is None:
                    left_s = min(left_s, self._pauses_s[0])
                self._change.wait(min(left_s, max(0.0, telling_s - now)))
                now = time.monotonic()
            self._given_up = True
            self._change.notify_all()
        if self._thread is not None:
            # Where it is in the middle of a request that nobody answers it ends with that, or with the process.
            self._thread.join(0.5)
        if self._waiting:
            self._tell_what_waits()
        if self._folder is not None:
            self._folder.close()

    def _tell_waiting(self, patience_s: float) -> None:
        left = f"leaves the rest in {self.folder}" if self._on_disk else "gives it up"
        _log.warning(
            "watchglass: the training is over; %d bytes of %s are still on their way to %s, and the process waits for "
            "them until nothing has moved for %.0f s; Ctrl-C %s",
            self.waiting_bytes, self._worker, self.location, patience_s, left,
        )  # fmt: skip

    def _tell_what_waits(self) -> None:
        if self._conflict:
            return  # told already, and nobody can send it
        if self._on_disk:
            _log.warning(
                "watchglass: %s is away: %d bytes of %s wait in %s; `watchglass follow %s` on this machine sends them, "
                "and so does the next attempt", self.location, self._on_disk, self._worker, self.folder, self.location,
            )  # fmt: skip
        if self._in_memory:
            _log.warning(
                "watchglass: %s is away: %d bytes of %s waited in memory, for the disk takes nothing, and are lost "
                "but for what the flight recorder holds", self.location, self._in_memory, self._worker,
            )  # fmt: skip

    # -- sending --------------------------------------------------------------------------------------------------

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
            elif self._conflict:
                return
            else:
                pause_s = min(self._pauses_s[1], max(self._pauses_s[0], 2 * pause_s))

    def _pause(self, seconds: float) -> bool:
        """Wait; returns whether the end of it all was told meanwhile, which makes haste."""
        before = self._closing
        return self._change.wait_for(lambda: self._given_up or self._closing is not before, seconds)

    def _tried(self, first: SpooledObject | _InMemory) -> bool:
        """Send the object that is next; returns whether that is done with."""
        try:
            sent = self._send(first)
        except RunExistsError as error:
            with self._change:
                self._conflict = str(error)
                self._change.notify_all()
            _log.warning("watchglass: %s", error)
            return False
        except Exception as error:  # whatever it was, the store may take it another time
            self._tell_away(error)
            return False
        self._sent(first, sent)
        return True

    def _send(self, found: SpooledObject | _InMemory) -> bool:
        """Write an object to the store; returns whether there was anything to write."""
        try:
            content = found.content if isinstance(found, _InMemory) else read_object(found)
        except OSError as error:
            if error.errno in _PASSING:
                raise
            if found.path != self._lost:  # its stand-in may have to be sent several times
                self._lost = found.path
                _log.warning("watchglass: %s of %s is lost: %s", found.path, self.location, error)
            if layout.parse_segment(found.path) is None:
                return False
            content = _LOST
        write_once(self._store, found.path, content, self._worker)
        return True

    def _sent(self, found: SpooledObject | _InMemory, sent: bool) -> None:
        if sent and self._away:
            self._away = False
            _log.info("watchglass: %s takes records again", self.location)
        if isinstance(found, SpooledObject):
            with suppress(OSError):
                found.file.unlink()
        with self._change:
            self._waiting.popleft()
            self._count(found, -1)
            self._progress_s = time.monotonic()
            self._change.notify_all()
        if sent and self.arrived is not None:
            with suppress(WatchglassError):
                self.arrived(found.path, found.size)

    def _tell_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            where = self.folder or "memory"
            _log.warning("watchglass: %s; what is recorded waits in %s and is sent later", error, where)

    # -- the store behind -----------------------------------------------------------------------------------------

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See :meth:`Store.read`."""
        return self._store.read(path, start, end)

    def append(self, path: str, data: bytes) -> None:
        """See :meth:`Store.append`."""
        self._store.append(path, data)

    def list(self, prefix: str = "", after: str = "") -> list[Entry]:
        """See :meth:`Store.list`."""
        return self._store.list(prefix, after)

    def delete(self, path: str) -> None:
        """See :meth:`Store.delete`."""
        self._store.delete(path)

    def size(self, path: str) -> int | None:
        """See :meth:`Store.size`."""
        return self._store.size(path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See :meth:`Store.folders`."""
        return self._store.folders(prefix)

    def map(self, path: str) -> Buffer:
        """See :meth:`Store.map`."""
        return self._store.map(path)
