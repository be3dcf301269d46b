"""Files of rings and spools: created whole, locked while their writer lives, read by a later process."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchglass.config import TIMING, Timing, open_regular
from watchglass.errors import RunExistsError

#: Bytes at the beginning that identify the owner of the ring; the last of them belong to the ring.
HEADER_BYTES = 4096
NAME = re.compile(r"\.?[\w-]+\.(rows|entries)\Z", re.ASCII)
#: Name of a file in a spool that its writer has released, although its process may live.
GIVEN_UP = "given-up"
SPOOL_NAME = re.compile(r"[\w-]+\.spool\Z", re.ASCII)

#: A file system in memory: a copy into a mapped file never waits for a disk. Absent on some systems.
MEMORY = Path("/dev/shm")

_LABEL_BYTES = HEADER_BYTES - 64
_KINDS = {"rows": b"WGROWS1\n", "entries": b"WGENTR1\n", "spool": b"WGSPOOL\n"}
_MOST_BYTES = 1 << 30

_log = logging.getLogger("watchglass")


def private_folder(parent: Path, timing: Timing = TIMING) -> Path:
    """A private folder of this user below one that every user may write; removes abandoned files in it."""
    folder = parent / f"watchglass-{os.getuid()}"
    if not parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(parent))
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(str(folder)):
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    for path in _of_others(folder):
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - timing.abandoned_file_s:
                _forget(path)
    return folder


def is_private(folder: str) -> bool:
    """Whether this is a private folder of this user, as :func:`private_folder` makes them, and no link."""
    if not folder.startswith("/") or not folder.endswith(f"/watchglass-{os.getuid()}"):
        return False
    try:
        found = os.lstat(folder)
    except (OSError, ValueError):  # a claim may hold any name
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def lasting_folder() -> Path:
    """The parent of spools: on a disk that outlives a restart, if the system has one."""
    temporary = Path(tempfile.gettempdir())
    lasting = Path("/var/tmp")
    return lasting if temporary == Path("/tmp") and os.access(lasting, os.W_OK | os.X_OK) else temporary


def abandoned_labels() -> list[Any]:
    """Labels of all rings and spools outside of runs, on this machine, whose writers are dead."""
    parents = {MEMORY, Path(tempfile.gettempdir()), lasting_folder()}
    folders = [parent / f"watchglass-{os.getuid()}" for parent in sorted(parents)]
    found = []
    for path in [path for folder in folders if is_private(str(folder)) for path in _of_others(folder)]:
        kind = path.suffix[1:]
        file = path / "label" if kind == "spool" else path
        try:
            descriptor = _locked(file)
        except (OSError, RunExistsError):
            continue
        try:
            found.append(_label(os.pread(descriptor, HEADER_BYTES, 0), kind))
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return found


def _of_others(folder: Path) -> list[Path]:
    """Rings and spools of other processes there, and released ones of this process: opening a held one unlocks it."""
    return [
        path
        for path in folder.iterdir()
        if (NAME.match(path.name) or SPOOL_NAME.match(path.name))
        and (f"-{os.getpid()}-" not in path.name or (path / GIVEN_UP).is_file())
    ]


def _forget(path: Path) -> None:
    if not SPOOL_NAME.match(path.name):
        os.close(_locked(path))
        path.unlink()
        return
    label = path / "label"
    if label.exists():
        os.close(_locked(label))
    _log.warning("watchglass: removed %s: no process sent its records to their store within a week", path)
    shutil.rmtree(path)


def create(path: Path, kind: str, label: Mapping[str, Any], size: int, *, reserve: bool) -> int:
    """A descriptor of a new ring of ``size`` bytes, locked.

    Args:
        path: Where; nothing may be there.
        kind: ``rows`` or ``entries``.
        label: The run, attempt and worker that it belongs to.
        size: Bytes, with the header.
        reserve: Fail where the space cannot be reserved.

    Raises:
        OSError: There is no space, or the file cannot be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _allocate(descriptor, size, must=reserve)
        text = json.dumps(dict(label)).encode()
        os.pwrite(descriptor, _KINDS[kind] + len(text).to_bytes(4, "little") + text, 0)
    except BaseException:
        close(descriptor, path, discard=True)
        raise
    return descriptor


def _allocate(descriptor: int, size: int, *, must: bool) -> None:
    """Reserve the space of the file, so that it never runs out; without ``must`` as far as the system can."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (OSError, AttributeError) as error:
        if must or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(getattr(error, "errno", 0) or errno.ENOSYS, f"space cannot be reserved: {error}") from error
        os.ftruncate(descriptor, size)


def close(descriptor: int, path: Path, *, discard: bool) -> None:
    """Close a ring; ``discard`` removes the file."""
    if discard:
        with suppress(OSError):
            path.unlink()
    os.close(descriptor)


def _locked(path: Path) -> int:
    """A descriptor of a ring whose writer is dead; reading and closing it is harmless."""
    descriptor = open_regular(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise RunExistsError(f"{path} is being written; wait for its process to end") from error
    return descriptor


def read(path: Path, kind: str, label: Mapping[str, Any]) -> bytes | None:
    """Content of a ring with this label, None where there is no such one.

    Raises:
        RunExistsError: Its writer lives.
    """
    descriptor = lock_abandoned(path, kind, label)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file, suppress(OSError):
        file.seek(0)
        return file.read()
    return None


def lock_abandoned(path: Path, kind: str, label: Mapping[str, Any]) -> int | None:
    """A descriptor of a file with this label whose writer is dead, locked; None where there is no such one.

    Raises:
        RunExistsError: Its writer lives.
    """
    try:
        descriptor = _locked(path)
    except RunExistsError:
        raise
    except OSError:
        return None
    if is_ring(descriptor, kind, label):
        return descriptor
    os.close(descriptor)
    return None


def is_ring(descriptor: int, kind: str, label: Mapping[str, Any]) -> bool:
    """Whether this is a file of this user, of a plausible size, with this label."""
    try:
        found = os.fstat(descriptor)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
        ours = ours and HEADER_BYTES <= found.st_size <= _MOST_BYTES
        return ours and _label(os.pread(descriptor, HEADER_BYTES, 0), kind) == dict(label)
    except OSError:
        return False


def _label(data: bytes, kind: str) -> Any:
    magic = _KINDS[kind]
    if not data.startswith(magic):
        return None
    end = len(magic) + 4 + int.from_bytes(data[len(magic) : len(magic) + 4], "little")
    try:
        return json.loads(data[len(magic) + 4 : min(end, _LABEL_BYTES)])
    except ValueError:
        return None
