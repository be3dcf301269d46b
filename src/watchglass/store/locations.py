"""From what a person writes, ``runs/demo`` or ``s3://bucket/runs/demo``, to the store it means."""

from __future__ import annotations

from watchglass.config import local_path, scheme_of
from watchglass.errors import InvalidValueError
from watchglass.store.contract import Store
from watchglass.store.local import LocalStore


def open_store(location: str) -> Store:
    """The store at a location: a path, ``file://``, ``s3://``, ``gs://`` or ``az://``. Nothing is created or read.

    Raises:
        InvalidValueError: It is empty, or names a kind of store that there is not.
        MissingExtraError: What object stores need is not installed.
    """
    scheme = scheme_of(location)
    if scheme:
        raise InvalidValueError(f"{scheme}:// locations are not supported yet, got {location!r}")
    return LocalStore(local_path(location))
