"""A store in a bucket: Amazon S3 and what speaks its language, Google Cloud Storage, Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from watchglass.errors import MissingFileError, StoreError
from watchglass.store.contract import Buffer, Content, Store, StoredObject, check_path, check_range, is_path
from watchglass.store.media.credentials import RequestPatience
from watchglass.store.media.parallel import at_once
from watchglass.store.media.request_failures import FailureKind, understood
from watchglass.store.media.requests import ChangedError, OutOfRangeError, Requests
from watchglass.store.media.uncertain_writes import MARK, UncertainWrites

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

#: Bytes of an object that one request carries: larger ones are read, and where it is possible written, in pieces.
PIECE = 8 << 20
#: Requests of one call that are under way at once: of many objects, and of the pieces of one.
AT_ONCE, PIECES_AT_ONCE = 16, 4
#: How often an object may have become another one between two of its pieces.
_MOST_CHANGES = 16
#: Larger objects cannot be written in one request anywhere.
_LARGEST_PUT = 5 << 30


class ObjectStore(Store):
    """One prefix of a bucket. Nothing is opened before the first request.

    Readers see whole objects only. An exclusive write is one conditional request, and the server decides the race.
    If the answer is lost, a retry fails with "it exists" and does not know who wrote the object. So every exclusive
    write carries a random mark in the object's metadata, and a retry that finds its own mark has succeeded.

    A call tries again for a few seconds where that may help, then raises: see
    :class:`~watchglass.store.media.credentials.RequestPatience`.

    A process that was forked from one that has used an object store cannot use any: the client's threads are not there.
    It gets a :class:`~watchglass.errors.ForkedError` at once.

    Args:
        location: For messages: ``s3://bucket/prefix``, without anything secret.
        prefix: Of all keys, without a slash at either end; "" for the whole bucket.
        connect: Makes a client, of the seconds that a request may take and whether the client itself tries again.
        patience: How long a call may take.
    """

    def __init__(
        self,
        location: str,
        prefix: str,
        connect: Callable[[float, bool], Client],
        patience: RequestPatience | None = None,
    ) -> None:
        self.location = location
        self._prefix = check_path(prefix, folder=True)
        self._requests = Requests(location, connect, patience or RequestPatience())
        self._uncertain = UncertainWrites()

    def __repr__(self) -> str:
        return f"ObjectStore({self.location!r})"

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """See :meth:`Store.read`."""
        pieces = self._fetch(path, start, end)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def map(self, path: str) -> Buffer:
        """See :meth:`Store.map`. The whole object is fetched."""
        memory, pieces = bytearray(), [*self._fetch(path, 0, None)]
        pieces.reverse()
        while pieces:  # each goes as it is copied, so that they are not all there twice
            memory += pieces.pop()
        return memory

    def read_many(self, ranges: Sequence[tuple[str, int, int | None]]) -> Sequence[bytes | None]:
        """See :meth:`Store.read_many`. Up to :data:`AT_ONCE` requests are under way at once."""
        for path, start, end in ranges:
            check_path(path)
            check_range(start, end)

        def read(wanted: tuple[str, int, int | None]) -> bytes | None:
            try:
                return self.read(*wanted)
            except MissingFileError:
                return None

        return at_once(AT_ONCE, read, ranges)

    def write(self, path: str, data: Content, *, replace: bool = False) -> None:
        """See :meth:`Store.write`.

        Objects of more than :data:`PIECE` bytes are sent in pieces with ``replace``. Without ``replace`` they are one
        request, because only a single request is exclusive; its time limit grows with the size. No server accepts such
        a request beyond 5 GiB. Then the store first checks whether the object exists, and two simultaneous writers may
        both succeed.
        """
        check_path(path)
        views = [memoryview(part).cast("B") for part in ([data] if isinstance(data, bytes) else data) if len(part)]
        size = sum(map(len, views))
        if not replace and size <= _LARGEST_PUT:
            self._create(path, views, size)
            return
        if not replace and self.size(path) is not None:
            raise self._requests.exists_error(path)
        key, in_pieces = self._key(path), size > PIECE
        how: dict[str, Any] = {"chunk_size": PIECE, "max_concurrency": PIECES_AT_ONCE} if in_pieces else {}

        def put(client: Client) -> None:
            client.put(key, views or b"", use_multipart=in_pieces, **how)

        self._requests.ask("write", path, put, carried=PIECE * PIECES_AT_ONCE if in_pieces else 0, tries=in_pieces)

    def append(self, path: str, data: bytes) -> None:
        """Object stores cannot; see :attr:`appends`.

        Raises:
            StoreError: Always.
        """
        check_path(path)
        raise StoreError(
            f"cannot append to {self._requests.shown(path)}: object stores take whole objects; write a new one"
        )

    def list(self, prefix: str = "", after: str = "") -> list[StoredObject]:
        """See :meth:`Store.list`. One request per 1,000 objects; names that :func:`check_path` refuses are omitted.

        Azure lists what sorts before ``after`` too, and it is left out here.

        Raises:
            StoreError: Among others, an object there has a name that the client cannot take: one with ``..``, an empty
                part or a control character.
        """
        check_path(prefix, folder=True)
        # A start that is no path (only ever a bound of what to list) is compared here instead of by the server.
        offset = self._key(after) if is_path(after) else None

        def collect(client: Client) -> list[StoredObject]:
            entries: list[StoredObject] = []
            for page in client.list(self._key(prefix) or None, offset=offset, chunk_size=1000):
                for found in page:
                    path = self._below(found["path"])
                    if path > after and is_path(path):
                        entries.append(StoredObject(path, found["size"]))
            return entries

        return sorted(self._requests.ask("list", prefix, collect), key=lambda entry: entry.path)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See :meth:`Store.folders`. One request per 1,000 objects and folders right below."""
        check_path(prefix, folder=True)

        def collect(client: Client) -> Sequence[str]:
            found = client.list_with_delimiter(self._key(prefix) or None)["common_prefixes"]
            return [self._below(path).rpartition("/")[2] for path in found]

        return sorted(name for name in self._requests.ask("list", prefix, collect) if is_path(name))

    def size(self, path: str) -> int | None:
        """See :meth:`Store.size`."""
        check_path(path)
        try:
            return self._requests.ask("look at", path, lambda client: client.head(self._key(path))["size"])
        except MissingFileError:
            return None

    def delete(self, path: str) -> None:
        """See :meth:`Store.delete`."""
        check_path(path)
        try:
            self._requests.ask("delete", path, lambda client: client.delete(self._key(path)))
        except MissingFileError:
            pass

    def is_empty(self) -> bool:
        """Whether nothing lies below the prefix but hidden objects; one request, of a page of 1,000 names."""

        def look(client: Client) -> bool:
            try:
                for page in client.list(self._prefix or None, chunk_size=1000):
                    # The name of the prefix itself is what consoles put there to show an empty folder.
                    names = (self._below(found["path"]) for found in page)
                    if any(name and not name.startswith(".") for name in names):
                        return False
            except Exception as error:
                if type(error).__name__ == "InvalidPathError":  # it is an object with an unusual name
                    return False
                raise
            return True

        return self._requests.ask("list", "", look)

    def below(self, path: str) -> Store:
        """See :meth:`Store.below`. Both use the same clients, and either may be closed first."""
        check_path(path)
        return ObjectStore(self._requests.shown(path), self._key(path), self._requests.client, self._requests.patience)

    def close(self) -> None:
        """Close connections."""
        self._requests.close()

    def _create(self, path: str, views: Sequence[memoryview], size: int) -> None:
        """Write an object that must not be there, and know an own one where an earlier answer was lost."""
        key = self._key(path)
        mark, doubtful = self._uncertain.mark_of(path, views)

        def put(client: Client) -> None:
            nonlocal doubtful
            try:
                client.put(key, views or b"", mode="create", use_multipart=False, attributes={MARK: mark})
            except Exception as error:
                if doubtful and understood(error).kind is FailureKind.EXISTS and _mark_of(client, key) == mark:
                    return
                doubtful = True
                raise

        try:
            self._requests.ask("write", path, put, carried=size)
        except StoreError:
            self._uncertain.remember(path, mark, views)
            raise
        self._uncertain.settle(path)

    def _fetch(self, path: str, start: int, end: int | None) -> Sequence[Any]:
        """The bytes ``[start, end)`` of an object as buffers in their order; several requests where they are many."""
        check_path(path)
        check_range(start, end)
        if end == start:
            if self.size(path) is None:
                raise self._requests.missing_error(path)
            return []
        stop = start + PIECE if end is None else min(end, start + PIECE)
        for _ in range(_MOST_CHANGES):
            try:
                size, tag, first = self._requests.ask(
                    "read", path, lambda client: self._get(client, path, start, stop, None)
                )
                last = size if end is None else min(end, size)
                bounds = [(at, min(at + PIECE, last)) for at in range(stop, last, PIECE)]
                return [first, *self._pieces(path, bounds, tag)]
            except OutOfRangeError:
                return []
            except ChangedError:
                continue  # it was replaced between two pieces
        raise StoreError(
            f"cannot read {self._requests.shown(path)}: {_MOST_CHANGES} times it was replaced between two of its "
            "pieces; wait until its writer has ended, or check that the server supports conditional requests"
        )

    def _pieces(self, path: str, bounds: Sequence[tuple[int, int]], tag: str | None) -> Sequence[Any]:
        def get(bound: tuple[int, int]) -> Any:
            def ask(client: Client) -> Any:
                return self._get(client, path, *bound, tag)[2]

            return self._requests.ask("read", path, ask, carried=PIECE * PIECES_AT_ONCE)

        return at_once(PIECES_AT_ONCE, get, bounds)

    def _get(self, client: Client, path: str, start: int, stop: int, tag: str | None) -> tuple[int, str | None, Any]:
        """Size and tag of the whole object, and the bytes ``[start, stop)`` of the one that has ``tag``."""
        options: dict[str, Any] = {"range": (start, stop)}
        if tag is not None:
            options["if_match"] = tag
        found = client.get(self._key(path), options=options)  # type: ignore[arg-type]
        return found.meta["size"], found.meta["e_tag"], found.bytes()

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix and path else self._prefix or path

    def _below(self, key: str) -> str:
        """The path of a key, "" for the prefix itself."""
        return key[len(self._prefix) :].removeprefix("/") if self._prefix else key


def _mark_of(client: Client, key: str) -> str | None:
    attributes: Any = client.get(key, options={"head": True}).attributes
    return attributes.get(MARK)  # type: ignore[no-any-return]
