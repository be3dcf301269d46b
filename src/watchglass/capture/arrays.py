"""The contract of who reads the arrays of a framework, and its member for NumPy."""

from __future__ import annotations

import functools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from watchglass.capture.frameworks import members
from watchglass.config import environment
from watchglass.stats import DTYPE_CODES, Histograms, Rows, native, numbers, pure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watchglass.capture.planning.cost import Cost
    from watchglass.record import Readback


#: Share of the elements of a saturated unit that lie beyond the limits of its function.
BEYOND = 0.99


@dataclass(slots=True, eq=False)
class DeferredNumbers:
    """Numbers that the recorder's thread computes from others once they have come from their device.

    Args:
        resolve: Waits for them and computes.
        nbytes: Bytes on the host until then.
    """

    resolve: Callable[[], Any]
    nbytes: int = 0


class ArrayInfo(NamedTuple):
    """What is known of an array without its elements.

    Attributes:
        shape: Its shape.
        dtype: Name of its dtype.
        device: Where it is.
        placement: How this rank's part relates to the whole of a distributed array, see
            :class:`~watchglass.records.TensorInfo`.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    placement: str = "local"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * _itemsize(self.dtype)


class Elements(NamedTuple):
    """Copies of elements of an array.

    Attributes:
        array: The elements; where NumPy lacks the dtype, their bits as unsigned integers of the same size. A readback
            of them where they come from a device.
        dtype: Name of a dtype that NumPy lacks, one of :data:`~watchglass.stats.DTYPE_CODES`; "" for the array's own.
    """

    array: NDArray[Any] | Readback
    dtype: str = ""

    def received(self) -> NDArray[Any]:
        """The elements, or their bits; waits for a device."""
        return self.array if isinstance(self.array, np.ndarray) else np.asarray(self.array.resolve())

    def numbers(self) -> NDArray[Any]:
        """The elements as numbers; waits for a device."""
        elements = self.received()
        return numbers(elements, DTYPE_CODES[self.dtype]) if self.dtype else elements

    def computed(self, make: Callable[[NDArray[Any]], Any]) -> Any:
        """The result of ``make`` for the elements as numbers, or a readback of it: the training waits for no device."""
        if isinstance(self.array, np.ndarray):
            return make(self.numbers())
        return DeferredNumbers(lambda: make(self.numbers()), getattr(self.array, "nbytes", 0))


class Read(NamedTuple):
    """Arrays on one device that are read together."""

    arrays: Sequence[Any]  #: n arrays.
    before: Sequence[Any] | None  #: Their older values; then everything is of the differences.
    scale: Any  #: Everything is divided by this number.
    histograms: bool  #: Whether to make them.
    seed: int  #: Draws the elements that histograms of large arrays count.


class NoValuesError(ValueError):
    """All arrays of some kind have no values; the text says which, and the cure, after "NAME is not recorded, "."""


class Arrays(ABC):
    """Reads the arrays of one framework. Made once in a process, without arguments; holds no array.

    Nothing here waits for a device, changes an array or keeps it after the call.
    """

    @abstractmethod
    def is_array(self, value: object) -> bool:
        """Whether this is an array of the framework; must not raise."""

    @abstractmethod
    def describe(self, array: Any) -> ArrayInfo:
        """Shape, dtype and place of an array."""

    @abstractmethod
    def take(self, array: Any, index: NDArray[np.int64] | None = None) -> Elements:
        """Copies of all elements, in the shape of the array; or of those at some flat positions, in one axis."""

    def values(self, array: Any) -> Any:
        """An array whose memory holds the values of this one; None where nothing may be read now.

        The other methods get the results of this one. Two of them on one device, which their attribute ``device``
        names if they have it, can be subtracted, and divided by a number.

        Raises:
            NoValuesError: See there.
            Exception: It holds no numbers that can be read.
        """
        return array

    def statistics(self, read: Read, cost: Cost) -> tuple[Any, Any]:
        """Statistics of arrays on one device, which computes them if the framework has kernels for that.

        Args:
            read: The arrays.
            cost: Counts memory and time of devices.

        Returns:
            Rows float64[n, 11] and :class:`~watchglass.stats.Histograms` of n rows (or None), or readbacks of them.
        """
        older = None if read.before is None else list(map(self.take, read.before))
        taken = read._replace(arrays=list(map(self.take, read.arrays)), before=older)
        found = functools.cache(functools.partial(summaries, taken))
        copies = [each.array for each in (*taken.arrays, *(older or ()))]
        if all(isinstance(each, np.ndarray) for each in copies):
            return found()
        rows = DeferredNumbers(lambda: found()[0], sum(getattr(each, "nbytes", 0) for each in copies))
        return rows, DeferredNumbers(lambda: found()[1]) if read.histograms else None

    def on_host(self, array: Any) -> bool:
        """Whether an array lies in the memory of the host, where the native kernel reads it."""
        return self.describe(array).device in ("", "cpu")

    def units(self, array: Any, axis: int, limits: tuple[float, float] | None) -> Any:
        """The units whose elements are all zero; or, with limits, that lie beyond them.

        Args:
            array: The array.
            axis: Its axis that counts units.
            limits: The limits; None to look for zeros.

        Returns:
            A boolean array or a readback of one; None for an array without elements, or whose values cannot be read.
        """
        shape = self.describe(array).shape
        others = tuple(each for each in range(len(shape)) if each != axis)
        if not math.prod(shape):
            return None

        def found(values: Any) -> Any:
            if limits is None:
                return np.all(values == 0, axis=others)
            return np.mean((values < limits[0]) | (values > limits[1]), axis=others) >= BEYOND

        return self.take(array).computed(found)

    def copy(self, array: Any, memory: Any = None, *, stride: int = 1) -> Any:
        """A copy on the device of the array, for its older values.

        Args:
            array: The array.
            memory: A copy of an array of the same shape and dtype, which may be overwritten.
            stride: Above 1, of the elements in their order in memory every ``stride``-th one: an array with one axis.
                None where that would take more memory.
        """
        return deepcopy(array) if stride == 1 else None


class OwnArray(ABC):
    """A value of ours in place of an array of a framework."""

    @property
    @abstractmethod
    def reader(self) -> Arrays:
        """Who reads it."""


class NumPyArrays(Arrays):
    """Everything that NumPy can read."""

    def is_array(self, value: object) -> bool:
        """Whether it is an array of NumPy."""
        return isinstance(value, np.ndarray)

    def describe(self, array: NDArray[Any]) -> ArrayInfo:
        """Shape and dtype."""
        return ArrayInfo(array.shape, str(array.dtype))

    def take(self, array: NDArray[Any], index: NDArray[np.int64] | None = None) -> Elements:
        """Copies, at once."""
        if index is None:
            return Elements(array.copy())
        return Elements((array.reshape(-1) if array.flags.c_contiguous else array.flat)[index])

    def values(self, array: Any) -> NDArray[Any]:
        """The content of an array, a list or a number.

        Raises:
            ValueError: It holds no numbers.
        """
        elements = np.asarray(array)
        if elements.dtype.kind not in "biufc":
            raise ValueError("not numbers")
        return elements

    def statistics(self, read: Read, cost: Cost) -> tuple[Rows, Histograms | None]:
        """By the native kernel, where there is one."""
        older = None if read.before is None else list(map(Elements, read.before))
        return summaries(read._replace(arrays=list(map(Elements, read.arrays)), before=older))

    def copy(self, array: NDArray[Any], memory: Any = None, *, stride: int = 1) -> NDArray[Any]:
        """A copy."""
        copied = array if stride == 1 else array.ravel(order="K")[::stride]
        memory = np.empty_like(copied) if memory is None else memory
        np.copyto(memory, copied)
        found: NDArray[Any] = memory
        return found


@functools.cache
def _itemsize(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


@functools.cache
def kernel() -> Any:
    """The module that computes statistics of memory on the host."""
    return native if native.available and not environment.native_disabled() else pure


def summaries(read: Read) -> tuple[Rows, Histograms | None]:
    """Statistics and histograms of :class:`Elements` on the host; waits for those that are not there yet."""
    # Kept until the kernel has returned: a copy made here must not be freed before it is read.
    now = list(map(_readable, read.arrays))
    older = None if read.before is None else list(map(_readable, read.before))
    found: tuple[Rows, Histograms | None] = kernel().summaries(
        [array.ctypes.data for array, _ in now],
        [array.size for array, _ in now],
        [code for _, code in now],
        before=None if older is None else [array.ctypes.data for array, _ in older],
        scale=None if read.scale is None else float(read.scale),
        histograms=read.histograms,
        seed=read.seed,
    )
    return found


def _readable(elements: Elements) -> tuple[NDArray[Any], int]:
    """Contiguous elements, and the code of their dtype."""
    array = np.ascontiguousarray(elements.received())
    code = DTYPE_CODES.get(elements.dtype or array.dtype.name)
    if code is None or not array.dtype.isnative:
        array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
        code = DTYPE_CODES[array.dtype.name]
    return array, code


#: Reads NumPy's arrays.
NUMPY = NumPyArrays()


def arrays_of(value: object) -> Arrays:
    """Who reads an array: its framework, else NumPy, which reads whatever it can."""
    if type(value).__module__ in ("builtins", "numpy"):
        return NUMPY  # no adapter is imported for these
    if isinstance(value, OwnArray):
        return value.reader
    return next((each for each in members("arrays") if each.is_array(value)), NUMPY)


def is_array(value: object) -> bool:
    """Whether a value is an array of any framework."""
    return (
        NUMPY.is_array(value) or isinstance(value, OwnArray) or any(each.is_array(value) for each in members("arrays"))
    )


def number_of(value: Any) -> Any:
    """A value as a float, or a readback for a value on a device or to come; None where it may not be read now.

    Raises:
        Exception: It is not one real number.
    """
    if isinstance(value, (float, int)):
        return float(value)
    if isinstance(value, DeferredNumbers):
        return value
    arrays = arrays_of(value)
    array = arrays.values(value)
    if array is None:
        return None
    about = arrays.describe(array)
    if about.dtype.startswith("complex") or math.prod(about.shape) != 1:
        raise ValueError("not one number")
    return arrays.take(array).computed(lambda elements: float(elements.reshape(())))
