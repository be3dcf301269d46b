"""Whole tensors as NumPy arrays, in their own dtype and without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from watchglass.errors import InvalidValueError, MissingExtraError, MissingFileError, StepNotRecordedError, StoreError
from watchglass.records import TensorInfo
from watchglass.store import Store, StoredTensor, as_numbers, load_tensor

#: Bytes of whole tensors that one rule may read at one step.
MOST_RAW_BYTES = 64 << 20


class RawTensors:
    """The whole tensors of one step, each read from the store when a rule needs it. For one thread."""

    def __init__(self, store: Store, places: Mapping[int, Any], where: str) -> None:
        """Reads nothing.

        Args:
            store: The run's store.
            places: Rows that say where the tensors are, by tensor id.
            where: The step, for messages.
        """
        self._store, self._places, self._where = store, places, where
        #: The bytes that a rule may still read; the engine sets it before it calls a rule.
        self.left_bytes = MOST_RAW_BYTES
        self.refused = False  #: Whether the store refused a tensor since the engine cleared this flag.

    def __contains__(self, tensor_id: int) -> bool:
        return tensor_id in self._places

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the tensors that were recorded whole."""
        return frozenset(self._places)

    def read(self, info: TensorInfo) -> NDArray[Any]:
        """The elements of a tensor, in its shape; bfloat16 and float8 as float32, which is exact.

        Raises:
            InvalidValueError: It is larger than ``left_bytes``.
            StepNotRecordedError: Its file was removed since.
            DamagedDataError: Its file is not a valid safetensors file.
            StoreError: The store refused.
        """
        place = self._places[info.tensor_id]
        try:
            found = stored_tensor(self._store, place, info.name, self._where, most_bytes=self.left_bytes)
        except StoreError:
            self.refused = True
            raise
        except InvalidValueError as error:
            raise InvalidValueError(f"{info.name}: {error}; declare Needs(raw=True), and read less at a step") from None
        self.left_bytes -= found.elements.nbytes
        return as_numbers(found)


def stored_tensor(store: Store, place: Any, name: str, where: str, *, most_bytes: int | None = None) -> StoredTensor:
    """A tensor in the index of raw tensors.

    Args:
        store: The run.
        place: The row of :data:`~watchglass.records.RAW` that says where it is.
        name: The tensor, for the message.
        where: The step, for the message.
        most_bytes: The most bytes that it may have; None for any number.

    Raises:
        StepNotRecordedError: Its file was removed.
        DamagedDataError: Its file is not a valid safetensors file.
        InvalidValueError: It has more bytes.
    """
    try:
        return load_tensor(store, place.file, place.key, most_bytes=most_bytes)
    except MissingFileError:
        raise StepNotRecordedError(
            f"the whole tensor {name} of {where} was removed from the run, by its retention or by hand ({place.file}); "
            "reduction() and statistics() still have its recorded numbers"
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
