"""Raw tensors in safetensors files, written whole and read by range.

The format is one page (https://huggingface.co/docs/safetensors): u64 length of a JSON header, the header, the data.
Written here because the package's NumPy functions know neither bfloat16 nor float8, and its own call takes other
arguments from release to release; tests read what this writes with the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.errors import DamagedDataError, InvalidValueError, UnknownNameError
from watchglass.store import layout
from watchglass.store.contract import Store

#: Longest header in bytes that is read.
MAX_HEADER = 16 << 20

#: safetensors name -> NumPy dtype that holds the same bytes.
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "U64": "<u8", "I32": "<i4", "U32": "<u4", "I16": "<i2",
    "U16": "<u2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1", "C64": "<c8",
}  # fmt: skip
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}
#: Dtypes that NumPy lacks: safetensors name and bytes of an element, by the names that frameworks give them.
_FOREIGN = {"bfloat16": ("BF16", 2), "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1)}
_FOREIGN_BYTES = dict(_FOREIGN.values())


@dataclass(frozen=True)
class RawTensor:
    """A tensor of a dtype that NumPy lacks, as bytes.

    Attributes:
        dtype: ``"bfloat16"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
        shape: Its shape.
        data: Its elements, little-endian, row by row.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def encode_tensors(tensors: Mapping[str, NDArray[Any] | RawTensor]) -> bytes:
    """The content of a safetensors file.

    Arrays of a dtype that the format lacks (complex128, longdouble) are refused.

    Raises:
        InvalidValueError: A dtype or size does not fit.
    """
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    position = 0
    for name, tensor in tensors.items():
        code, shape, data = _parts(name, tensor)
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        parts.append(data)
        position += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned when mapped into memory
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def write_tensors(
    store: Store, attempt: int, worker: str, seq: int, tensors: Mapping[str, NDArray[Any] | RawTensor]
) -> str:
    """Write raw tensors of one flush and return the path of their file, for the raw index."""
    path = layout.tensors(attempt, worker, seq)
    store.write(path, encode_tensors(tensors))
    return path


def read_tensor(store: Store, path: str, key: str) -> NDArray[Any]:
    """One tensor of a file, as a read-only array; bfloat16 comes as float32 (exact), float8 as its bytes (u8).

    Reads the header and the tensor's own bytes only.

    Raises:
        MissingFileError: There is no such file.
        UnknownNameError: The file holds no such tensor.
        DamagedDataError: The file is no safetensors file.
    """
    length = int.from_bytes(store.read(path, 0, 8), "little")
    if length > MAX_HEADER:
        raise DamagedDataError(f"{path} claims a header of {length} bytes; at most {MAX_HEADER} are read")
    try:
        header = json.loads(store.read(path, 8, 8 + length))
        entry = header.get(key) if key != "__metadata__" else None
    except (ValueError, RecursionError, AttributeError) as error:
        raise DamagedDataError(f"{path} has no safetensors header") from error
    if entry is None:
        raise UnknownNameError(f"{path} holds no tensor {key!r}")
    try:
        code, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sizes = all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, start, end))
        itemsize = np.dtype(_DTYPES[code]).itemsize if code in _DTYPES else _FOREIGN_BYTES[code]
        sound = sizes and math.prod(shape) * itemsize == end - start
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedDataError(f"{path} describes its tensor {key!r} wrongly: {ascii(entry)[:120]}") from error
    data = store.read(path, 8 + length + start, 8 + length + end) if sound else b""
    if not sound or len(data) != end - start:
        raise DamagedDataError(f"{path} does not hold the bytes of its tensor {key!r}")
    return _array(code, data).reshape(shape)


def _parts(name: str, tensor: NDArray[Any] | RawTensor) -> tuple[str, tuple[int, ...], bytes]:
    if isinstance(tensor, RawTensor):
        if tensor.dtype not in _FOREIGN:
            raise InvalidValueError(f"raw bytes must be of dtype {', '.join(_FOREIGN)} but {name!r} is {tensor.dtype}")
        code, itemsize = _FOREIGN[tensor.dtype]
        if math.prod(tensor.shape) * itemsize != len(tensor.data):
            raise InvalidValueError(f"{name!r} has {len(tensor.data)} bytes, which do not fill shape {tensor.shape}")
        return code, tensor.shape, tensor.data
    little = tensor.dtype.newbyteorder("<")
    if little not in _CODES:
        raise InvalidValueError(f"tensors of dtype {tensor.dtype} cannot be stored: {name!r}; convert it first")
    return _CODES[little], tensor.shape, tensor.astype(little, copy=False).tobytes()


def _array(code: str, data: bytes) -> NDArray[Any]:
    if code == "BF16":
        # bfloat16 is the upper half of a float32.
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, _DTYPES.get(code, "|u1"))
