"""Checks how much memory the pages of a Parquet file claim, before Arrow decodes them.

The footer of a file states all sizes, and each page repeats its size in a header. Arrow allocates the size in the
header. So this module reads the headers (Thrift's compact protocol) and compares. See
https://parquet.apache.org/docs/file-format/ and https://github.com/apache/thrift/blob/master/doc/specs
"""

from __future__ import annotations

from typing import Any

from watchglass.errors import DamagedDataError

_MAX_PAGES = 1 << 16
_MAX_DEPTH = 8
#: Numbers of the fields of a page's header.
_UNCOMPRESSED, _COMPRESSED = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_NUM_VALUES = 1


def check_pages(chunk: bytes, *, values: int, max_bytes: int) -> int:
    """Bytes that the pages of one column of one row group take when decompressed.

    Args:
        chunk: All pages.
        values: The number of values that they must hold.
        max_bytes: The most bytes that they may take.

    Raises:
        DamagedDataError: They claim more bytes, another number of values than the footer, or are no pages.
    """
    position, total, found = 0, 0, 0
    for _ in range(_MAX_PAGES):
        if position >= len(chunk):
            break
        header, position = _struct(chunk, position, 0)
        uncompressed, compressed = header.get(_UNCOMPRESSED, -1), header.get(_COMPRESSED, -1)
        inner = next((header[kind] for kind in (_DATA, _DATA_V2) if kind in header), None)
        dictionary = header.get(_DICTIONARY)
        counted = inner if inner is not None else dictionary
        number = counted.get(_NUM_VALUES, -1) if isinstance(counted, dict) else -1
        if not (_is_count(uncompressed) and _is_count(compressed) and _is_count(number)):
            raise DamagedDataError("a Parquet page has an invalid header")
        if inner is not None:
            found += number
        total += uncompressed
        position += compressed
        if total > max_bytes or found > values or number > values:
            raise DamagedDataError(f"Parquet pages claim {total} bytes and {found} values, more than the file may have")
    if position != len(chunk) or found != values:
        raise DamagedDataError(f"Parquet pages hold {found} values but its footer states {values}")
    return total


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 31


def _struct(data: bytes, position: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number, if they are numbers or structs, and the position after it."""
    if depth > _MAX_DEPTH:
        raise DamagedDataError("a Parquet page has a header that is nested too deeply")
    fields: dict[int, Any] = {}
    field = 0
    while True:
        byte, position = _byte(data, position)
        kind, delta = byte & 15, byte >> 4
        if kind == 0:
            return fields, position
        if delta:
            field += delta
        else:
            field, position = _number(data, position)
        if kind in (1, 2):  # true and false are in the type
            continue
        fields[field], position = _value(data, position, kind, depth)


def _value(data: bytes, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == 3:
        return None, position + 1
    if kind in (4, 5, 6):
        return _number(data, position)
    if kind == 7:
        return None, position + 8
    if kind == 8:
        length, position = _varint(data, position)
        return None, position + length
    if kind == 12:
        return _struct(data, position, depth + 1)
    raise DamagedDataError("a Parquet page has a header with lists or maps, which no page has")


def _number(data: bytes, position: int) -> tuple[int, int]:
    folded, position = _varint(data, position)
    return (folded >> 1) ^ -(folded & 1), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, position = _byte(data, position)
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise DamagedDataError("a Parquet page has a header with a number that does not end")


def _byte(data: bytes, position: int) -> tuple[int, int]:
    if position >= len(data):
        raise DamagedDataError("a Parquet page's header is cut off")
    return data[position], position + 1
