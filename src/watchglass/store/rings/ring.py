"""Rings: the last records of a worker, in files of fixed size that outlive its process.

Bytes in a shared mapping, and bytes that ``write`` accepted, belong to the system: ``kill -9`` loses none of them.
There are two, each where its writer can afford to write:

* *Rows*, a mapping of a file in memory. The training thread copies some seventy bytes per step into it. Were it a
  file on a disk, that copy would sometimes wait for the disk (the system protects a page while it saves it), and on a
  full disk it would raise SIGBUS. So the space is reserved beforehand, and without a file system in memory there is no
  such ring.
* *Entries* of any length, a file in the run's folder. The recorder's thread writes them with ``pwrite``, which may wait
  and which reports a full disk as an error.

Neither has a head or an end that could be torn: a reader looks at every slot, and for every beginning of an entry, and
takes what is whole. A living writer holds a record lock on its files, which no child inherits and which ends with it.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.store import layout, locked_files
from watchglass.store.contract import Store
from watchglass.store.locked_files import HEADER_BYTES
from watchglass.store.rings.ring_paths import paths_of_rings

#: Rows kept: those of the time that the recorder's thread may be busy elsewhere. A power of two.
ROWS = 2048
#: Bytes of entries kept: those of the time between two flushes.
ENTRY_BYTES = 8 << 20
#: Represents an unknown number, in bits that no computation yields: a NaN would be a finding.
ABSENT_BITS = 0x7FF8_5747_4142_5345
ABSENT: float = struct.unpack("=d", struct.pack("=Q", ABSENT_BITS))[0]


def is_absent(value: float) -> bool:
    """Whether this is :data:`ABSENT`, which equals nothing, and no other NaN."""
    return struct.pack("=d", value) == struct.pack("=Q", ABSENT_BITS)


#: A row as it is read. The same number is at both ends, except in a row that its writer could not finish.
ROW_DTYPE = np.dtype(
    [("begin", "u8"), ("global_step", "u8"), ("mode_step", "u8"), ("start_ns", "u8"), ("end_ns", "u8"),
     ("loss", "f8"), ("learning_rate", "f8"), ("weight", "f8"), ("end", "u8")]
)  # fmt: skip

_ROW = struct.Struct("=QQQQQdddQ")
#: At the end of the header of rows: the tensor ids of their numbers.
_IDS = struct.Struct("=II")
_IDS_AT = HEADER_BYTES - _IDS.size
#: Before each entry: magic, its number, length and CRC-32 of number, length and content.
_ENTRY = struct.Struct("<8sQII")
_ENTRY_MAGIC = b"\x93WGentry"
_NUMBERS = struct.Struct("<QI")


class RowRing:
    """The rows of one worker, as memory that is a file."""

    def __init__(self, path: Path, label: Mapping[str, Any]) -> None:
        size = HEADER_BYTES + ROWS * _ROW.size
        self.path = path
        self._descriptor = locked_files.create(path, "rows", label, size, reserve=True)
        try:
            self.buffer = mmap.mmap(self._descriptor, size)
        except BaseException:
            locked_files.close(self._descriptor, path, discard=True)
            raise
        # The first access to a page costs a fault, which the training thread must not pay.
        self.buffer[HEADER_BYTES:] = bytes(size - HEADER_BYTES)

    def close(self, *, discard: bool) -> None:
        """Unmap it; ``discard`` removes the file."""
        self.buffer.close()
        locked_files.close(self._descriptor, self.path, discard=discard)


class RowWriter:
    """Writes rows for the training thread: into a ring, or nowhere while there is none."""

    def __init__(self) -> None:
        self.last_step = -1  #: Global step of the last row, -1 for none.
        self._number = 0
        self._ids = (0, 0)
        self._buffer: Any = bytearray(HEADER_BYTES + _ROW.size)
        self._mask = 0

    def open(self, ring: RowRing) -> None:
        """Write into this ring from now on, the row before included; on any thread."""
        short = self._buffer
        # In this order: the training thread reads the mask first, and so never reads beyond the short buffer.
        self._buffer = ring.buffer
        self._mask = ROWS - 1
        self.name_ids(*self._ids)
        # Should that row be half written right now, the copy of it is as torn as any other.
        row = bytes(short[HEADER_BYTES : HEADER_BYTES + _ROW.size])
        offset = HEADER_BYTES + (_ROW.unpack(row)[0] & self._mask) * _ROW.size
        ring.buffer[offset : offset + _ROW.size] = row

    def close(self) -> None:
        """Write nowhere from now on; on any thread."""
        self._buffer = bytearray(HEADER_BYTES + ROWS * _ROW.size)

    def name_ids(self, loss: int, learning_rate: int) -> None:
        """Tensor ids that the rows' numbers have; 0 for none yet."""
        self._ids = (loss, learning_rate)
        _IDS.pack_into(self._buffer, _IDS_AT, loss, learning_rate)

    def write(
        self,
        global_step: int,
        mode_step: int,
        start_ns: int,
        end_ns: int,
        loss: float,
        learning_rate: float,
        weight: float = 0.0,
    ) -> None:
        """A TRAIN step has updated: what is known of it survives this process from here on.

        A later row of the same step replaces it. ``loss`` and ``learning_rate`` are :data:`ABSENT` where they are not
        known (yet); ``weight`` is that of the loss.
        """
        self.last_step = global_step
        self._number = number = self._number + 1
        offset = HEADER_BYTES + (number & self._mask) * _ROW.size
        _ROW.pack_into(
            self._buffer, offset, number, global_step, mode_step, start_ns, end_ns, loss, learning_rate, weight, number
        )


class EntryRing:
    """Entries of one worker, the oldest overwritten first. For one thread."""

    def __init__(self, path: Path, label: Mapping[str, Any], capacity: int = ENTRY_BYTES) -> None:
        self.path = path
        self.capacity = capacity
        self._descriptor = locked_files.create(path, "entries", label, HEADER_BYTES + capacity, reserve=False)
        self._position = 0
        self._number = 0

    def append(self, content: bytes) -> bool:
        """Write one entry; returns whether it fits at all.

        Raises:
            OSError: The system refused. What was begun is not whole and will not be read.
        """
        size = _ENTRY.size + len(content)
        if size > self.capacity:
            return False
        if self._position + size > self.capacity:
            self._position = 0
        self._number += 1
        crc = zlib.crc32(content, zlib.crc32(_NUMBERS.pack(self._number, len(content))))
        data = memoryview(_ENTRY.pack(_ENTRY_MAGIC, self._number, len(content), crc) + content)
        at = HEADER_BYTES + self._position
        self._position += size
        while data:
            written = os.pwrite(self._descriptor, data, at)
            data, at = data[written:], at + written
        return True

    def close(self, *, discard: bool) -> None:
        """Close it; ``discard`` removes the file."""
        locked_files.close(self._descriptor, self.path, discard=discard)


class Rings:
    """Both rings of one worker, as far as this machine has space for them."""

    def __init__(self, store: Store, label: Mapping[str, Any], memory: Path = locked_files.MEMORY) -> None:
        """Create the rings of a worker that this process is about to claim.

        Args:
            store: The run's store.
            label: Of the rings: at least ``run``, ``attempt`` and ``worker``.
            memory: A file system in memory, for the rows.
        """
        name = f"{label['worker']}-{os.getpid()}-{os.urandom(4).hex()}"
        self.rows: RowRing | None = None  #: The rows, or None.
        self.entries: EntryRing | None = None  #: The entries, or None.
        self.names: tuple[str, ...] = ()  #: Paths for the worker's claim; those in a run's folder are relative to it.
        self.refused: tuple[str, ...] = ()  #: Why a ring is missing, one line each.
        try:
            self.rows = RowRing(locked_files.private_folder(memory) / f"{name}.rows", label)
            self.names += (str(self.rows.path),)
        except (OSError, ValueError) as error:
            self.refused += (f"rows: {error}",)
        try:
            self.entries, shown = _entry_ring(store, label, f"{name}.entries")
            self.names += (shown,)
        except OSError as error:
            self.refused += (f"entries: {error}",)

    def close(self, *, discard: bool) -> None:
        """Close both; ``discard`` removes the files, since all records are in the store."""
        if self.rows is not None:
            self.rows.close(discard=discard)
        if self.entries is not None:
            self.entries.close(discard=discard)
        self.rows = self.entries = None


@dataclass(frozen=True)
class LeftBehind:
    """The content of the rings of a dead worker."""

    rows: NDArray[Any]  #: Whole rows, oldest first, with the fields of :data:`ROW_DTYPE`.
    ids: tuple[int, int]  #: Tensor ids of the rows' loss and learning rate; 0 for none.
    entries: tuple[bytes, ...]  #: Whole entries, oldest first.
    paths: tuple[Path, ...]  #: The files.

    def discard(self) -> None:
        """Remove the files: all records are in the store."""
        for path in self.paths:
            with suppress(OSError):
                path.unlink()


def read_rings(store: Store, names: Sequence[str], label: Mapping[str, Any]) -> LeftBehind:
    """Every whole row and entry in the rings that a claim names. Other files are ignored.

    Raises:
        RunExistsError: Their writer lives, even if its claim states otherwise.
    """
    rows, ids, entries, paths = np.empty(0, ROW_DTYPE), (0, 0), [], []
    for path in paths_of_rings(store, names):
        kind = path.suffix[1:]
        data = locked_files.read(path, kind, label)
        if data is None:
            continue
        paths.append(path)
        if kind == "rows":
            rows, ids = _whole_rows(data), _IDS.unpack_from(data, _IDS_AT)
        else:
            entries += _whole_entries(data)
    return LeftBehind(rows, (int(ids[0]), int(ids[1])), tuple(entries), tuple(paths))


def _whole_rows(data: bytes) -> NDArray[Any]:
    count = (len(data) - HEADER_BYTES) // _ROW.size
    rows = np.frombuffer(data, ROW_DTYPE, count, HEADER_BYTES)
    whole = (rows["begin"] > 0) & (rows["begin"] == rows["end"]) & (rows["begin"] % ROWS == np.arange(count))
    return np.sort(rows[whole], order="begin")


def _whole_entries(data: bytes) -> list[bytes]:
    found: list[tuple[int, bytes]] = []
    at = data.find(_ENTRY_MAGIC, HEADER_BYTES)
    while 0 <= at <= len(data) - _ENTRY.size:
        _, number, length, crc = _ENTRY.unpack_from(data, at)
        begin = at + _ENTRY.size
        content = data[begin : begin + length] if length <= len(data) - begin else b""
        whole = len(content) == length and zlib.crc32(content, zlib.crc32(_NUMBERS.pack(number, length))) == crc
        if whole:
            found.append((number, content))
        at = data.find(_ENTRY_MAGIC, begin + length if whole else at + 1)
    return [content for _, content in sorted(found)]


def _entry_ring(store: Store, label: Mapping[str, Any], name: str) -> tuple[EntryRing, str]:
    """A new ring, in the run's folder where it has one with room, and its name in the claim."""
    if store.root is not None:
        # Next to the segments; a name that begins with a dot is not part of the run.
        shown = f"{layout.attempt_path(label['attempt'])}/.{name}"
        with suppress(OSError):
            return EntryRing(store.root / shown, label), shown
    path = locked_files.private_folder(Path(tempfile.gettempdir())) / name
    return EntryRing(path, label), str(path)
