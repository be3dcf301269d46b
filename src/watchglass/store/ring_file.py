"""Files of rings: created whole, locked while their writer lives, read by whoever comes after it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from watchglass.errors import RunExistsError

#: Bytes at the beginning that say what the ring is of; their end is the ring's own.
HEADER_BYTES = 4096
NAME = re.compile(r"\.?[\w-]+\.(rows|entries)\Z", re.ASCII)

_LABEL_BYTES = HEADER_BYTES - 64
_KINDS = {"rows": b"WGROWS1\n", "entries": b"WGENTR1\n"}
_MOST_BYTES = 1 << 30
#: Rings outside of runs that nobody came for are removed after so long.
_FORGOTTEN_S = 7 * 86400.0


def private_folder(parent: Path) -> Path:
    """A folder of this user alone below one that everybody may write; rings that nobody came for are removed."""
    folder = parent / f"watchglass-{os.getuid()}"
    if not parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(parent))
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(folder))
    for path in folder.iterdir():
        # Opening and closing a ring of our own would end our lock on it.
        if not NAME.match(path.name) or f"-{os.getpid()}-" in path.name:
            continue
        with suppress(OSError):
            if path.lstat().st_mtime < time.time() - _FORGOTTEN_S:
                os.close(_locked(path))
                path.unlink()
    return folder


def create(path: Path, kind: str, label: Mapping[str, Any], size: int, *, reserve: bool) -> int:
    """A descriptor of a new ring of ``size`` bytes, locked.

    Args:
        path: Where; nothing may be there.
        kind: ``rows`` or ``entries``.
        label: What it is of.
        size: Bytes, with the header.
        reserve: Fail where the room cannot be reserved.

    Raises:
        OSError: There is no room, or the file cannot be made.
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
    """Reserve the file's room, so that it never runs out; elsewhere than in memory as far as the system can."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (OSError, AttributeError) as error:
        if must or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(getattr(error, "errno", 0) or errno.ENOSYS, f"no room can be reserved: {error}") from error
        os.ftruncate(descriptor, size)


def close(descriptor: int, path: Path, *, discard: bool) -> None:
    """Let go of a ring; ``discard`` removes the file."""
    if discard:
        with suppress(OSError):
            path.unlink()
    os.close(descriptor)


def _locked(path: Path) -> int:
    """A descriptor of a ring whose writer is gone; reading and closing it harms nobody."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
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
    try:
        descriptor = _locked(path)
    except RunExistsError:
        raise
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > _MOST_BYTES:
            return None
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    data = b"".join(parts)
    return data if len(data) >= HEADER_BYTES and _label(data, kind) == dict(label) else None


def _label(data: bytes, kind: str) -> Any:
    magic = _KINDS[kind]
    if not data.startswith(magic):
        return None
    end = len(magic) + 4 + int.from_bytes(data[len(magic) : len(magic) + 4], "little")
    try:
        return json.loads(data[len(magic) + 4 : min(end, _LABEL_BYTES)])
    except ValueError:
        return None
