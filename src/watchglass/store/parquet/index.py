"""The index of a file of compacted statistics: the place of each column of each row group, and the rows of the group.

The footer of a Parquet file has these too, but Arrow ends the process over some contradictory footers. So the reader
goes by these plain numbers, and gives Arrow no other bytes. The index lies between the last row group and the footer,
where other readers of Parquet read nothing.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from watchglass.errors import DamagedDataError
from watchglass.store.parquet import file_schema

_MAGIC, _PARQUET = b"WGIX", b"PAR1"
#: Bytes after the index and after the footer: a length and a magic number.
_END = 8
#: Longest index and footer in bytes, together.
MAX_END = 16 << 20
_MAX_GROUPS = 1 << 14
#: Most rows of a row group that is read.
MAX_GROUP_ROWS = 1 << 18


@dataclass(frozen=True)
class Group:
    """A row group."""

    rows: int  #: Number of its rows.
    tensor_ids: tuple[int, int]  #: Least and greatest, both included.
    global_steps: tuple[int, int]  #: Least and greatest, both included.
    columns: dict[str, tuple[int, int]]  #: The bytes of each column in the file, half-open, by its name.


def add_index(data: bytes) -> bytes:
    """A Parquet file with its index added."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(pa.BufferReader(data))
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(metadata.num_columns))}
        ids, steps = (chunks[name].statistics for name in ("tensor_id", "global_step"))
        places = [
            (chunks[name].data_page_offset, chunks[name].data_page_offset + chunks[name].total_compressed_size)
            for name in file_schema.NAMES
        ]
        groups.append([group.num_rows, [ids.min, ids.max], [steps.min, steps.max], places])
    index = json.dumps({"columns": file_schema.NAMES, "groups": groups}, separators=(",", ":")).encode()
    begin = len(data) - _footer_bytes(data)
    return data[:begin] + index + len(index).to_bytes(4, "little") + _MAGIC + data[begin:]


def end_bytes(tail: bytes, size: int) -> int:
    """Bytes from the start of the index to the end of a file; more than ``tail`` has if that is too short.

    Args:
        tail: The end of the file.
        size: Its length.

    Raises:
        DamagedDataError: It is no file of compacted statistics.
    """
    if len(tail) < _END or tail[-4:] != _PARQUET:
        raise DamagedDataError(f"a file of {size} bytes is not a Parquet file, or is cut off")
    footer = _footer_bytes(tail)
    if footer + _END > min(size, MAX_END):
        raise DamagedDataError(f"a footer of {footer} bytes does not fit a file of {size}")
    if footer + _END > len(tail):
        return footer + _END
    head = tail[len(tail) - footer - _END : len(tail) - footer]
    index = int.from_bytes(head[:4], "little")
    if head[4:] != _MAGIC or footer + _END + index > min(size, MAX_END):
        raise DamagedDataError("it is not a file of compacted statistics: it has no index")
    return footer + _END + index


def end_crc(data: bytes) -> int:
    """CRC-32 of a file's index and footer."""
    return zlib.crc32(data[-end_bytes(data, len(data)) :])


def read_index(end: bytes, size: int) -> tuple[Group, ...]:
    """The index of a file.

    Args:
        end: Its bytes from the start of the index on.
        size: Its length.

    Raises:
        DamagedDataError: It is invalid.
    """
    try:
        value = json.loads(end[: len(end) - _footer_bytes(end) - _END])
        names, rows = value["columns"], value["groups"]
        groups = tuple(_group(names, row, size - len(end)) for row in rows[:_MAX_GROUPS])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedDataError(f"its index is invalid ({str(error)[:80]})") from error
    if len(rows) > _MAX_GROUPS:
        raise DamagedDataError(f"it has {len(rows)} row groups; at most {_MAX_GROUPS} are read")
    return groups


def _group(names: Any, row: Any, stop: int) -> Group:
    rows, ids, steps, places = row
    columns = {str(name): (start, end) for name, (start, end) in zip(names, places, strict=True)}
    numbers = (rows, *ids, *steps, *(at for place in columns.values() for at in place))
    sound = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers) and len(ids) == len(steps) == 2
    sound = sound and all(start <= end <= stop for start, end in columns.values()) and rows <= MAX_GROUP_ROWS
    if not sound or not set(file_schema.NAMES) <= set(columns):
        raise DamagedDataError("the index describes an impossible row group")
    return Group(rows, (ids[0], ids[1]), (steps[0], steps[1]), columns)


def _footer_bytes(data: bytes) -> int:
    return int.from_bytes(data[-8:-4], "little") + _END
