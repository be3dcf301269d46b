"""What a script records by hand, under the same law as an adapter's callbacks: no training run fails because of it."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.deferred_facts import DeferredNumbers
from watchglass.capture.frameworks import Numbers, reader_of
from watchglass.config import BUILT_IN_COLLECTIONS, MODE_NAMES
from watchglass.errors import InvalidValueError
from watchglass.record import Captured, OpenStep, Readback
from watchglass.records import Mode, Role, TensorInfo
from watchglass.stats import exact_reduction, histograms_of, of_array
from watchglass.store import RawTensor

if TYPE_CHECKING:
    from watchglass.capture.hook import Hook

_log = logging.getLogger("watchglass")


class ManualLoop:
    """Steps, scalars and tensors of a loop that no adapter knows, or beside an adapter.

    Args:
        hook: Where everything goes. Its methods of the same names are the doors, and say what the arguments are.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._refused: set[str] = set()

    @contextmanager
    def step(self, mode: Mode) -> Iterator[OpenStep]:
        """One step; where nothing is recorded, or no longer, the loop runs through the same lines."""
        step = self._hook.guard.lawful(self._begin, mode)
        try:
            yield step or OpenStep(-1, mode, -1, -1, 0)
        finally:
            if step is not None:
                self._hook.guard.lawful(self._end, step)

    def _begin(self, mode: Mode) -> OpenStep:
        hook = self._hook
        hook.settle()
        if mode is Mode.TRAIN:
            hook.check_stop()
        step = hook.clock.begin(mode)
        if mode is Mode.TRAIN:
            hook.ensure_started()
        return step

    def _end(self, step: OpenStep) -> None:
        self._hook.clock.end(step)
        if self._hook.clock.train is not None:
            self._hook.plan.resume()

    def save_scalar(self, name: str, value: Any, collection: str | None) -> None:
        """Record one number at the current step."""
        number = self._read(name, value, _number, "save_scalar needs a number")
        if number is None:
            return
        role, tags = _role_of(collection, Role.METRIC), _named(collection)
        tensor_id = self._hook.tensor_id(name, lambda: TensorInfo(0, name, role, dtype="float64", collections=tags))
        self._hook.saved_records().saved.append((tensor_id, 1.0, number))

    def save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        """Record a tensor at the current step."""
        role, tags = _role_of(collection, Role.CUSTOM), _named(collection)
        keep = self._hook.plan.keep_saved(name, tags, role)
        if keep is None:
            return
        numbers = self._read(name, value, _numbers, "save_tensor needs an array of numbers")
        if numbers is None:
            return
        elements = numbers.elements
        tensor_id = self._hook.tensor_id(name, lambda: self._described(name, numbers, role, tags))
        records = self._hook.saved_records()
        rows, histograms = _made(elements, lambda array: of_array(array)[None]), None
        if keep.histogram and not numbers.is_complex:
            histograms = _made(elements, lambda array: histograms_of([array]))
        records.statistics.append(Captured([tensor_id], rows, histograms=histograms))
        for wanted in keep.reductions:
            number = _made(elements, functools.partial(exact_reduction, reduction=wanted))
            records.reductions.append((tensor_id, wanted, number))
        if keep.raw:
            copied: Any = elements.copy() if isinstance(elements, np.ndarray) else elements
            records.raw.append(RawTensor(tensor_id, copied))
        if keep.shape:
            records.facts.append(("shape", "save_tensor", {"tensor": name, "shape": list(numbers.shape)}))

    def _described(self, name: str, numbers: Numbers, role: Role, tags: tuple[str, ...]) -> TensorInfo:
        collections = self._hook.plan.collections_of(name, role, tags=tags)
        trainable = True if role in (Role.WEIGHT, Role.BIAS) else None
        return TensorInfo(
            0, name, role, shape=numbers.shape, dtype=numbers.dtype, trainable=trainable, collections=collections
        )  # fmt: skip

    def _read(self, name: str, value: Any, read: Callable[[Any], Any], needs: str) -> Any:
        try:
            return read(value)
        except Exception:
            if name not in self._refused:
                self._refused.add(name)
                _log.warning("watchglass: %r is not recorded: %s but got %.80r", name, needs, value)
            return None


def mode_of(mode: Mode | str) -> Mode:
    """The mode that a script means.

    Raises:
        InvalidValueError: None that a step can have.
    """
    found = mode if isinstance(mode, Mode) else MODE_NAMES.get(str(mode).lower())
    if found is None or found is Mode.GLOBAL:
        raise InvalidValueError(f'mode must be "train", "eval" or "predict" but got {mode!r}')
    return found


def _number(value: Any) -> Any:
    """A value as a float, or a readback of one where it is on a device; None where it may not be read now."""
    reader = reader_of(value)
    if reader is None:
        return float(value)
    numbers = reader.read(value)
    if numbers is None:
        return None
    if numbers.is_complex or math.prod(numbers.shape) != 1:
        raise ValueError("not one number")
    return _made(numbers.elements, lambda array: float(array.reshape(())))


def _numbers(value: Any) -> Numbers | None:
    """A value as numbers; None where it may not be read now.

    Raises:
        Exception: It is not made of numbers.
    """
    reader = reader_of(value)
    if reader is not None:
        return reader.read(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise ValueError("not numbers")
    return Numbers(array.shape, str(array.dtype), array, array.dtype.kind == "c")


def _made(elements: NDArray[Any] | Readback, make: Callable[[NDArray[Any]], Any]) -> Any:
    """What ``make`` makes of elements, or a readback of it: the training's thread waits for no device."""
    return make(elements) if isinstance(elements, np.ndarray) else DeferredNumbers(lambda: make(elements.resolve()))


def _role_of(collection: str | None, otherwise: Role) -> Role:
    """What a tensor is that a script files under a collection: what a built-in one holds."""
    built_in = BUILT_IN_COLLECTIONS.get(collection or "")
    return built_in.roles[0] if built_in is not None and len(built_in.roles) == 1 else otherwise


def _named(collection: str | None) -> tuple[str, ...]:
    return (collection,) if collection else ()
