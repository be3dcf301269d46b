"""Frames: the envelope of everything in a segment or journal, so that a reader knows what is whole.

A frame is a 16-byte little-endian header and a payload::

    magic  4 bytes  b"WGF1"
    kind   u16      FrameKind; readers skip kinds they do not know
    schema u16      version of the payload's layout, 1 first
    length u32      bytes of payload, at most MAX_PAYLOAD
    crc    u32      CRC-32 (zlib) of kind, schema, length and payload
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

from watchglass import records
from watchglass.errors import InvalidValueError

MAGIC = b"WGF1"
HEADER_BYTES = 16
#: Largest payload in bytes. A header that claims more is damaged: no reader ever allocates a size from a header.
MAX_PAYLOAD = 64 << 20

_HEADER = struct.Struct("<4sHHII")
_CHECKED = struct.Struct("<HHI")


class FrameKind(IntEnum):
    """The kind of a frame's payload, where code names it: any number of :data:`~watchglass.records.ROW_KINDS` is one.

    Numbers are never reused; 16 to 18 belong to the journal.
    """

    HEADER = 1
    CATALOG = records.TENSORS.number
    SCALARS = records.SCALARS.number
    STATISTICS = records.STATISTICS.number
    UNITS = records.UNITS.number
    FACTS = records.FACTS.number
    STEP_ENDS = records.STEPS.number
    LIFECYCLE = 8
    RAW = records.RAW.number
    REDUCTIONS = records.REDUCTIONS.number
    COMPACTED = 11
    WATERMARK = 12
    SAMPLES = records.SAMPLES.number
    FINDING = records.FINDINGS.number
    STATUS = 17
    OBSERVATION = 18


@dataclass(frozen=True)
class Frame:
    """One whole frame whose checksum is right."""

    kind: int  #: A :class:`FrameKind`, or a number that this release does not know.
    schema: int  #: Version of the payload's layout.
    payload: bytes  #: The bytes; b"" where they were left in the object.
    offset: int = 0  #: Where the frame begins in its object, in bytes.
    source: str = ""  #: Path of that object, "" where unknown; for messages.
    #: Bytes of the payload that were checked and left in the object, behind the header; 0 where ``payload`` is all.
    left: int = 0

    @property
    def left_at(self) -> tuple[int, int]:
        """Byte range, half-open, of a payload that was left in its object."""
        begin = self.offset + HEADER_BYTES
        return begin, begin + self.left


class Scan(NamedTuple):
    """Result of :func:`scan`."""

    frames: list[Frame]  #: The whole frames, in order.
    consumed: int  #: Bytes they take, counted from where the scan began.
    #: Why the scan ended before the data did: ``"incomplete"`` (the rest may still be written), ``"damaged"`` (it
    #: cannot be a frame), or None.
    problem: Literal["incomplete", "damaged"] | None


def encode_frame(kind: int, payload: bytes, schema: int = 1) -> bytes:
    """The bytes of one frame.

    Raises:
        InvalidValueError: The payload is longer than :data:`MAX_PAYLOAD`.
    """
    if len(payload) > MAX_PAYLOAD:
        raise InvalidValueError(
            f"a frame must hold at most {MAX_PAYLOAD} bytes but got {len(payload)}; write the rows in several frames"
        )
    crc = zlib.crc32(payload, zlib.crc32(_CHECKED.pack(kind, schema, len(payload))))
    return _HEADER.pack(MAGIC, kind, schema, len(payload), crc) + payload


def scan(
    data: bytes | memoryview, offset: int = 0, *, base: int = 0, source: str = "", leave: Collection[int] = ()
) -> Scan:
    """All whole frames of ``data`` from ``offset`` on, up to the first incomplete or damaged one.

    Nothing behind a damaged frame is returned: with its length in doubt, what follows could be anything.

    Args:
        data: Bytes of a segment or journal, from its start or from a frame boundary.
        offset: Where in ``data`` to begin.
        base: Offset of ``data`` in its object, added to :attr:`Frame.offset`.
        source: Path of that object.
        leave: Kinds whose payloads are checked and not copied, see :attr:`Frame.left`.
    """
    frames: list[Frame] = []
    position = offset
    view = memoryview(data)
    problem: Literal["incomplete", "damaged"] | None = None
    while position < len(data):
        head = bytes(view[position : position + HEADER_BYTES])
        if not MAGIC.startswith(head[:4]) and head[:4] != MAGIC:
            problem = "damaged"
            break
        if len(head) < HEADER_BYTES:
            problem = "incomplete"
            break
        _, kind, schema, length, crc = _HEADER.unpack(head)
        if length > MAX_PAYLOAD:
            problem = "damaged"
            break
        end = position + HEADER_BYTES + length
        if end > len(data):
            problem = "incomplete"
            break
        payload = view[position + HEADER_BYTES : end]
        if zlib.crc32(payload, zlib.crc32(head[4:12])) != crc:
            problem = "damaged"
            break
        if length and kind in leave:
            frames.append(Frame(kind, schema, b"", base + position, source, length))
        else:
            frames.append(Frame(kind, schema, bytes(payload), base + position, source))
        position = end
    return Scan(frames, position - offset, problem)


def frame_length(head: bytes) -> int | None:
    """Bytes of the whole frame that begins with ``head``, or None where that is no header of a frame."""
    if len(head) < HEADER_BYTES:
        return None
    magic, _, _, length, _ = _HEADER.unpack(head[:HEADER_BYTES])
    return HEADER_BYTES + int(length) if magic == MAGIC and length <= MAX_PAYLOAD else None
