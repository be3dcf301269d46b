"""Bounds what decoding an Arrow stream may allocate, before Arrow decodes it.

Each compressed buffer states its decompressed length, and Arrow allocates and fills that much without asking. This
walks the stream's own metadata (flatbuffers) and adds those lengths up, so that a few kilobytes cannot become
terabytes. See https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct

from watchglass.errors import DamagedDataError

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_MAX_BUFFERS = 4096


def decoded_bytes(stream: bytes) -> int:
    """Bytes that the buffers of an Arrow IPC stream take when decompressed.

    Raises:
        DamagedDataError: The stream is malformed, or holds anything but a schema and record batches (dictionaries).
    """
    position, total, schemas = 0, 0, 0
    try:
        while position < len(stream):
            marker, length = struct.unpack_from("<II", stream, position)
            if marker != _CONTINUATION:
                raise DamagedDataError("an Arrow message does not begin with its marker")
            if length == 0:
                break
            position += 8
            metadata = memoryview(stream)[position : position + length]
            position += length
            kind, body_length, header = _message(metadata)
            if body_length < 0 or position + body_length > len(stream):
                raise DamagedDataError("an Arrow message is longer than its stream")
            if kind == _RECORD_BATCH and schemas == 1:
                total += _batch_bytes(metadata, header, memoryview(stream)[position : position + body_length])
            elif kind == _SCHEMA and schemas == 0:
                schemas = 1
            else:
                raise DamagedDataError(
                    f"an Arrow message of kind {kind} is out of place; a schema and batches may come"
                )
            position += body_length
    except (struct.error, IndexError) as error:
        raise DamagedDataError("an Arrow stream has damaged metadata") from error
    return total


def _message(metadata: memoryview) -> tuple[int, int, int]:
    """(kind, body length, position of the header table) of a flatbuffer ``Message``."""
    table = _unsigned(metadata, 0)
    kind_at, header_at, length_at = (_field(metadata, table, index) for index in (1, 2, 3))
    if not kind_at or not header_at:
        raise DamagedDataError("an Arrow message has no header")
    body_length = struct.unpack_from("<q", metadata, length_at)[0] if length_at else 0
    return metadata[kind_at], int(body_length), header_at + _unsigned(metadata, header_at)


def _batch_bytes(metadata: memoryview, table: int, body: memoryview) -> int:
    """Decompressed bytes of a flatbuffer ``RecordBatch`` at ``table``."""
    if not _field(metadata, table, 3):
        return len(body)
    buffers_at = _field(metadata, table, 2)
    if not buffers_at:
        return 0
    vector = buffers_at + _unsigned(metadata, buffers_at)
    number = _unsigned(metadata, vector)
    if number > _MAX_BUFFERS:
        raise DamagedDataError(f"an Arrow batch has {number} buffers; at most {_MAX_BUFFERS} are read")
    total = 0
    for index in range(number):
        offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * index)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise DamagedDataError("an Arrow buffer lies outside its message")
        if length >= 8:
            (decoded,) = struct.unpack_from("<q", body, offset)
            if decoded < -1:
                raise DamagedDataError("an Arrow buffer has a negative length")
            total += length if decoded == -1 else decoded  # -1: this one buffer is stored as it is
    return total


def _unsigned(data: memoryview, position: int) -> int:
    if position < 0:
        raise IndexError(position)
    return int(struct.unpack_from("<I", data, position)[0])


def _field(data: memoryview, table: int, index: int) -> int:
    """Position of a table's field, 0 where it is absent. Tables point back to a table of 16-bit field offsets."""
    if table < 0:
        raise IndexError(table)
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * index + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * index)
    return table + int(offset) if offset else 0
