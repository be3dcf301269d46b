"""What a script records by hand, under the same law as an adapter's callbacks: no training run fails because of it."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.errors import InvalidValueError
from watchglass.record import Captured, OpenStep, Readback
from watchglass.records import Mode, Role, TensorInfo
from watchglass.stats import exact_reduction, histograms_of, of_array
from watchglass.store import RawTensor

if TYPE_CHECKING:
    from watchglass.capture.hook import Hook

_log = logging.getLogger("watchglass")

#: Kinds of dtypes that NumPy has: the others, bfloat16 for one, become wider ones that hold the same values.
_NUMPY = frozenset(np.dtype(code).name for code in "?bBhHiIqQefdFD")


class _Numbers(NamedTuple):
    """A tensor that a script gave.

    Attributes:
        shape: Its shape.
        dtype: Name of its dtype.
        array: Its elements, or a readback of them where they are on a device.
        is_complex: Whether they are complex.
    """

    shape: tuple[int, ...]
    dtype: str
    array: NDArray[Any] | Readback
    is_complex: bool

    def made(self, make: Callable[[NDArray[Any]], Any]) -> Any:
        """What ``make`` makes of the elements, or a readback of it: the training's thread waits for no device."""
        return make(self.array) if isinstance(self.array, np.ndarray) else _Later(self.array, make)


class _Later:
    """What the recorder's thread makes of elements once they have come from their device."""

    def __init__(self, rows: Readback, make: Callable[[NDArray[Any]], Any]) -> None:
        self._rows = rows
        self._make = make

    def resolve(self) -> Any:
        """What is made of them; waits for the device."""
        return self._make(self._rows.resolve())


class ByHand:
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

    def save_scalar(self, name: str, value: Any, collection: str | None) -> None:
        """Record one number at the current step."""
        self._hook.guard.lawful(self._save_scalar, name, value, collection)

    def save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        """Record a tensor at the current step."""
        self._hook.guard.lawful(self._save_tensor, name, value, collection)

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

    def _save_scalar(self, name: str, value: Any, collection: str | None) -> None:
        if _is_in_graph(value):
            return
        try:
            number = _number(value)
        except Exception:
            self._refuse(name, "save_scalar needs a number", value)
            return
        role, tags = _role_of(collection, Role.METRIC), _named(collection)
        self._hook.tensor_id(name, lambda: TensorInfo(0, name, role, dtype="float64", collections=tags))
        self._hook.add_scalar(self._hook.saved_records(), name, number, role)

    def _save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        role, tags = _role_of(collection, Role.CUSTOM), _named(collection)
        keep = self._hook.plan.keep_saved(name, tags, role)
        if keep is None or _is_in_graph(value):
            return
        numbers = _numbers(value)
        if numbers is None:
            self._refuse(name, "save_tensor needs an array of numbers", value)
            return
        tensor_id = self._hook.tensor_id(name, lambda: self._described(name, numbers, role, tags))
        records = self._hook.saved_records()
        rows, histograms = numbers.made(lambda array: of_array(array)[None]), None
        if keep.histogram and not numbers.is_complex:
            histograms = numbers.made(lambda array: histograms_of([array]))
        records.statistics.append(Captured([tensor_id], rows, histograms=histograms))
        for wanted in keep.reductions:
            number = numbers.made(functools.partial(exact_reduction, reduction=wanted))
            records.reductions.append((tensor_id, wanted, number))
        if keep.raw:
            array = numbers.array
            copied: Any = array.copy() if isinstance(array, np.ndarray) else array
            records.raw.append(RawTensor(tensor_id, copied))
        if keep.shape:
            records.facts.append(("shape", "save_tensor", {"tensor": name, "shape": list(numbers.shape)}))

    def _described(self, name: str, numbers: _Numbers, role: Role, tags: tuple[str, ...]) -> TensorInfo:
        collections = self._hook.plan.collections_of(name, role, tags=tags)
        trainable = True if role in (Role.WEIGHT, Role.BIAS) else None
        return TensorInfo(
            0, name, role, shape=numbers.shape, dtype=numbers.dtype, trainable=trainable, collections=collections
        )  # fmt: skip

    def _refuse(self, name: str, needs: str, value: Any) -> None:
        if name not in self._refused:
            self._refused.add(name)
            _log.warning("watchglass: %r is not recorded: %s but got %.80r", name, needs, value)


def mode_of(mode: Mode | str) -> Mode:
    """The mode that a script means.

    Raises:
        InvalidValueError: None that a step can have.
    """
    if isinstance(mode, Mode) and mode is not Mode.GLOBAL:
        return mode
    try:
        found = Mode[str(mode).upper()]
    except KeyError:
        found = Mode.GLOBAL
    if found is Mode.GLOBAL:
        raise InvalidValueError(f'mode must be "train", "eval" or "predict" but got {mode!r}')
    return found


def _number(value: Any) -> Any:
    """A value as a float, or a readback of one where it is on a device."""
    if not _is_tensor(value) or value.is_cpu or value.is_meta or value.is_complex():
        return float(value)
    from watchglass.capture.pytorch.reduce import DeviceRows

    number = value.detach().reshape(())
    return DeviceRows(number.float() if value.device.type == "mps" else number.double())


def _numbers(value: Any) -> _Numbers | None:
    """A value as numbers, None where it is not made of numbers."""
    try:
        return _of_tensor(value) if _is_tensor(value) else _of_array(np.asarray(value), "")
    except Exception:
        return None


def _of_array(array: NDArray[Any], dtype: str) -> _Numbers | None:
    if array.dtype.kind not in "biufc":
        return None
    return _Numbers(array.shape, dtype or str(array.dtype), array, array.dtype.kind == "c")


def _of_tensor(value: Any) -> _Numbers | None:
    from watchglass.capture.pytorch.reduce import DeviceRows, plain

    tensor: Any = plain(value)
    dtype = str(value.dtype).removeprefix("torch.")
    if tensor is None:
        return None
    if str(tensor.dtype).removeprefix("torch.") not in _NUMPY:
        tensor = tensor.cfloat() if tensor.is_complex() else tensor.float()
    if tensor.is_cpu:
        return _of_array(tensor.numpy(), dtype)
    return _Numbers(tuple(tensor.shape), dtype, DeviceRows(tensor), tensor.is_complex())


def _is_in_graph(value: Any) -> bool:
    """Whether what is done to a value now becomes part of a CUDA graph instead of being done."""
    if not _is_tensor(value) or not value.is_cuda:
        return False
    from watchglass.capture.pytorch.compiled.graphs import in_graph_capture

    return in_graph_capture(value)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # whose tensor it is has been imported
    return torch is not None and isinstance(value, torch.Tensor)


def _role_of(collection: str | None, otherwise: Role) -> Role:
    """What a tensor is that a script files under a collection: what a built-in one holds."""
    built_in = BUILT_IN_COLLECTIONS.get(collection or "")
    return built_in.roles[0] if built_in is not None and len(built_in.roles) == 1 else otherwise


def _named(collection: str | None) -> tuple[str, ...]:
    return (collection,) if collection else ()
