"""Flat columns straight from the buffers of an Arrow stream.

Opening a stream with Arrow costs a tenth of a millisecond however few columns are wanted, twice where the wanted ones
are named, and a run has a thousand streams. All of one writer have the same schema, so that is taken apart once; a
column without nulls is then one buffer to decompress. Anything unusual is left to Arrow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError
from watchglass.store.encoding.arrow_guard import ArrowBatch, read_layout

#: Most bytes that one batch may take in memory; about two million rows.
MAX_DECODED = 256 << 20

#: Longer schemas are not taken apart, so that foreign ones cannot fill memory.
_MAX_SCHEMA = 32 << 10
#: Columns that repeat from batch to batch (ids of the same tensors, counts of nothing) are kept: stored bytes at most,
#: decoded bytes at most, and so many of them.
_REPEATED_STORED, _REPEATED_DECODED, _REPEATED = 4 << 10, 64 << 10, 256
#: Arrow pads buffers.
_PADDING = 64

_repeated: OrderedDict[tuple[str, bytes], NDArray[Any]] = OrderedDict()
_repeated_lock = Lock()


def flat_columns(stream: bytes | memoryview, wanted: Mapping[str, np.dtype[Any]]) -> dict[str, NDArray[Any]] | None:
    """The wanted columns of a stream of one batch, read-only; None where Arrow itself must look at the stream.

    Args:
        stream: An Arrow IPC stream.
        wanted: Dtype that each column must have.

    Raises:
        DamagedDataError: The stream is malformed, or the content of a buffer does not match its header.
    """
    schema, batches = read_layout(stream)
    if len(batches) != 1 or len(schema) > _MAX_SCHEMA or batches[0].codec == "":
        return None
    places, batch = _places(schema), batches[0]
    if places is None or not 0 <= batch.rows <= MAX_DECODED // 8 // max(1, len(wanted)):
        return None
    found: dict[str, NDArray[Any]] = {}
    for name, dtype in wanted.items():
        place = places.get(name)
        if place is None or place[2] != dtype or place[0] >= len(batch.nodes) or place[1] + 1 >= len(batch.buffers):
            return None
        length, nulls = batch.nodes[place[0]].tolist()
        if length != batch.rows or nulls:
            return None
        column = _column(memoryview(stream), batch, place[1] + 1, dtype)
        if column is None:
            return None
        found[name] = column
    return found


def arrow_array(values: NDArray[Any]) -> Any:
    """An array of numbers or booleans as one of Arrow's, without a copy where it is contiguous.

    As ``pyarrow.array``, which would import an installed pandas into the training process.
    """
    import pyarrow as pa

    if values.dtype == np.dtype(bool):
        return pa.Array.from_buffers(
            pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))]
        )
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [None, pa.py_buffer(data)])


def as_array(column: Any) -> NDArray[Any]:
    """A chunked array of Arrow as one array.

    What Arrow's own ``to_numpy`` gives; but that imports pandas where it is installed, for a third of a second.
    """
    import pyarrow as pa

    kind = column.type
    flat = pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if not flat or column.null_count:
        return np.asarray(column.to_numpy())
    dtype = _dtype(kind)
    parts = [np.zeros(0, dtype)]
    for chunk in column.chunks:
        data, begin, end = chunk.buffers()[1], chunk.offset, chunk.offset + len(chunk)
        if not len(chunk):
            continue
        if dtype == np.dtype(bool):
            parts.append(np.unpackbits(np.frombuffer(data, np.uint8), count=end, bitorder="little")[begin:].view(bool))
        else:
            parts.append(np.frombuffer(data, dtype, len(chunk), begin * dtype.itemsize))
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def _dtype(kind: Any) -> np.dtype[Any]:
    """NumPy's dtype of a flat type; asking Arrow for it takes pandas, up to Arrow 17 at least."""
    name = str(kind)
    return np.dtype({"double": "float64", "float": "float32", "halffloat": "float16"}.get(name, name))


@lru_cache(maxsize=64)
def _places(schema: bytes) -> dict[str, tuple[int, int, np.dtype[Any]]] | None:
    """Column -> (its node, its first buffer, its dtype) of the flat columns that NumPy has a dtype for."""
    import pyarrow as pa

    message = b"\xff\xff\xff\xff" + len(schema).to_bytes(4, "little") + schema
    try:
        # Names are decoded here: they may be no UTF-8.
        fields = [(field.name, field.type) for field in pa.ipc.read_schema(pa.py_buffer(message))]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    found: dict[str, tuple[int, int, np.dtype[Any]]] = {}
    node, buffer = 0, 0
    for name, kind in fields:
        size = _size(kind)
        if size is None or name in found:
            return None
        if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
            found[name] = (node, buffer, _dtype(kind))
        node, buffer = node + size[0], buffer + size[1]
    return found


def _size(kind: Any) -> tuple[int, int] | None:
    """How many nodes and buffers a column of this type has; None for types that hold data in another way."""
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return 1, 2
    if types.is_string(kind) or types.is_binary(kind):
        return 1, 3
    if types.is_list(kind):
        children, buffers = [kind.value_type], 2
    elif types.is_struct(kind):
        children, buffers = [kind.field(index).type for index in range(kind.num_fields)], 1
    else:
        return None
    nodes = 1
    for child in children:
        size = _size(child)
        if size is None:
            return None
        nodes, buffers = nodes + size[0], buffers + size[1]
    return nodes, buffers


def _column(stream: memoryview, batch: ArrowBatch, buffer: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The numbers of one buffer."""
    bits = dtype == np.dtype(bool)
    needed = (batch.rows + 7) // 8 if bits else batch.rows * dtype.itemsize
    if not needed:
        return np.zeros(0, dtype)
    offset, length = batch.buffers[buffer].tolist()
    data: Any = stream[offset : offset + length]
    if batch.codec is None:
        return _numbers(data, batch.rows, dtype).copy() if needed <= length else None
    if length < 8:
        return None
    decoded = int.from_bytes(data[:8], "little", signed=True)
    data = data[8:]
    if decoded == -1:
        return _numbers(data, batch.rows, dtype).copy() if needed <= len(data) else None
    if not needed <= decoded <= needed + _PADDING:
        return None
    repeats = length <= _REPEATED_STORED and needed <= _REPEATED_DECODED
    if not repeats:
        return _numbers(_decompressed(data, decoded, batch.codec), batch.rows, dtype)
    key = (f"{batch.codec} {dtype.str} {batch.rows} {decoded}", bytes(data))
    with _repeated_lock:
        known = _repeated.get(key)
        if known is not None:
            _repeated.move_to_end(key)
            return known
    made = _numbers(_decompressed(data, decoded, batch.codec), batch.rows, dtype)
    with _repeated_lock:
        _repeated[key] = made
        while len(_repeated) > _REPEATED:
            _repeated.popitem(last=False)
    return made


def _decompressed(data: memoryview, size: int, codec: str) -> Any:
    import pyarrow as pa

    try:
        return _codec(codec).decompress(pa.py_buffer(data), decompressed_size=size)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DamagedDataError(f"a column of statistics cannot be decompressed ({str(error)[:120]})") from error


@lru_cache
def _codec(name: str) -> Any:
    import pyarrow as pa

    return pa.Codec(name)


def _numbers(data: Any, rows: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype == np.dtype(bool):
        column = np.unpackbits(np.frombuffer(data, np.uint8), count=rows, bitorder="little").view(bool)
        column.flags.writeable = False
        return column
    column = np.frombuffer(data, dtype.newbyteorder("<"), rows)
    column.flags.writeable = False  # the memory may be a mapped file
    return column.astype(dtype, copy=False)
