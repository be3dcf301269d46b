"""Object stores without a server, and of a server with other limits on waiting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from obstore.store import MemoryStore

from watchglass.store.media.credentials import RequestPatience, connector
from watchglass.store.media.objects import ObjectStore


def in_memory(prefix: str = "", bucket: Any = None) -> ObjectStore:
    """A store in a bucket in memory: a new one, or one that a test shares among stores or wraps."""
    client: Any = MemoryStore() if bucket is None else bucket
    return ObjectStore(f"memory://bucket/{prefix}".rstrip("/"), prefix, lambda request_s, tries: client)


def waiting_for(location: str, patience: RequestPatience, environ: Mapping[str, str] = os.environ) -> ObjectStore:
    """The store at ``s3://bucket/prefix``, whose calls take as long as ``patience`` allows."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    return ObjectStore(location, prefix, connector("s3", bucket, patience, environ), patience)
