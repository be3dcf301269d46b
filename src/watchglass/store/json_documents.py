"""Small JSON documents of a run, which are not trusted."""

from __future__ import annotations

import json
from typing import Any

from watchglass.errors import MissingFileError
from watchglass.store.contract import Store

#: Longest document in bytes that is read.
MAX_BYTES = 1 << 16


def document(data: bytes | None) -> dict[str, Any]:
    """The JSON object that bytes hold; empty where they hold none."""
    try:
        value = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_document(store: Store, path: str) -> dict[str, Any]:
    """The JSON object at a path; empty where there is none."""
    try:
        return document(store.read(path, 0, MAX_BYTES))
    except MissingFileError:
        return {}
