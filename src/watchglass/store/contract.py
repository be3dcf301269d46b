"""The contract of a store: named blobs below one location. All bytes of a run are written and read through it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from watchglass.errors import InvalidValueError, MissingFileError, StoreError
from watchglass.store.policy import FOLDER, OBJECTS, StorePolicy

#: Longest path, in characters, that a store accepts. Object stores stop at 1,024 bytes; ours are far below.
MAX_PATH = 512

#: Control characters, what separates in other systems, and lone surrogates, on which the file system would raise.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f\\\\:\ud800-\udfff]")


#: Content of a write: bytes, or parts that are written one after another without joining them in memory.
Content = bytes | Sequence[bytes | memoryview]


#: Memory of a whole object, see :meth:`Store.map`.
Buffer = bytearray | mmap


@dataclass(frozen=True)
class StoredObject:
    """One object of a store."""

    path: str  #: Its path, relative to the store, "/"-separated.
    size: int  #: Its length in bytes when it was listed; it may have grown since.


class Store(ABC):
    """Named blobs below one location. Safe to use from several threads and several processes at once.

    Paths are relative, "/"-separated and pass :func:`check_path`. Every failure of the medium is a
    :class:`~watchglass.errors.StoreError` whose one line names the path and the cure.

    A new kind of store must pass :mod:`watchglass.testing.store_suite`.
    """

    #: Whether :meth:`append` is supported: a local folder has it, object stores do not. All else that differs between
    #: the two kinds follows from it, see :attr:`policy`.
    appends: bool = False

    #: The location as a person would write it, for messages.
    location: str = ""

    #: The folder on this machine whose files are the objects; None where there is none. A worker keeps its flight
    #: recorder there, in files that are no objects.
    root: Path | None = None

    @property
    def policy(self) -> StorePolicy:
        """How writers, readers and followers use this kind of store."""
        return FOLDER if self.appends else OBJECTS

    @abstractmethod
    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes ``[start, end)`` of an object; fewer where it is shorter, all from ``start`` when end is None.

        Raises:
            MissingFileError: There is no such object.
        """

    @abstractmethod
    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """Write a whole object so that readers see all of it or nothing.

        Parts are memory of the caller: the store keeps none of them when it returns.

        Without ``replace`` this is the one primitive that decides races: of several writers of one path exactly one
        succeeds.

        Raises:
            RunExistsError: The object is there and ``replace`` is false.
        """

    @abstractmethod
    def append(self, path: str, data: bytes) -> None:
        """Append to an object, creating it where needed; only where :attr:`appends`.

        A failure may leave a part of ``data`` behind. One writer per path.
        """

    @abstractmethod
    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        """All objects below the folder ``prefix`` whose path sorts after ``after``, sorted by path.

        Recursive; empty where there is no such folder. The order is that of the path's characters, not of folders.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete an object; one that is not there is no error."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Length of an object in bytes, None where there is none. Called often, so it must be cheap."""

    @abstractmethod
    def folders(self, prefix: str = "") -> Sequence[str]:
        """Names of the folders right below the folder ``prefix``, sorted; their content is not listed."""

    def below(self, path: str) -> Store:
        """The store of a folder of this one; where stores have connections, both share them.

        Raises:
            StoreError: This kind of store has no such parts.
        """
        raise StoreError(f"{self.location} has no stores below it ({path}); open the location itself")

    def map(self, path: str) -> Buffer:
        """A whole object as memory that may be changed without changing the object.

        Where the store lies in a file system it is mapped, and only what is touched is read.

        Raises:
            MissingFileError: There is no such object.
        """
        return bytearray(self.read(path))

    def read_many(self, ranges: Sequence[tuple[str, int, int | None]]) -> Sequence[bytes | None]:
        """The result of :meth:`read` for each ``(path, start, end)``, None for objects that are not there.

        Slow stores send several requests at once.
        """
        found: list[bytes | None] = []
        for path, start, end in ranges:
            try:
                found.append(self.read(path, start, end))
            except MissingFileError:
                found.append(None)
        return found

    def stay_with(self, path: str) -> None:  # noqa: B027  an object store has no folders to make again
        """Create no folder once the object ``path`` is gone: the run was removed."""

    def prune(self, prefix: str = "") -> None:  # noqa: B027  most stores have no folders
        """Remove the folder ``prefix`` and those below it as far as nothing is in them; where there are folders."""

    def close(self) -> None:  # noqa: B027  most stores hold nothing
        """Close connections and files; the store is not used afterwards."""

    def is_empty(self) -> bool:
        """Whether the location holds nothing at all, foreign files included."""
        return not self.list()


class WrapperStore(Store):
    """Forwards every operation to another store; a subclass defines those that differ."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.appends, self.location = inner.appends, inner.location

    def behind(self) -> Store:
        """The other store, called before each operation; a subclass may raise StoreError instead."""
        return self._inner

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See :meth:`Store.read`."""
        return self.behind().read(path, start, end)

    def read_many(self, ranges: Sequence[tuple[str, int, int | None]]) -> Sequence[bytes | None]:
        """See :meth:`Store.read_many`."""
        return self.behind().read_many(ranges)

    def map(self, path: str) -> Buffer:
        """See :meth:`Store.map`."""
        return self.behind().map(path)

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """See :meth:`Store.write`."""
        self.behind().write(path, data, replace=replace)

    def append(self, path: str, data: bytes) -> None:
        """See :meth:`Store.append`."""
        self.behind().append(path, data)

    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        """See :meth:`Store.list`."""
        return self.behind().list(prefix, after)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See :meth:`Store.folders`."""
        return self.behind().folders(prefix)

    def size(self, path: str) -> int | None:
        """See :meth:`Store.size`."""
        return self.behind().size(path)

    def delete(self, path: str) -> None:
        """See :meth:`Store.delete`."""
        self.behind().delete(path)

    def prune(self, prefix: str = "") -> None:
        """See :meth:`Store.prune`."""
        self.behind().prune(prefix)

    def is_empty(self) -> bool:
        """See :meth:`Store.is_empty`."""
        return self.behind().is_empty()

    def stay_with(self, path: str) -> None:
        """See :meth:`Store.stay_with`."""
        self._inner.stay_with(path)


def check_path(path: str, *, folder: bool = False) -> str:
    """``path`` itself, once it is sure that it stays inside a store.

    A path has one or more parts separated by single slashes. No part is empty or starts with a dot, so neither
    ``..`` nor a store's temporary files can be named. No character is a control character, a backslash or a colon
    (drive letters).

    Args:
        path: A path, often from a file that is not trusted.
        folder: Also allow "", the whole store.

    Raises:
        InvalidValueError: It would leave the store or cannot be a name everywhere.
    """
    if folder and path == "":
        return path
    shown = ascii(path[:80])
    if not path or len(path) > MAX_PATH:
        raise InvalidValueError(f"a store path must have 1 to {MAX_PATH} characters but got {len(path)}: {shown}")
    if _FORBIDDEN.search(path):
        raise InvalidValueError(
            f"a store path must be plain text without control characters, ':' or '\\' but got {shown}"
        )
    if any(not part or part.startswith(".") for part in path.split("/")):
        raise InvalidValueError(
            f"a store path must be relative, with no empty part and none that starts with '.': {shown}"
        )
    return path


def is_path(path: str) -> bool:
    """Whether :func:`check_path` takes it."""
    try:
        check_path(path)
    except InvalidValueError:
        return False
    return True


def check_range(start: int, end: int | None) -> None:
    """Check a range of bytes.

    Raises:
        InvalidValueError: It is not a range.
    """
    if start < 0 or (end is not None and end < start):
        raise InvalidValueError(f"a byte range must satisfy 0 <= start <= end but got [{start}, {end})")
