"""Values and modes that a script gives to a hook: read as numbers, without a wait for a device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.deferred_facts import DeferredNumbers
from watchglass.capture.frameworks import Numbers, reader_of
from watchglass.config import BUILT_IN_COLLECTIONS, MODE_NAMES
from watchglass.errors import InvalidValueError
from watchglass.record import Readback
from watchglass.records import Mode, Role


def mode_of(mode: Mode | str) -> Mode:
    """The mode of this name.

    Raises:
        InvalidValueError: A step cannot have this mode.
    """
    found = mode if isinstance(mode, Mode) else MODE_NAMES.get(str(mode).lower())
    if found is None or found is Mode.GLOBAL:
        raise InvalidValueError(f'mode must be "train", "eval" or "predict" but got {mode!r}')
    return found


def number_of(value: Any) -> Any:
    """A value as a float, or a readback for a value on a device; None where it may not be read now."""
    reader = reader_of(value)
    if reader is None:
        return float(value)
    numbers = reader.read(value)
    if numbers is None:
        return None
    if numbers.is_complex or math.prod(numbers.shape) != 1:
        raise ValueError("not one number")
    return computed(numbers.elements, lambda array: float(array.reshape(())))


def numbers_of(value: Any) -> Numbers | None:
    """A value as numbers; None where it may not be read now.

    Raises:
        Exception: The value holds no numbers.
    """
    reader = reader_of(value)
    if reader is not None:
        return reader.read(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise ValueError("not numbers")
    return Numbers(array.shape, str(array.dtype), array, array.dtype.kind == "c")


def computed(elements: NDArray[Any] | Readback, make: Callable[[NDArray[Any]], Any]) -> Any:
    """The result of ``make`` for these elements, or a readback of it: the training's thread waits for no device."""
    return make(elements) if isinstance(elements, np.ndarray) else DeferredNumbers(lambda: make(elements.resolve()))


def role_of(collection: str | None, otherwise: Role) -> Role:
    """The role of a tensor that a script files under a collection: that of a built-in one."""
    built_in = BUILT_IN_COLLECTIONS.get(collection or "")
    return built_in.roles[0] if built_in is not None and len(built_in.roles) == 1 else otherwise
