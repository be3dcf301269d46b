"""Small objects of a run, most of them JSON documents, which are not trusted: none is read beyond a limit."""

from __future__ import annotations

import json
from typing import Any

from watchglass.errors import DamagedDataError, MissingFileError
from watchglass.store.contract import Store

#: Longest document in bytes that is read.
MAX_BYTES = 1 << 16


def read_small(store: Store, path: str, most_bytes: int = MAX_BYTES) -> bytes:
    """A whole small object.

    Raises:
        MissingFileError: There is no such object.
        DamagedDataError: It is longer than ``most_bytes``, so watchglass did not write it; or it is not a file.
    """
    data = store.read(path, 0, most_bytes + 1)
    if len(data) > most_bytes:
        raise DamagedDataError(
            f"{path} in {store.location} is longer than {most_bytes:,} bytes, so watchglass did not write it; remove it"
        )
    return data


def document(data: bytes | None) -> dict[str, Any]:
    """The JSON object that bytes hold; empty where they hold none."""
    try:
        value = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_document(store: Store, path: str) -> dict[str, Any]:
    """The JSON object at a path; empty where there is none.

    Raises:
        DamagedDataError: As :func:`read_small`.
    """
    try:
        return document(read_small(store, path))
    except MissingFileError:
        return {}
