"""An output file: it appears complete or not at all, and an existing file is overwritten only on request."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from watchglass.errors import InvalidValueError, RunExistsError, StoreError


def check_output_path(
    path: str | os.PathLike[str],
    *,
    replace: bool = False,
    cure: str = "--force",
    example: str = "output",
    endings: Sequence[str] = (),
) -> Path:
    """The path of a file to be written. Its folder is created.

    Args:
        path: The file.
        replace: Whether an existing file may be overwritten.
        cure: The option that overwrites it, for the message.
        example: Name of a file, for the message.
        endings: Those that the name may have, such as ``".html"``; empty for any name.

    Raises:
        RunExistsError: It exists, and ``replace`` is not given.
        InvalidValueError: It is a folder, or its name has none of the endings.
        StoreError: Its folder cannot be made or written.
    """
    target = Path(path)
    if target.is_dir():
        raise InvalidValueError(f"{target} is a folder; name the file to write, for instance {target / example}")
    if os.path.lexists(target) and not replace:
        raise RunExistsError(f"{target} exists; choose another file, or overwrite it with {cure}")
    if endings and not target.name.lower().endswith(tuple(endings)):
        allowed, cured = " or ".join(endings), target.with_suffix(endings[0])
        raise InvalidValueError(f"the file to write must end with {allowed} but got {target}; write {cured}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {target.parent}: {error.strerror or error}") from error
    if not os.access(target.parent, os.W_OK):
        raise StoreError(f"cannot write {target}: its folder does not allow it; choose another file")
    return target


def write_whole(target: Path, data: bytes, *, option: str = "--output") -> int:
    """Write a file in one step, replacing an existing one; returns its size in bytes.

    Args:
        target: The result of :func:`check_output_path`.
        data: The whole content.
        option: The option that names the file, for the message.

    Raises:
        StoreError: It cannot be written.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:32]}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreError(
            f"cannot write {target}: {error.strerror or error}; choose another file with {option}"
        ) from error
    return len(data)


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
