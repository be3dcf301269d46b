"""Whole tensors as NumPy arrays and torch tensors, in their own dtype and without a copy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, MissingExtraError, MissingFileError, NeverError
from watchglass.run.tables import RawPlace
from watchglass.store import Store, StoredTensor, load_tensor


def stored_tensor(store: Store, place: RawPlace, name: str, where: str) -> StoredTensor:
    """A tensor that the index of raw tensors has.

    Args:
        store: The run.
        place: Where it is.
        name: The tensor, for the message.
        where: The step, for the message.

    Raises:
        NeverError: Its file was removed.
        DamagedDataError: Its file is no safetensors file.
    """
    try:
        return load_tensor(store, place.file, place.key)
    except MissingFileError:
        raise NeverError(
            f"the whole tensor {name} of {where} was removed from the run, by its retention or by hand ({place.file}); "
            "reduction() and statistics() have what was recorded of it"
        ) from None


def as_array(tensor: StoredTensor) -> NDArray[Any]:
    """The tensor as an array over the same memory; bfloat16 and float8 with the dtypes of ml-dtypes.

    Raises:
        MissingExtraError: ml-dtypes is needed and not installed.
    """
    if not tensor.dtype:
        return tensor.elements
    try:
        import ml_dtypes
    except ImportError:
        raise MissingExtraError(
            f"arrays of {tensor.dtype} need ml-dtypes, which is not installed: pip install 'watchglass[analysis]', "
            "or take them as float32 with as_float32=True"
        ) from None
    return tensor.elements.view(getattr(ml_dtypes, tensor.dtype))


def as_torch(tensor: StoredTensor) -> Any:
    """The tensor as a ``torch.Tensor`` over the same memory, on the CPU.

    Raises:
        MissingExtraError: torch is not installed.
        InvalidValueError: This torch has no such dtype.
    """
    try:
        torch = import_module("torch")
    except ImportError:
        raise MissingExtraError("torch tensors need torch, which is not installed: pip install torch") from None
    name = tensor.dtype or tensor.elements.dtype.name
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidValueError(f"torch {torch.__version__} has no dtype {name}; take the tensor with value()")
    shape = tensor.elements.shape
    if not tensor.elements.size:
        return torch.empty(shape, dtype=dtype)  # there is no memory that it could be a view of
    return torch.frombuffer(tensor.elements.reshape(-1).data, dtype=dtype).reshape(shape)
