"""From what a person writes, ``runs/demo`` or ``s3://bucket/runs/demo``, to the store it means."""

from __future__ import annotations

import re

from watchglass.config import local_path, scheme_of
from watchglass.errors import InvalidValueError
from watchglass.store.contract import Store, check_path
from watchglass.store.media.local import LocalStore

#: Names of buckets (S3, Google) and containers (Azure); the services themselves are stricter.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")
#: Keys end at 1,024 bytes, and the paths of a run come behind the prefix.
_LONGEST_PREFIX = 480


def open_store(location: str, *, quick: bool = False) -> Store:
    """The store at a location: a path, ``file://``, ``s3://``, ``gs://`` or ``az://``. Nothing is created or read.

    ``s3://bucket`` alone is a location too: one whose paths begin at the top of the bucket. A slash at the end does not
    matter. Credentials and endpoints are never part of it: docs/object-stores.md states where they are looked for.

    Args:
        location: The location as the user wrote it.
        quick: For callers that retry anyway and serve other runs: a bucket that does not answer fails after some 20
            seconds instead of a minute.

    Raises:
        InvalidValueError: It is empty, names a kind of store that there is not, or is no plain bucket and prefix.
        MissingExtraError: What object stores need is not installed.
    """
    scheme = scheme_of(location)
    if not scheme:
        return LocalStore(local_path(location))
    bucket, prefix = _bucket_and_prefix(scheme, location)
    from watchglass.store.media.credentials import QUICK_PATIENCE, RequestPatience, connector
    from watchglass.store.media.objects import ObjectStore

    patience = QUICK_PATIENCE if quick else RequestPatience()
    plain = f"{scheme}://{bucket}/{prefix}" if prefix else f"{scheme}://{bucket}"
    return ObjectStore(plain, prefix, connector(scheme, bucket, patience), patience)


def _bucket_and_prefix(scheme: str, location: str) -> tuple[str, str]:
    """The two parts of an address. Messages leave out what may be a password or a signature."""
    rest = location.partition("://")[2]
    if any(c in rest for c in "@?#"):
        raise InvalidValueError(
            f"the location of a run must be {scheme}://bucket/prefix without user, password, query or fragment, since "
            "it is shown and stored; set credentials and endpoint in the environment (docs/object-stores.md)"
        )
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidValueError(
            f"the location of a run must begin with {scheme}://bucket, a name of letters, digits and '.-_' that begins "
            f"with a letter or digit, but the bucket is {bucket[:80]!a}"
        )
    prefix = prefix.rstrip("/")
    if len(prefix.encode(errors="replace")) > _LONGEST_PREFIX:
        raise InvalidValueError(f"the prefix of {scheme}://{bucket}/ must have at most {_LONGEST_PREFIX} bytes")
    try:
        check_path(prefix, folder=True)
    except InvalidValueError as error:
        raise InvalidValueError(f"the prefix in {location[:200]!a} cannot be used: {error}") from None
    return bucket, prefix
