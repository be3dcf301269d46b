"""What a script records by hand, under the same law as an adapter's callbacks: a training never fails for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.config import BUILT_IN_COLLECTIONS
from watchglass.record import Captured, OpenStep
from watchglass.records import Mode, Role, TensorInfo
from watchglass.stats import exact_reduction, histograms_of, of_array
from watchglass.store import RawTensor

if TYPE_CHECKING:
    from watchglass.capture.hook import Hook

_log = logging.getLogger("watchglass")


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
        step = self._hook.lawful(self._begin, mode)
        try:
            yield step or OpenStep(-1, mode, -1, -1, 0)
        finally:
            if step is not None:
                self._hook.lawful(self._end, step)

    def save_scalar(self, name: str, value: Any, collection: str | None) -> None:
        """Record one number at the current step."""
        self._hook.lawful(self._save_scalar, name, value, collection)

    def save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        """Record a tensor at the current step."""
        self._hook.lawful(self._save_tensor, name, value, collection)

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
        try:
            number = float(value)
        except Exception:
            self._refuse(name, f"save_scalar needs a number but got {value!r:.80}")
            return
        role, tags = _role_of(collection, Role.METRIC), _named(collection)
        self._hook.tensor_id(name, lambda: TensorInfo(0, name, role, dtype="float64", collections=tags))
        self._hook.add_scalar(self._hook.current_records(), name, number, role)

    def _save_tensor(self, name: str, value: Any, collection: str | None) -> None:
        role, tags = _role_of(collection, Role.CUSTOM), _named(collection)
        keep = self._hook.plan.keep_saved(name, tags, role)
        if keep is None:
            return
        array = _array(value)
        if array is None:
            self._refuse(name, f"save_tensor needs an array of numbers but got {value!r:.80}")
            return
        tensor_id = self._hook.tensor_id(name, lambda: self._described(name, array, role, tags))
        records = self._hook.current_records()
        histograms = histograms_of([array]) if keep.histogram and array.dtype.kind != "c" else None
        records.statistics.append(Captured([tensor_id], of_array(array)[None], histograms=histograms))
        records.reductions += [(tensor_id, wanted, exact_reduction(array, wanted)) for wanted in keep.reductions]
        if keep.raw:
            records.raw.append(RawTensor(tensor_id, array.copy()))
        if keep.shape:
            records.facts.append(("shape", "save_tensor", {"tensor": name, "shape": list(array.shape)}))

    def _described(self, name: str, array: NDArray[Any], role: Role, tags: tuple[str, ...]) -> TensorInfo:
        collections = self._hook.plan.collections_of(name, role, tags=tags)
        trainable = True if role in (Role.WEIGHT, Role.BIAS) else None
        return TensorInfo(
            0, name, role, shape=array.shape, dtype=str(array.dtype), trainable=trainable, collections=collections
        )  # fmt: skip

    def _refuse(self, name: str, why: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            _log.warning("watchglass: %r is not recorded: %s", name, why)


def _array(value: Any) -> NDArray[Any] | None:
    """A value as numbers, None where it is not made of numbers."""
    try:
        array = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
    except Exception:
        return None
    return array if array.dtype.kind in "biufc" else None


def _role_of(collection: str | None, otherwise: Role) -> Role:
    """What a tensor is that a script files under a collection: what a built-in one holds."""
    built_in = BUILT_IN_COLLECTIONS.get(collection or "")
    return built_in.roles[0] if built_in is not None and len(built_in.roles) == 1 else otherwise


def _named(collection: str | None) -> tuple[str, ...]:
    return (collection,) if collection else ()
