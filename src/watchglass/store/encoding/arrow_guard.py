"""Looks into an Arrow stream before Arrow does: where its buffers lie, and what they would take in memory.

Each compressed buffer states its decompressed length, and Arrow allocates and fills that much without asking. This
walks the stream's own metadata (flatbuffers) and adds those lengths up, so that a few kilobytes cannot become
terabytes. See https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_MAX_BUFFERS = 4096
#: Codecs by their number in the metadata.
_CODECS = ("lz4", "zstd")

_TWO = struct.Struct("<II")
_UNSIGNED, _SIGNED, _SHORT, _LONG = (struct.Struct(f"<{kind}") for kind in "IiHq")


class ArrowBatch(NamedTuple):
    """One record batch of a stream, not decoded."""

    rows: int  #: Its declared length.
    nodes: NDArray[np.int64]  #: Length and number of nulls of each column, nested ones included, int64[n, 2].
    #: Offset in the stream and stored length of each buffer, int64[m, 2]; all lie within the stream.
    buffers: NDArray[np.int64]
    #: How buffers are compressed, None for not at all; "" for in a way that this release does not know.
    codec: str | None


def read_layout(stream: bytes | memoryview) -> tuple[bytes, list[ArrowBatch]]:
    """The metadata of a stream's schema (b"" for none), and its record batches.

    Raises:
        DamagedDataError: The stream is malformed, or holds anything but a schema and record batches (dictionaries).
    """
    view = memoryview(stream)
    position, schema = 0, b""
    found: list[ArrowBatch] = []
    try:
        while position < len(view):
            marker, length = _TWO.unpack_from(view, position)
            if marker != _CONTINUATION:
                raise DamagedDataError("an Arrow message does not begin with its marker")
            if length == 0:
                break
            position += 8
            metadata = view[position : position + length]
            position += length
            kind, body_length, header = _message(metadata)
            if body_length < 0 or position + body_length > len(view):
                raise DamagedDataError("an Arrow message is longer than its stream")
            if kind == _RECORD_BATCH and schema:
                found.append(_batch(metadata, header, position, body_length))
            elif kind == _SCHEMA and not schema:
                schema = bytes(metadata)
            else:
                raise DamagedDataError(
                    f"an Arrow message of kind {kind} is out of place; a schema and batches may come"
                )
            position += body_length
    except (struct.error, IndexError, ValueError) as error:
        raise DamagedDataError(f"an Arrow stream has damaged metadata ({str(error)[:120]})") from error
    return schema, found


def decoded_bytes(stream: bytes | memoryview) -> int:
    """Bytes that the buffers of an Arrow IPC stream take when decompressed.

    Raises:
        DamagedDataError: As :func:`read_layout`, or a buffer states an impossible length.
    """
    total = 0
    for batch in read_layout(stream)[1]:
        lengths = batch.buffers[:, 1]
        if batch.codec is None:
            total += sum(lengths.tolist())
            continue
        stored = batch.buffers[lengths >= 8]
        places = stored[:, :1] + np.arange(8)
        decoded = np.frombuffer(stream, np.uint8)[places].reshape(-1).view("<i8")
        if (decoded < -1).any():
            raise DamagedDataError("an Arrow buffer has a negative length")
        total += sum(np.where(decoded == -1, stored[:, 1], decoded).tolist())  # -1: this one is stored as it is
    return total


def _message(metadata: memoryview) -> tuple[int, int, int]:
    """(kind, body length, position of the header table) of a flatbuffer ``Message``."""
    table = _unsigned(metadata, 0)
    kind_at, header_at, length_at = (_field(metadata, table, index) for index in (1, 2, 3))
    if not kind_at or not header_at:
        raise DamagedDataError("an Arrow message has no header")
    body_length = _LONG.unpack_from(metadata, length_at)[0] if length_at else 0
    return metadata[kind_at], int(body_length), header_at + _unsigned(metadata, header_at)


def _batch(metadata: memoryview, table: int, body: int, body_length: int) -> ArrowBatch:
    """A flatbuffer ``RecordBatch`` at ``table``, whose body begins at ``body`` in the stream."""
    rows_at = _field(metadata, table, 0)
    nodes = _pairs(metadata, _field(metadata, table, 1))
    buffers = _pairs(metadata, _field(metadata, table, 2))
    offsets, lengths = buffers[:, 0], buffers[:, 1]
    # Not offset + length > body_length: foreign numbers overflow.
    if (
        (offsets < 0).any()
        or (lengths < 0).any()
        or (lengths > body_length).any()
        or (offsets > body_length - lengths).any()
    ):
        raise DamagedDataError("an Arrow buffer lies outside its message")
    codec: str | None = None
    compression_at = _field(metadata, table, 3)
    if compression_at:
        compression = compression_at + _unsigned(metadata, compression_at)
        codec_at = _field(metadata, compression, 0)
        number = metadata[codec_at] if codec_at else 0
        codec = _CODECS[number] if number < len(_CODECS) else ""
    rows = int(_LONG.unpack_from(metadata, rows_at)[0]) if rows_at else 0
    return ArrowBatch(rows, nodes, buffers + np.array([body, 0]), codec)


def _pairs(metadata: memoryview, at: int) -> NDArray[np.int64]:
    """A vector of structs of two signed 64-bit integers, int64[n, 2]; empty where the field is absent."""
    if not at:
        return np.zeros((0, 2), np.int64)
    vector = at + _unsigned(metadata, at)
    number = _unsigned(metadata, vector)
    if number > _MAX_BUFFERS:
        raise DamagedDataError(f"an Arrow batch has {number} buffers; at most {_MAX_BUFFERS} are read")
    return np.frombuffer(metadata, "<i8", 2 * number, vector + 4).reshape(-1, 2)


def _unsigned(data: memoryview, position: int) -> int:
    if position < 0:
        raise IndexError(position)
    return int(_UNSIGNED.unpack_from(data, position)[0])


def _field(data: memoryview, table: int, index: int) -> int:
    """Position of a table's field, 0 where it is absent. Tables point back to a table of 16-bit field offsets."""
    if table < 0:
        raise IndexError(table)
    vtable = table - _SIGNED.unpack_from(data, table)[0]
    if vtable < 0:
        raise IndexError(vtable)
    (size,) = _SHORT.unpack_from(data, vtable)
    if 4 + 2 * index + 2 > size:
        return 0
    (offset,) = _SHORT.unpack_from(data, vtable + 4 + 2 * index)
    return table + int(offset) if offset else 0
