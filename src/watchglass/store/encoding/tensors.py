"""Raw tensors in safetensors files, written whole and read by range.

The format is one page (https://huggingface.co/docs/safetensors): u64 length of a JSON header, the header, the data.
Written here because the package's NumPy functions know neither bfloat16 nor float8 and first copy everything into one
string; tests read what this writes with the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, InvalidValueError, UnknownNameError
from watchglass.stats import DTYPE_CODES, numbers
from watchglass.store import layout
from watchglass.store.contract import Store

#: Longest header in bytes that is read.
MAX_HEADER = 16 << 20
#: Most axes that NumPy gives an array.
MAX_AXES = 64 if int(np.__version__.partition(".")[0]) >= 2 else 32
#: Bytes of a file that is not mapped that are read first: most headers, and small tensors, are in them.
_FIRST_READ = 64 << 10

#: safetensors name -> NumPy dtype that holds the same bytes.
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U64": "<u8", "I32": "<i4", "U32": "<u4", "I16": "<i2",
    "U16": "<u2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1", "C64": "<c8",
}  # fmt: skip
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}
#: Dtypes that NumPy lacks: the names that frameworks give them, safetensors name and NumPy dtype of the same bytes.
_FOREIGN = {
    "bfloat16": ("BF16", "<u2"), "float8_e4m3fn": ("F8_E4M3", "|u1"), "float8_e5m2": ("F8_E5M2", "|u1"),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", "|u1"), "float8_e5m2fnuz": ("F8_E5M2FNUZ", "|u1"),
}  # fmt: skip
_FOREIGN_NAMES = {code: (name, dtype) for name, (code, dtype) in _FOREIGN.items()}
#: safetensors has no complex128: two float64 in a last axis of their own, and the key's name in the metadata.
_PAIRS = "complex128"


class RawTensor(NamedTuple):
    """A tensor to be kept whole."""

    tensor_id: int  #: Which.
    array: NDArray[Any]  #: Its elements; where NumPy lacks the dtype, their bits as unsigned integers of the same size.
    dtype: str = ""  #: Name of that dtype, ``"bfloat16"`` or one of the ``"float8_..."``; "" for the array's own.


def is_storable(tensor: RawTensor) -> bool:
    """Whether a file can hold the tensor; not longdouble, strings and objects."""
    dtype = tensor.array.dtype.newbyteorder("<")
    if tensor.dtype in _FOREIGN:
        return bool(dtype == np.dtype(_FOREIGN[tensor.dtype][1]))
    return dtype in _CODES or dtype == np.dtype("<c16")


def write_tensors(
    store: Store, attempt: int, worker: str, seq: int, tensors: Sequence[tuple[int, RawTensor]]
) -> list[dict[str, Any]]:
    """Write raw tensors of one flush, ``(global_step, tensor)``, and return the rows of the raw index.

    The arrays go to the store as they lie in memory, without a copy. Of one tensor and step the last one counts.

    Raises:
        InvalidValueError: A tensor is not :func:`is_storable`.
        RunExistsError: That file is there.
        StoreError: The store refused.
    """
    path = layout.tensors(attempt, worker, seq)
    chosen = {(step, tensor.tensor_id): tensor for step, tensor in tensors}
    store.write(path, _content({f"{step}/{tensor_id}": tensor for (step, tensor_id), tensor in chosen.items()}))
    return [
        {"global_step": step, "tensor_id": tensor_id, "file": path, "key": f"{step}/{tensor_id}"}
        for step, tensor_id in chosen
    ]


class StoredTensor(NamedTuple):
    """A tensor as it was stored, in memory that is its reader's: changing it changes nothing in the run."""

    elements: NDArray[Any]  #: Its elements in its shape; where NumPy lacks the dtype, their bits as unsigned integers.
    dtype: str = ""  #: Name of that dtype, ``"bfloat16"`` or one of the ``"float8_..."``; "" for the array's own.


def load_tensor(store: Store, path: str, key: str, *, most_bytes: int | None = None) -> StoredTensor:
    """One tensor of a file, without a copy where the store lies in a file system: then the file is mapped.

    Of a file elsewhere the header and the tensor's own bytes are read.

    Args:
        store: The run's store.
        path: The file.
        key: The tensor's key in the file.
        most_bytes: The most that the tensor may have; None for any.

    Raises:
        MissingFileError: There is no such file.
        UnknownNameError: The file holds no such tensor.
        DamagedDataError: The file is no safetensors file.
        InvalidValueError: The tensor has more than ``most_bytes``, and is not read.
    """
    mapped = memoryview(store.map(path)) if store.policy.reads_in_place else None
    first = b"" if mapped is not None else store.read(path, 0, _FIRST_READ)

    def part(start: int, end: int) -> memoryview:
        if mapped is not None:
            return mapped[start:end]
        return memoryview(bytearray(first[start:end] if end <= len(first) else store.read(path, start, end)))

    length = int.from_bytes(part(0, 8), "little")
    if length > MAX_HEADER:
        raise DamagedDataError(f"{path} claims a header of {length} bytes; at most {MAX_HEADER} are read")
    begin = 8 + length
    place = _place(path, key, bytes(part(8, begin)))
    size = place.end - place.start
    if most_bytes is not None and size > most_bytes:
        raise InvalidValueError(f"a tensor of at most {most_bytes:,} bytes may be read here but it has {size:,}")
    content = part(begin + place.start, begin + place.end)
    if len(content) < size:
        raise DamagedDataError(f"{path} does not hold the bytes of its tensor {key!r}")
    array = np.frombuffer(content, place.dtype) if size else np.empty(0, place.dtype)
    if not array.flags.aligned:
        array = array.copy()
    array = array.view("<c16").reshape(place.shape[:-1]) if place.paired else array.reshape(place.shape)
    return StoredTensor(array, place.foreign)


def as_numbers(tensor: StoredTensor) -> NDArray[Any]:
    """The elements; those of a dtype that NumPy lacks as float32, which holds them exactly."""
    if not tensor.dtype:
        return tensor.elements
    return numbers(tensor.elements.reshape(-1), DTYPE_CODES[tensor.dtype]).reshape(tensor.elements.shape)


class _Place(NamedTuple):
    """Place, shape and dtype of a tensor in a file's data; ``foreign`` names a dtype that NumPy lacks."""

    start: int
    end: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    foreign: str
    paired: bool


def _place(path: str, key: str, text: bytes) -> _Place:
    """The entry of a tensor in the header."""
    try:
        header = json.loads(text)
        entry = header.get(key) if key != "__metadata__" else None
        paired = (header.get("__metadata__") or {}).get(key) == _PAIRS
    except (ValueError, RecursionError, AttributeError) as error:
        raise DamagedDataError(f"{path} has no safetensors header") from error
    if entry is None:
        raise UnknownNameError(f"{path} holds no tensor {key!r}")
    try:
        code, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, start, end))
        foreign, name = _FOREIGN_NAMES.get(code, ("", _DTYPES.get(code)))
        dtype = np.dtype(name if name is not None else _DTYPES[code])
        sound = sound and math.prod(shape) * dtype.itemsize == end - start
        sound = sound and (not paired or (code == "F64" and shape[-1:] == (2,)))
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedDataError(f"{path} describes its tensor {key!r} wrongly: {ascii(entry)[:120]}") from error
    if len(shape) > MAX_AXES:
        raise DamagedDataError(f"{path} gives its tensor {key!r} {len(shape)} axes; at most {MAX_AXES} are read")
    if not sound:
        raise DamagedDataError(f"{path} does not hold the bytes of its tensor {key!r}")
    return _Place(start, end, shape, dtype, foreign, paired)


def _content(tensors: dict[str, RawTensor]) -> list[bytes | memoryview]:
    """A safetensors file in parts: its header, then the memory of each tensor."""
    header: dict[str, Any] = {}
    paired = {key: _PAIRS for key, tensor in tensors.items() if tensor.array.dtype.name == _PAIRS}
    if paired:
        header["__metadata__"] = paired
    parts: list[bytes | memoryview] = [b"", b""]
    position = 0
    for key, tensor in tensors.items():
        code, shape, elements = _described(tensor)
        header[key] = {"dtype": code, "shape": shape, "data_offsets": [position, position + elements.nbytes]}
        position += elements.nbytes
        if elements.nbytes:
            parts.append(elements.reshape(-1).view(np.uint8).data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned when mapped into memory
    parts[:2] = len(text).to_bytes(8, "little"), text
    return parts


def _described(tensor: RawTensor) -> tuple[str, list[int], NDArray[Any]]:
    """(safetensors dtype, shape, elements): the array itself where it is contiguous and little-endian."""
    if not is_storable(tensor):
        dtype = tensor.dtype or tensor.array.dtype
        raise InvalidValueError(f"tensors of dtype {dtype} cannot be stored as {tensor.array.dtype}; convert it first")
    array = np.ascontiguousarray(tensor.array, tensor.array.dtype.newbyteorder("<"))
    shape = list(tensor.array.shape)  # ascontiguousarray makes scalars one-dimensional
    if array.dtype == np.dtype("<c16"):
        return "F64", [*shape, 2], array
    return _FOREIGN[tensor.dtype][0] if tensor.dtype in _FOREIGN else _CODES[array.dtype], shape, array
