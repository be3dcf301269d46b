"""Opening files that other users may have created: never blocks, and opens regular files only.

For a FIFO, a device or a socket in place of a file, a plain ``open`` or ``read`` blocks or never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from watchglass.config.parameters import suggest

_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip
# Windows lacks the first two and has the third.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


class NotRegularError(OSError):
    """A FIFO, socket or device in place of a file."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; the caller closes it. Links are followed unless ``flags`` has ``O_NOFOLLOW``.

    Raises:
        NotRegularError: It is a FIFO, a socket or a device.
        IsADirectoryError: It is a folder.
        OSError: The system refused.
    """
    try:
        descriptor = os.open(path, flags | _NO_WAITING | _BINARY, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO without a reader
            raise NotRegularError(errno.EINVAL, "it is a FIFO, a socket or a device, not a file", str(path)) from None
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFREG:
        return descriptor
    os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotRegularError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, not a file", str(path))


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: As :func:`open_regular`; or the file is longer than ``most_bytes``.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {most_bytes:,} bytes", str(path))
    return data


def why_no_file(path: str | os.PathLike[str]) -> str:
    """Why a path is no file, for messages: ``does not exist``, ``is a folder``, ``is a FIFO``."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError:
        return "does not exist"
    return "is a folder" if kind == stat.S_IFDIR else f"is {_KINDS.get(kind, 'no file')}"


def near_file(path: str | os.PathLike[str]) -> str:
    """``' (did you mean "X"?)'`` for a missing file next to one with a similar name, else ``""``."""
    path = Path(path)
    try:
        return suggest(path.name, [entry.name for entry in path.parent.iterdir() if entry.is_file()])
    except OSError:
        return ""
