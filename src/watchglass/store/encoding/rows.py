"""Rows of any declared kind as frames and back: of fixed size, as compressed columns, or as JSON.

In memory rows are a structured array with a field for each declared one; texts and arrays are objects in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, InvalidValueError
from watchglass.records import SIZES, Encoding, Field, RowKey, RowKind
from watchglass.store.encoding.frames import MAX_PAYLOAD, encode_frame
from watchglass.store.encoding.json_payloads import json_frame, json_records

#: Most texts and arrays of a frame: each takes some hundred bytes in memory, however few it takes in the frame.
MAX_VALUES = 1 << 18
#: Most booleans in the arrays of a frame: each takes a byte in memory and a bit in the frame.
MAX_FLAGS = MAX_PAYLOAD
_TYPES = {
    "u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i64": "<i8", "f32": "<f4", "f64": "<f8", "bool": "?",
}  # fmt: skip


_JSON_TYPES: dict[str, type] = {"text": str, "json": dict, "bool": bool}


@lru_cache(maxsize=256)
def dtype_of(kind: RowKind) -> np.dtype[Any]:
    """The structured dtype of rows of a kind."""
    return np.dtype([(each.name, _TYPES.get(each.type, "O") if not each.array else "O") for each in kind.fields])


def table_of(kind: RowKind, rows: Sequence[Sequence[Any]]) -> NDArray[Any]:
    """Rows, given field by field in the order of ``kind.fields``, as a structured array.

    Raises:
        InvalidValueError: A row has more values than fields, or fewer.
    """
    if wrong := {*map(len, rows)} - {len(kind.fields)}:
        names = ", ".join(field.name for field in kind.fields)
        raise InvalidValueError(
            f"rows of {kind.name} must have {len(kind.fields)} values ({names}) but got {', '.join(map(str, wrong))}"
        )
    table = np.empty(len(rows), dtype_of(kind))
    # Column by column: several times faster than row by row.
    for name, column in zip(table.dtype.names or (), zip(*rows, strict=True), strict=False):
        if table.dtype[name].hasobject:
            objects = table[name]
            for place, value in enumerate(column):
                objects[place] = value
        else:
            table[name] = column
    return table


def encode_rows(kind: RowKind, rows: NDArray[Any]) -> bytes:
    """A frame of rows of a kind that is not written as statistics.

    Raises:
        InvalidValueError: They are more than a reader takes at once.
    """
    rows = np.ascontiguousarray(rows, dtype_of(kind))
    if kind.encoding is Encoding.JSON:
        return json_frame(kind.number, [dict(zip(rows.dtype.names or (), row, strict=True)) for row in rows.tolist()])
    if kind.encoding is Encoding.ROWS:
        return encode_frame(kind.number, rows.tobytes())
    if problem := _too_many_values(kind, len(rows)):
        raise InvalidValueError(f"{problem}; write the rows in several frames")
    body = b"".join(part for field in kind.fields for part in _packed(field, rows[field.name]))
    if len(body) > MAX_PAYLOAD:
        raise InvalidValueError(
            f"columns of {kind.name} must have at most {MAX_PAYLOAD} bytes but got {len(body)}; "
            "write the rows in several frames"
        )
    head = len(rows).to_bytes(4, "little") + len(body).to_bytes(4, "little")
    # Rows by time are few and add up over weeks. Others are written by the process that trains, with the least effort.
    return encode_frame(kind.number, head + zlib.compress(body, 6 if kind.key is RowKey.TIME else 1))


def decode_rows(kind: RowKind, payload: bytes, left_out: list[DamagedDataError] | None = None) -> NDArray[Any]:
    """The rows of a payload; read-only where they are of fixed size.

    Args:
        kind: Their kind.
        payload: Of a frame of that kind.
        left_out: Gets why rows were omitted: of those in JSON each is read by itself.

    Raises:
        DamagedDataError: They are not what the kind declares, or take more than a frame may.
    """
    dtype = dtype_of(kind)
    if kind.encoding is Encoding.JSON:
        return table_of(kind, json_records(payload, f"a row of {kind.name}", partial(_sound_row, kind), left_out))
    if kind.encoding is Encoding.ROWS:
        if len(payload) % dtype.itemsize:
            raise DamagedDataError(f"rows of {kind.name} take {dtype.itemsize} bytes each but {len(payload)} are there")
        return np.frombuffer(payload, dtype=dtype)
    count, size = int.from_bytes(payload[:4], "little"), int.from_bytes(payload[4:8], "little")
    if problem := _too_many_values(kind, count):
        raise DamagedDataError(problem)
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(payload[8:], size + 1) if size <= MAX_PAYLOAD else b""
    except zlib.error as error:
        raise DamagedDataError(f"columns of {kind.name} cannot be decompressed ({error})") from error
    if len(body) != size or not stream.eof or stream.unused_data:
        raise DamagedDataError(f"columns of {kind.name} should have {size} bytes (at most {MAX_PAYLOAD})")
    columns = _Columns(memoryview(body))
    # The key alone takes eight bytes a row: once it is there, the number of rows is proven.
    found = {field.name: columns.take(field, count) for field in kind.fields}
    rows = np.empty(count, dtype)
    for name, column in found.items():
        rows[name] = column
    return rows


def holds(field: Field, value: Any) -> bool:
    """Whether a value that is not trusted has the type of a field."""
    if field.array:
        each = replace(field, array=False)
        return isinstance(value, np.ndarray) or (isinstance(value, list) and all(holds(each, one) for one in value))
    if field.type in _JSON_TYPES:
        return isinstance(value, _JSON_TYPES[field.type])
    bits = 8 * SIZES[field.type]
    if field.type[0] == "f":
        return type(value) in (float, int)
    return type(value) is int and (0 <= value < 1 << bits if field.type[0] == "u" else -1 << 63 <= value < 1 << 63)


def _sound_row(kind: RowKind, data: dict[str, Any]) -> list[Any]:
    if not all(holds(field, data[field.name]) for field in kind.fields):
        raise TypeError("fields of the wrong type")
    return [data[field.name] for field in kind.fields]


def rows_bytes(rows: NDArray[Any]) -> int:
    """About how many bytes rows hold in memory."""
    names = rows.dtype.names or () if rows.dtype.hasobject else ()
    objects = [name for name in names if rows.dtype[name].hasobject]
    return rows.nbytes + sum(128 + len(each) * getattr(each, "itemsize", 1) for name in objects for each in rows[name])


def _too_many_values(kind: RowKind, count: int) -> str:
    """Why a frame cannot hold this number of rows; "" if it can."""
    each = sum(field.array or field.type not in _TYPES for field in kind.fields)
    if each * count <= MAX_VALUES:
        return ""
    return f"a frame of {kind.name} must have at most {MAX_VALUES} texts and arrays but got {each * count}"


def _packed(field: Field, column: NDArray[Any]) -> Sequence[bytes]:
    if not field.array and field.type in _TYPES:
        return [column.tobytes()]
    if field.array:
        parts = [np.asarray(each, _TYPES[field.type]) for each in column]
        flat = np.concatenate([np.zeros(0, _TYPES[field.type]), *parts])
        if field.type == "bool":
            if len(flat) > MAX_FLAGS:
                raise InvalidValueError(
                    f"a frame must have at most {MAX_FLAGS} booleans in arrays but got {len(flat)}; "
                    "write the rows in several frames"
                )
            data = np.packbits(flat, bitorder="little").tobytes()
        else:
            same_length = len(flat) > 0 and len({len(each) for each in parts}) == 1
            data = _bit_planes(flat.reshape(len(parts), -1).T.ravel() if same_length else flat)
    else:
        texts = [each.encode() for each in column]
        data = b"".join(texts)
    return [np.array([len(each) for each in (parts if field.array else texts)], "<u4").tobytes(), data]


def _bit_planes(numbers: NDArray[Any]) -> bytes:
    """The highest bit of all numbers, then the next, and so on: the high bits of similar numbers are alike."""
    octets = numbers.view(np.uint8).reshape(-1, numbers.itemsize)
    # Octet by octet: bits take eight times the memory of what they are unpacked from.
    planes = (np.unpackbits(octets[None, :, place], axis=0) for place in range(octets.shape[1] - 1, -1, -1))
    return b"".join(np.packbits(each, axis=1, bitorder="little").tobytes() for each in planes)


def _from_bit_planes(planes: NDArray[np.uint8], dtype: str, count: int) -> NDArray[Any]:
    """This many numbers of such planes."""
    size = np.dtype(dtype).itemsize
    octets = np.empty((count, size), np.uint8)
    for place, eight in zip(range(size - 1, -1, -1), planes.reshape(size, 8, (count + 7) // 8), strict=True):
        bits = np.unpackbits(eight, axis=1, count=count, bitorder="little")
        octets[:, place] = np.packbits(bits, axis=0)[0]
    return octets.reshape(-1).view(dtype)


class _Columns:
    """Takes one column after the other from bytes that are not trusted."""

    def __init__(self, body: memoryview) -> None:
        self._body = body

    def take(self, field: Field, count: int) -> NDArray[Any]:
        """The next column, with this number of values."""
        if not field.array and field.type in _TYPES:
            return self._numbers(_TYPES[field.type], count)
        lengths = self._numbers("<u4", count)
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        total, column = ends[-1] if ends else 0, np.empty(count, object)
        values: Any
        if not field.array:
            values = bytes(self._numbers("u1", total))
        elif field.type == "bool":
            if total > MAX_FLAGS:
                raise DamagedDataError(f"arrays have {total} booleans; at most {MAX_FLAGS} are read")
            values = np.unpackbits(self._numbers("u1", (total + 7) // 8), count=total, bitorder="little").view(bool)
        else:
            dtype = _TYPES[field.type]
            planes = self._numbers("u1", 8 * np.dtype(dtype).itemsize * ((total + 7) // 8))
            values = _from_bit_planes(planes, dtype, total)
            if total and (lengths == lengths[0]).all():
                values = values.reshape(-1, count).T.ravel()
        for place, (begin, end) in enumerate(pairwise([0, *ends])):
            part = values[begin:end]
            column[place] = part if field.array else part.decode(errors="replace")
        return column

    def _numbers(self, dtype: str, count: int) -> NDArray[Any]:
        size = np.dtype(dtype).itemsize * count
        if size > len(self._body):
            raise DamagedDataError(f"a column of {count} values has {len(self._body)} bytes and not {size}")
        found, self._body = np.frombuffer(self._body[:size], np.uint8 if dtype == "?" else dtype), self._body[size:]
        return found != 0 if dtype == "?" else found
