"""A folder on the local disk with objects that the store has not taken yet. It outlives its process.

An object is a file named by its number and its path in the store, ``000000000007~attempts%2F0000%2F...``, whole as soon
as it has that name. The file ``label`` names run, attempt and worker, and is locked while the writer lives.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from watchglass.config import read_regular
from watchglass.store import layout, locked_files
from watchglass.store.contract import Content, is_path
from watchglass.store.new_files import write_new

_LABEL = "label"
_OBJECT = re.compile(r"(\d{12})~([^/]+)\Z", re.ASCII)


@dataclass(frozen=True)
class SpooledObject:
    """An object in a spool."""

    number: int  #: Its place in the order of sending.
    path: str  #: Where it belongs in the store.
    size: int  #: Its length in bytes.
    file: Path | None = None  #: Its file; None where it is in memory.
    content: bytes = b""  #: Its bytes in memory.

    def forget(self) -> None:
        """Remove its file, if it has one."""
        with suppress(OSError):
            if self.file is not None:
                self.file.unlink()


class SpoolFolder:
    """A new folder, which this process writes. For the threads of this process; numbers must differ."""

    def __init__(self, worker: str, label: Mapping[str, Any], reserve_bytes: int) -> None:
        """Create it where this machine keeps what should last.

        Args:
            worker: Whose objects these are.
            label: Of the folder: at least ``run``, ``attempt`` and ``worker``.
            reserve_bytes: Bytes that stay free on the disk.

        Raises:
            OSError: There is no space, or no folder can be created.
        """
        name = f"{worker}-{os.getpid()}-{os.urandom(4).hex()}.spool"
        self.path = locked_files.private_folder(locked_files.lasting_folder()) / name
        self._reserve_bytes = reserve_bytes
        _check_room(self.path.parent, reserve_bytes)
        self.path.mkdir(mode=0o700)
        try:
            size = locked_files.HEADER_BYTES
            self._lock = locked_files.create(self.path / _LABEL, "spool", label, size, reserve=False)
        except BaseException:
            with suppress(OSError):
                self.path.rmdir()
            raise

    def add(self, number: int, path: str, content: Content, size: int) -> SpooledObject:
        """Keep an object; it is there whole, or not at all.

        Raises:
            OSError: The disk is full or refuses.
        """
        _check_room(self.path, size + self._reserve_bytes)
        file = self.path / f"{number:012}~{quote(path, safe='')}"
        temporary = self.path / f"{number:012}.part"
        try:
            write_new(temporary, content)
            temporary.rename(file)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        return SpooledObject(number, path, size, file)

    def close(self) -> None:
        """Release the folder: it is removed if empty, else other processes may send it, see :func:`is_given_up`."""
        with suppress(OSError):
            if any(_objects(self.path)):
                (self.path / locked_files.GIVEN_UP).touch()
            else:
                _remove(self.path)
        os.close(self._lock)


class AbandonedSpool:
    """A folder whose writer is gone; locked for this process until it is closed."""

    def __init__(self, path: Path, label: Mapping[str, Any], lock: int) -> None:
        self.path = path
        self.label = label
        self._lock = lock

    def objects(self) -> list[SpooledObject]:
        """Whole objects of the worker that the folder is of, in their order.

        Raises:
            OSError: The folder cannot be read or was removed.
        """
        attempt, worker = self.label["attempt"], self.label["worker"]
        return sorted(
            (found for found in _objects(self.path) if _belongs(found.path, attempt, worker)),
            key=lambda found: found.number,
        )

    def close(self, *, discard: bool) -> None:
        """Release it; ``discard`` removes it with its content."""
        if discard:
            _remove(self.path)
        os.close(self._lock)


def spool_exists(name: str) -> bool:
    """Whether the folder that a claim names is on this machine."""
    path = _path(name)
    return path is not None and (path / _LABEL).is_file()


def is_given_up(name: str) -> bool:
    """Whether the folder that a claim names is on this machine, and its writer has released it."""
    path = _path(name)
    return path is not None and (path / locked_files.GIVEN_UP).is_file()


def open_abandoned(name: str, label: Mapping[str, Any]) -> AbandonedSpool | None:
    """The folder that a claim names; None where there is none, or one of another worker.

    Raises:
        RunExistsError: Its writer lives.
    """
    path = _path(name)
    if path is None:
        return None
    lock = locked_files.lock_abandoned(path / _LABEL, "spool", label)
    return None if lock is None else AbandonedSpool(path, label, lock)


def read_object(found: SpooledObject) -> bytes:
    """The content of an object, read and not mapped: a mapping of a file that the disk cut short would end the process.

    Raises:
        OSError: The disk does not give it back.
    """
    if found.file is None:
        return found.content
    data = read_regular(found.file, found.size)
    if len(data) != found.size:
        raise OSError(errno.EIO, f"{len(data)} of {found.size} bytes are left", str(found.file))
    return data


def _path(name: str) -> Path | None:
    """The folder of a claim. A claim is not trusted: only private folders of this user count."""
    folder, _, last = name.rpartition("/")
    if not locked_files.SPOOL_NAME.match(last) or not locked_files.is_private(folder):
        return None
    path = Path(name)
    return path if path.is_dir() and not path.is_symlink() else None


def _objects(folder: Path) -> Iterator[SpooledObject]:
    with os.scandir(folder) as found:
        for item in found:
            match = _OBJECT.match(item.name)
            if match and item.is_file(follow_symlinks=False):
                size = item.stat(follow_symlinks=False).st_size
                yield SpooledObject(int(match[1]), unquote(match[2]), size, Path(item.path))


def _belongs(path: str, attempt: int, worker: str) -> bool:
    """Whether an object may be written for a worker: its own segments and tensors, nothing else of the run."""
    if not is_path(path):
        return False
    name = layout.parse_segment(path)
    if name is not None:
        return (name.attempt, name.worker) == (attempt, worker)
    number = path.rpartition("-")[2].partition(".")[0]
    return number.isascii() and number.isdigit() and path == layout.tensors(attempt, worker, int(number))


def _check_room(folder: Path, size: int) -> None:
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _remove(folder: Path) -> None:
    """Remove a folder of objects as far as possible: another process may remove it at the same time."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                path.unlink()
        folder.rmdir()
