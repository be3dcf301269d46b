"""From what a person writes, ``runs/demo``, to the store it means."""

from __future__ import annotations

import re

from watchglass.errors import InvalidValueError
from watchglass.store.contract import Store
from watchglass.store.local import LocalStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def open_store(location: str) -> Store:
    """The store at a location: a path of a local folder. Nothing is created or read.

    Raises:
        InvalidValueError: It is empty, or names a kind of store that is not supported.
    """
    if not location or "\0" in location:
        raise InvalidValueError(f"the location of a run must be a path but got {location!r}")
    scheme = _SCHEME.match(location)
    if scheme:
        raise InvalidValueError(
            f"{scheme[1]}:// locations are not supported yet, got {location!r}; use a path of a local folder"
        )
    return LocalStore(location)
