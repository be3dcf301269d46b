"""The location of a run as a person writes it: a path, or the address of an object store."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from watchglass.errors import InvalidValueError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_ONE_SLASH = re.compile(r"(s3|gs|az|file):/(?!/)", re.IGNORECASE)
#: Schemes of object stores.
OBJECT_SCHEMES = ("s3", "gs", "az")
#: Folder of runs without a location.
DEFAULT_RUNS = "runs"


def scheme_of(location: str) -> str:
    """``"s3"``, ``"gs"`` or ``"az"`` for an object store, "" for a local folder.

    Raises:
        InvalidValueError: It is empty or has an unknown scheme.
    """
    if not location or any(ord(c) < 32 for c in location):
        raise InvalidValueError(f"the location of a run must be a path or an address but got {location!a}")
    if _ONE_SLASH.match(location):
        scheme = location.partition(":")[0].lower()
        raise InvalidValueError(f"{scheme}: is followed by one slash in {location!a}; did you mean {scheme}://?")
    found = _SCHEME.match(location)
    scheme = found[1].lower() if found else ""
    if scheme and scheme not in (*OBJECT_SCHEMES, "file"):
        known = ", ".join(f"{each}://" for each in (*OBJECT_SCHEMES, "file"))
        raise InvalidValueError(
            # Only the scheme: the rest may contain a password.
            f"the location of a run must be a path or begin with one of {known}, but got {scheme}://..."
        )
    return "" if scheme == "file" else scheme


def local_path(location: str) -> str:
    """The path of a local folder, which may be written as ``file:///path`` too.

    Raises:
        InvalidValueError: A ``file://`` address that names another machine or no absolute path.
    """
    if not location.lower().startswith("file://"):
        return location
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise InvalidValueError(f"a file:// location must look like file:///absolute/path but got {location!a}")
    return unquote(parts.path)


def absolute(location: str) -> str:
    """The same location for a process in another working directory.

    Raises:
        InvalidValueError: As :func:`scheme_of`.
    """
    return location if scheme_of(location) else os.path.abspath(local_path(location))


def joined(parent: str, name: str) -> str:
    """The location ``name`` below another one."""
    return f"{parent.rstrip('/')}/{name}" if scheme_of(parent) else os.path.join(local_path(parent), name)
