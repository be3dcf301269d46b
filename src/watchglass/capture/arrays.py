"""The contract of who reads the arrays of a framework, and its member for NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from watchglass.capture.frameworks import members

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from watchglass.record import Readback


class Numbers(NamedTuple):
    """The content of an array of a framework.

    Attributes:
        shape: Its shape.
        dtype: Name of its dtype.
        elements: Its elements in a dtype that NumPy has, or a readback of them where they are on a device.
        is_complex: Whether they are complex.
    """

    shape: tuple[int, ...]
    dtype: str
    elements: NDArray[Any] | Readback
    is_complex: bool


class Arrays(ABC):
    """Reads the arrays of one framework. Made once in a process, without arguments; holds no array."""

    @abstractmethod
    def is_array(self, value: object) -> bool:
        """Whether this is an array of the framework; must not raise."""

    @abstractmethod
    def read(self, array: Any) -> Numbers | None:
        """The content of an array, without a wait for a device; None where nothing may be read now.

        Raises:
            Exception: It holds no numbers that can be read.
        """


class NumPyArrays(Arrays):
    """Everything that NumPy can read."""

    def is_array(self, value: object) -> bool:
        """Whether it is an array of NumPy."""
        return isinstance(value, np.ndarray)

    def read(self, array: Any) -> Numbers:
        """The content of an array, a list or a number.

        Raises:
            ValueError: It holds no numbers.
        """
        elements = np.asarray(array)
        if elements.dtype.kind not in "biufc":
            raise ValueError("not numbers")
        return Numbers(elements.shape, str(elements.dtype), elements, elements.dtype.kind == "c")


_NUMPY = NumPyArrays()


def arrays_of(value: object) -> Arrays:
    """Who reads an array: its framework, else NumPy, which reads whatever it can."""
    if type(value).__module__ in ("builtins", "numpy"):
        return _NUMPY  # no adapter is imported for these
    return next((each for each in members("arrays") if each.is_array(value)), _NUMPY)
