"""The frames of one object, read in pieces: an object of any length takes no more memory than its longest frame."""

from __future__ import annotations

from collections.abc import Generator

from watchglass.store.contract import Store
from watchglass.store.encoding.frames import HEADER_BYTES, MAGIC, MAX_PAYLOAD, Frame, frame_length, scan

_CHUNK = 4 << 20


def frames_of(store: Store, path: str) -> Generator[Frame, None, int | None]:
    """The frames of an object up to the first one that is damaged or was not written whole.

    Returns:
        Where the object is damaged, in bytes; None where nothing but a last frame may be cut off.

    Raises:
        MissingFileError: There is no such object.
    """
    offset, want = 0, _CHUNK
    while True:
        data = store.read(path, offset, offset + want)
        result = scan(data, base=offset, source=path)
        yield from result.frames
        offset += result.consumed
        tail = data[result.consumed :]
        if result.problem == "damaged" or (len(data) < want and MAGIC in tail[len(MAGIC) :]):
            return offset
        if len(data) < want:
            return None
        length = frame_length(tail[:HEADER_BYTES])
        want = max(_CHUNK, min(length or 0, HEADER_BYTES + MAX_PAYLOAD) + 1)
