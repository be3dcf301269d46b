"""The spool: a buffer on the local disk for a store that may be unreachable or slow.

The writer hands an object over to the disk and continues. A separate thread sends the objects in order and retries
until the store takes them. The folder outlives the process:
:func:`~watchglass.store.spool.abandoned.send_abandoned` sends that, from any process of this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from watchglass.config import TIMING, Timing
from watchglass.errors import NoRoomError, RunExistsError, StoreError
from watchglass.store import layout, locked_files
from watchglass.store.contract import Content, Store, WrapperStore
from watchglass.store.spool.folder import SpooledObject, SpoolFolder
from watchglass.store.spool.sending import Sending

_log = logging.getLogger("watchglass")

#: Share of the spool that raw tensors may take; the rest is for all other records.
RAW_SHARE = 0.75


class Spool(WrapperStore):
    """A store whose writes go into the spool; everything else goes to the store behind it.

    Objects arrive in the order in which they were written. For one writing thread.

    Attributes:
        folder: The folder, for the worker's claim; "" for memory alone.
        refused: Why the disk is not used; "" where it is.
        arrived: Called with path and size of each object that the store has taken, on the sending thread;
            exceptions in it are logged and ignored.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        label: Mapping[str, Any],
        *,
        most_bytes: int,
        memory_bytes: int,
        reserve_bytes: int,
        timing: Timing = TIMING,
    ) -> None:
        """Make the folder; the thread begins with the first object.

        Args:
            store: The store behind the spool.
            worker: The worker that writes.
            label: Of the folder: at least ``run``, ``attempt`` and ``worker``.
            most_bytes: Most bytes on the disk; 0 for no disk.
            memory_bytes: Most bytes in memory, where the disk refuses.
            reserve_bytes: Bytes that stay free on the disk.
            timing: How long uploads pause and the end waits.
        """
        super().__init__(store)
        self.appends = False
        self._worker = worker
        self._most_bytes = most_bytes
        self._most_in_memory = memory_bytes
        self._folder: SpoolFolder | None = None
        self.folder = self.refused = ""
        if most_bytes > 0:
            try:
                self._folder = SpoolFolder(worker, label, reserve_bytes)
                self.folder = str(self._folder.path)
            except OSError as error:
                self.refused = f"{error.strerror or error}"
        self.arrived: Callable[[str, int], None] = lambda path, size: None
        self._number = 0
        self._timing = timing
        self._sending = Sending(store, worker, self.folder, timing, lambda path, size: self.arrived(path, size))

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """Hand an object over: it is on the local disk at once, and in the store as soon as that takes it.

        Raises:
            NoRoomError: The spool is full, or neither disk nor memory takes it.
            RunExistsError: Another process has written objects of this worker.
            StoreError: The spool is closed, or ``replace`` is set: a replacement must not be delayed.
        """
        if replace or self._sending.closed:
            why = "replaces nothing" if replace else "is closed"
            raise StoreError(f"the spool of {self._worker} {why}; write {path} to {self.location} itself")
        if self._sending.conflict:
            raise RunExistsError(self._sending.conflict)
        size = len(data) if isinstance(data, bytes) else sum(memoryview(part).nbytes for part in data)
        found = self._on_the_disk(path, data, size) or self._kept_in_memory(path, data, size)
        self._number += 1
        self._sending.add(found)

    def _on_the_disk(self, path: str, data: Content, size: int) -> SpooledObject | None:
        """The object as a file; None where the disk is not to be used."""
        # A dying process may lose only the last objects, so no later object goes to the disk while some are in memory.
        if self._folder is None or self._sending.in_memory:
            return None
        room = _room(self._most_bytes, path)
        if self._sending.on_disk + size > room:
            raise NoRoomError(
                f"the spool is full: {self._sending.on_disk} bytes are buffered in {self.folder} for {self.location}, "
                f"and {size} more exceed the limit of {room:.0f}; check the store, or raise spool_bytes"
            )
        try:
            found = self._folder.add(self._number, path, data, size)
        except OSError as error:
            if not self.refused:
                self.refused = error.strerror or str(error)
                _log.warning(
                    "watchglass: %s cannot be written (%s); records for %s are buffered in memory, at most %d bytes",
                    self.folder, self.refused, self.location, self._most_in_memory,
                )  # fmt: skip
            return None
        self.refused = ""
        return found

    def _kept_in_memory(self, path: str, data: Content, size: int) -> SpooledObject:
        room = _room(self._most_in_memory, path)
        if self._sending.in_memory + size > room:
            raise NoRoomError(
                f"{self._sending.in_memory} bytes are buffered in memory for {self.location}, and {size} more exceed "
                f"the limit of {room:.0f}; check the store, and free space on the disk of "
                f"{locked_files.lasting_folder()}"
            )
        return SpooledObject(self._number, path, size, content=data if isinstance(data, bytes) else b"".join(data))

    @property
    def patience_s(self) -> float:
        """Seconds without progress after which :meth:`close` stops waiting."""
        return self._timing.upload_patience_s

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not in the store yet."""
        return self._sending.on_disk + self._sending.in_memory

    @property
    def memory_bytes(self) -> int:
        """The part of them that is in memory."""
        return self._sending.in_memory

    def close(self, patience_s: float | None = None) -> None:
        """Send the rest, as far as the store takes it; the rest stays in the folder.

        The store behind is left open.

        Args:
            patience_s: Longest wait without progress; the longest wait in all is ten times as long. 60 s if None.
        """
        if not self._sending.closed:
            self._sending.close(self.patience_s if patience_s is None else patience_s)
            if self._folder is not None:
                self._folder.close()


def _room(most_bytes: int, path: str) -> float:
    """The part of this number of bytes that an object may fill."""
    return most_bytes * (1 if layout.parse_segment(path) else RAW_SHARE)
