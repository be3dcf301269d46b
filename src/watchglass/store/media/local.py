"""A store in a local folder."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from watchglass.config import NotRegularError, open_regular
from watchglass.errors import DamagedDataError, MissingFileError, RunExistsError, StoreError
from watchglass.store.contract import MAX_PATH, Buffer, Content, Store, StoredObject, check_path, check_range, is_path
from watchglass.store.new_files import NO_LINKS, write_all, write_new

_CURES = {
    errno.ENOSPC: "the disk is full; free space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free space or choose another folder",
    errno.EROFS: "the file system is read-only; choose a folder that can be written",
    errno.EACCES: "permission denied; choose a folder that you may use or change its permissions",
    errno.EPERM: "not permitted; choose a folder that you may use",
    errno.ENOTDIR: "a file is in the way of a folder; choose another folder",
    errno.EISDIR: "a folder is in the way of a file; choose another folder",
    errno.ELOOP: "it is a symbolic link, which a run never holds; remove the link",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter folder",
    errno.EMFILE: "too many files are open in this process; raise the limit (ulimit -n)",
    errno.EFBIG: "the file exceeds the size limit of this process or file system; raise the limit (ulimit -f)",
}

_TEMPORARY = ".wg-"
#: How file systems without hard links refuse one; the two names for "not supported" differ on macOS.
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_numbers = count()


class LocalStore(Store):
    """A folder. The folder is created by the first write; reading never creates anything.

    Whole objects appear by rename or hard link, so a reader or a crash never sees a part of one. Nothing is synced to
    the medium: data survives the death of the process at once, the loss of power only after the system wrote it.

    Args:
        root: The folder.
        link: Makes a hard link; raises OSError as the file system does.
    """

    appends = True

    def __init__(self, root: str | os.PathLike[str], link: Callable[[Path, Path], None] = os.link) -> None:
        self.root: Path = Path(root)
        self.location = str(root)
        self._link = link
        self._keeper = ""

    def __repr__(self) -> str:
        return f"LocalStore({self.location!r})"

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See :meth:`Store.read`."""
        target = self._target(path, "read")
        check_range(start, end)
        with _translated("read", target):
            descriptor = open_regular(target, os.O_RDONLY | NO_LINKS)
            try:
                if start:
                    os.lseek(descriptor, start, os.SEEK_SET)
                return _read_all(descriptor, None if end is None else end - start)
            finally:
                os.close(descriptor)

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """See :meth:`Store.write`."""
        target = self._target(path, "write")
        if not replace and os.path.lexists(target):
            raise _exists(target)
        temporary = target.with_name(f"{_TEMPORARY}{os.getpid()}-{threading.get_ident()}-{next(_numbers)}")
        with _translated("write", target):
            self._make_folder(target.parent, path)
            try:
                write_new(temporary, data)
                if replace:
                    os.replace(temporary, target)
                else:
                    self._link_new(temporary, target, data)
            finally:
                with suppress(OSError):
                    temporary.unlink()

    def append(self, path: str, data: bytes) -> None:
        """See :meth:`Store.append`. A failed append is cut off again where the file system lets it."""
        target = self._target(path, "write")
        with _translated("write", target):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINKS
            try:
                descriptor = open_regular(target, flags)
            except FileNotFoundError:
                self._make_folder(target.parent, path)
                descriptor = open_regular(target, flags)
            try:
                before = os.fstat(descriptor).st_size
                try:
                    write_all(descriptor, data)
                except OSError:
                    # Half a flush would be read as a torn tail for ever; the writer retries in a new segment.
                    with suppress(OSError):
                        os.ftruncate(descriptor, before)
                    raise
            finally:
                os.close(descriptor)

    def stay_with(self, path: str) -> None:
        """See :meth:`Store.stay_with`."""
        self._keeper = path

    def delete(self, path: str) -> None:
        """See :meth:`Store.delete`. Folders stay."""
        target = self._target(path, "delete")
        with _translated("delete", target), suppress(FileNotFoundError):
            os.unlink(target)

    def size(self, path: str) -> int | None:
        """See :meth:`Store.size`."""
        target = self._target(path, "look at")
        with _translated("look at", target):
            try:
                found = os.stat(target, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def folders(self, prefix: str = "") -> list[str]:
        """See :meth:`Store.folders`. Links, and names that :func:`check_path` refuses, are omitted."""
        folder = self.root / self._unlinked(check_path(prefix, folder=True), prefix, "list")
        with _translated("list", folder):
            try:
                with os.scandir(folder) as found:
                    names = [item.name for item in found if item.is_dir(follow_symlinks=False)]
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(name for name in names if is_path(name))

    def below(self, path: str) -> Store:
        """See :meth:`Store.below`."""
        return LocalStore(os.path.join(self.location, check_path(path)))

    def map(self, path: str) -> Buffer:
        """See :meth:`Store.map`."""
        target = self._target(path, "read")
        with _translated("read", target):
            descriptor = open_regular(target, os.O_RDONLY | NO_LINKS)
            try:
                if not os.fstat(descriptor).st_size:
                    return bytearray()
                return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            finally:
                os.close(descriptor)

    def prune(self, prefix: str = "") -> None:
        """See :meth:`Store.prune`. Foreign and hidden files stay, and with them their folders."""
        folder = self.root / self._unlinked(check_path(prefix, folder=True), prefix, "delete")
        if os.path.islink(folder):
            return
        for at, _ in reversed(list(folders_below(folder))):
            with suppress(OSError):  # something is in it
                os.rmdir(at)

    def is_empty(self) -> bool:
        """Whether the folder is missing or holds nothing but hidden files; looks at the top level only.

        Where there is a file instead of a folder, that is something.
        """
        with _translated("list", self.root):
            try:
                with os.scandir(self.root) as found:
                    return all(item.name.startswith(".") for item in found)
            except FileNotFoundError:
                return True
            except NotADirectoryError:
                return not os.path.lexists(self.root)  # a file further up leaves nothing here

    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        """See :meth:`Store.list`. Links, temporary files and names that :func:`check_path` refuses are omitted.

        Raises:
            DamagedDataError: ``prefix`` is a link or leads through one.
        """
        self._unlinked(check_path(prefix, folder=True), prefix, "list")
        entries: list[StoredObject] = []
        with _translated("list", self.root / prefix):
            self._collect(prefix, after, entries)
        entries.sort(key=lambda entry: entry.path)
        return entries

    def _target(self, path: str, verb: str) -> Path:
        return self.root / self._unlinked(check_path(path).rpartition("/")[0], path, verb)

    def _unlinked(self, folder: str, path: str, verb: str) -> str:
        """``path``, once no part of ``folder`` is a link: the system's own check is of the last part only."""
        at = str(self.root)
        for part in folder.split("/") if folder else ():
            at = f"{at}/{part}"
            if os.path.islink(at):
                raise _foreign(verb)(f"{at} is a symbolic link, which a run never holds; remove the link")
        return path

    def _make_folder(self, folder: Path, path: str) -> None:
        if self._keeper not in ("", path) and not folder.is_dir() and self.size(self._keeper) is None:
            raise MissingFileError(f"{self.location} was removed while it was in use; nothing more is written there")
        _make_folder(folder)

    def _link_new(self, temporary: Path, target: Path, data: Content) -> None:
        """Give the complete ``temporary`` the name ``target`` unless that exists."""
        try:
            self._link(temporary, target)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            # exFAT and some network mounts have no hard links: still exclusive, but a crash may leave a part.
            write_new(target, data)

    def _collect(self, folder: str, after: str, entries: MutableSequence[StoredObject]) -> None:
        """Append the entries below ``folder``; folders that lie wholly before ``after`` are not opened."""
        try:
            with os.scandir(self.root / folder) as found:
                items = list(found)
        except (FileNotFoundError, NotADirectoryError):
            return
        for item in items:
            path = f"{folder}/{item.name}" if folder else item.name
            if not is_path(path):
                continue
            if item.is_dir(follow_symlinks=False):
                # Every path below starts with path + "/": all sort before `after` unless `after` starts so as well.
                if path + "/" > after or after.startswith(path + "/"):
                    self._collect(path, after, entries)
            elif path > after and item.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # deleted since the folder was read
                    entries.append(StoredObject(path, item.stat(follow_symlinks=False).st_size))


def folders_below(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below it, each before what lies in it, with the names of what is no folder in it.

    Links are not followed, and what is deeper than a path of a run can be is left out: no folder is too deep for that.
    """
    waiting = [root]
    while waiting:
        at = waiting.pop()
        names, deeper = [], []
        try:
            with os.scandir(at) as found:
                for item in found:
                    if item.is_dir(follow_symlinks=False):
                        deeper.append(at / item.name)
                    else:
                        names.append(item.name)
        except OSError:
            continue
        yield at, names
        waiting += [path for path in deeper if len(str(path)) - len(str(root)) <= MAX_PATH]


def _exists(target: Path) -> RunExistsError:
    return RunExistsError(f"{target} exists and is never overwritten; choose another run or remove it first")


@contextmanager
def _translated(verb: str, target: Path) -> Iterator[None]:
    """Turn every OSError into a StoreError, in one line with path and cure."""
    try:
        yield
    except (MissingFileError, RunExistsError, StoreError):
        raise
    except FileExistsError as error:
        raise _exists(target) from error
    except OSError as error:
        # Where a file is in place of a folder there is nothing to read below it, and no way to write.
        if error.errno == errno.ENOENT or (error.errno == errno.ENOTDIR and verb != "write"):
            raise MissingFileError(f"{target} does not exist; check the path of the run") from error
        if isinstance(error, NotRegularError):
            raise _foreign(verb)(f"cannot {verb} {target}: {error.strerror}; remove it") from error
        cure = _CURES.get(error.errno or 0) or f"{error.strerror or error}; check the disk and its mount"
        failure = _foreign(verb) if error.errno in (errno.ELOOP, errno.EISDIR) else StoreError
        raise failure(f"cannot {verb} {target}: {cure}") from error


def _foreign(verb: str) -> type[DamagedDataError | StoreError]:
    """The error where something that no run holds is in the way: to a reader it is no outage, which would pass."""
    return StoreError if verb in ("write", "delete") else DamagedDataError


def _make_folder(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:  # a file has that name; the object itself does not exist
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error


def _read_all(descriptor: int, limit: int | None) -> bytes:
    """Bytes from the current position up to ``limit``. Memory grows with the bytes that exist, not with ``limit``."""
    parts: list[bytes] = []
    while limit is None or limit > 0:
        part = os.read(descriptor, 1 << 20 if limit is None else min(limit, 1 << 20))
        if not part:
            break
        parts.append(part)
        if limit is not None:
            limit -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
