"""Values that a script saves, and modes that it names: read as numbers, without a wait for a device."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import Numbers, arrays_of
from watchglass.capture.deferred_values import DeferredNumbers
from watchglass.capture.pending_records import PendingRecords
from watchglass.capture.plan import Plan
from watchglass.capture.tensor_ids import TensorIds
from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.record import Captured, Readback
from watchglass.records import RAW, REDUCTIONS, SCALARS, STATISTICS, Role, TensorInfo, facts
from watchglass.stats import exact_reduction, histograms_of, of_array
from watchglass.store import RawTensor

_log = logging.getLogger("watchglass")


class SavedValues:
    """Records the numbers and tensors that a script, or an adapter, saves.

    Args:
        plan: What is kept of them.
        ids: Their numbers.
        pending: The records that they belong to.
    """

    def __init__(self, plan: Plan, ids: TensorIds, pending: PendingRecords) -> None:
        self._plan, self._ids, self._pending = plan, ids, pending
        # Names of values that are not numbers: each is reported once.
        self._refused: set[str] = set()

    def save_scalar(self, name: str, value: Any, collection: str | None) -> None:
        """Record one number; see ``Hook.save_scalar``."""
        number = self._read(name, value, number_of, "save_scalar needs a number")
        if number is None:
            return
        role, tags = role_of(collection, Role.METRIC), tuple(filter(None, (collection,)))
        info = functools.partial(TensorInfo, 0, name, role, dtype="float64", collections=tags)
        row = self._ids.of(name, info), 1.0, number
        self._pending.saved().saved.setdefault(SCALARS, []).append(row)

    def save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        """Record statistics of a tensor, and what else the plan keeps of it; see ``Hook.save_tensor``."""
        role, tags = role_of(collection, Role.CUSTOM), tuple(filter(None, (collection,)))
        keep = self._plan.keep_saved(name, tags, role)
        if keep is None:
            return
        numbers = self._read(
            name, value, lambda value: arrays_of(value).read(value), "save_tensor needs an array of numbers"
        )
        if numbers is None:
            return
        elements = numbers.elements
        tensor_id = self._ids.of(name, lambda: self._described(name, numbers, role, tags))
        # Apart from what is captured, which is dropped where a step turns out not to be captured.
        records = self._pending.saved()
        saved = records.saved
        rows, histograms = computed(elements, lambda array: of_array(array)[None]), None
        if keep.histogram and not numbers.is_complex:
            histograms = computed(elements, lambda array: histograms_of([array]))
        saved.setdefault(STATISTICS, []).append(Captured([tensor_id], rows, histograms=histograms))
        for wanted in keep.reductions:
            number = computed(elements, functools.partial(exact_reduction, reduction=wanted))
            saved.setdefault(REDUCTIONS, []).append((tensor_id, wanted, number))
        if keep.raw:
            copied: Any = elements.copy() if isinstance(elements, np.ndarray) else elements
            saved.setdefault(RAW, []).append(RawTensor(tensor_id, copied))
        if keep.shape:
            records.add_fact(facts.TensorShape(name, tuple(numbers.shape)), "save_tensor")

    def _described(self, name: str, numbers: Numbers, role: Role, tags: tuple[str, ...]) -> TensorInfo:
        collections = self._plan.collections_of(name, role, tags=tags)
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


def number_of(value: Any) -> Any:
    """A value as a float, or a readback for a value on a device; None where it may not be read now."""
    if isinstance(value, (float, int)):
        return float(value)
    numbers = arrays_of(value).read(value)
    if numbers is None:
        return None
    if numbers.is_complex or math.prod(numbers.shape) != 1:
        raise ValueError("not one number")
    return computed(numbers.elements, lambda array: float(array.reshape(())))


def _numbers_of(value: Any) -> Numbers | None:
    return arrays_of(value).read(value)


def computed(elements: NDArray[Any] | Readback, make: Callable[[NDArray[Any]], Any]) -> Any:
    """The result of ``make`` for these elements, or a readback of it: the training thread waits for no device."""
    return make(elements) if isinstance(elements, np.ndarray) else DeferredNumbers(lambda: make(elements.resolve()))


def role_of(collection: str | None, otherwise: Role) -> Role:
    """The role of a tensor that a script files under a collection: that of a built-in one."""
    built_in = BUILT_IN_COLLECTIONS.get(collection or "")
    return built_in.roles[0] if built_in is not None and len(built_in.roles) == 1 else otherwise
