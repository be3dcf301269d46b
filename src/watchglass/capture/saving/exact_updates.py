"""Exact updates: parameters after an optimizer's step less copies from before it, within a bound of memory."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.port import Port
from watchglass.capture.saving.saving import Item, Saving, is_out_of_memory
from watchglass.record import CapturedRecords
from watchglass.records import Role

#: Elements that are examined of a parameter that is larger than the bound.
_SAMPLE = 1 << 20


class _CopyMemory(NamedTuple):
    """Memory for a copy."""

    #: Equal for values that can be copied into it: their shape, dtype and device, and the stride of the sample.
    alike: tuple[tuple[int, ...], str, str, int]
    nbytes: int  #: Its size.
    copy: Any = None  #: The copy.


class _WantedCopy(NamedTuple):
    """A copy that is wanted of a parameter: of its values, or a sample of them, in such memory."""

    item: Item
    values: Any
    memory: _CopyMemory


class Updates:
    """Saves the change of each parameter, as ``update/fc1.weight``.

    All copies together take at most ``capture_memory_bytes``: where all parameters of an optimizer would take more,
    groups of them take turns over captured steps. Of a parameter larger than that, a fixed sample of elements is
    copied, and its statistics are marked as sampled. For the training thread.
    """

    def __init__(self, port: Port, saving: Saving) -> None:
        self._port, self._saving = port, saving
        self._rotation: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # By the parameter's identity: memory that is used again, since fresh pages cost more than the copying.
        self._copies: dict[int, tuple[weakref.ref[Any], _CopyMemory]] = {}
        self._held = 0
        self._before: list[tuple[Item, int, Any]] = []

    def take(
        self, records: CapturedRecords, optimizer: Any, parameters: Iterable[tuple[Any, str, ParameterPlace]]
    ) -> None:
        """Copy the parameters of an optimizer, or the group whose turn it is.

        Args:
            records: Records of the step.
            optimizer: What updates them.
            parameters: Each with its name and its place.
        """
        self._before = []
        bound = self._port.config.capture_memory_bytes
        try:
            wanted = filter(None, (self._wanted(*row, bound) for row in parameters))
            group = self._group(optimizer, wanted, bound)
            copies = [(each, self._copy(each)) for each in group]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._saving.give_up(records, Role.UPDATE, error)
            self._free()
        else:
            self._before = [(each.item, each.memory.alike[3], copy) for each, copy in copies if copy is not None]

    def save(self, records: CapturedRecords) -> None:
        """Record the updates, now that the optimizer has changed the parameters."""
        before, self._before = self._before, []
        items = []
        for item, stride, old in before:
            if stride == 1:
                items.append(item._replace(before=old))
                continue
            # The optimizer may have replaced its memory.
            values = self._saving.readable(item)
            sample = None if values is None else self._saving.arrays_of(values).copy(values, stride=stride)
            if sample is not None and sample.shape == old.shape:
                items.append(item._replace(tensor=sample, before=old, whole=item.tensor, sampled=True))
        if items and not self._saving.save_all(records, Role.UPDATE, items):
            self._free()

    def forget(self) -> None:
        """Drop the copies: the update did not happen."""
        self._before = []

    def _wanted(self, parameter: Any, name: str, place: ParameterPlace, bound: int) -> _WantedCopy | None:
        axis = place.axis_of_units(len(parameter.shape))
        item = Item(parameter, f"update/{name}", place.place, unit_axis=axis, trainable=True)
        values = self._saving.readable(item) if self._saving.keep(Role.UPDATE, item) is not None else None
        if values is None:
            return None
        about = self._saving.arrays_of(values).describe(values)
        stride = 1 if about.nbytes <= bound else _sample_stride(about.shape, about.itemsize, bound)
        if not stride:
            return None
        nbytes = about.nbytes if stride == 1 else -(-math.prod(about.shape) // stride) * about.itemsize
        return _WantedCopy(item, values, _CopyMemory((about.shape, about.dtype, about.device, stride), nbytes))

    def _group(self, optimizer: Any, parameters: Iterable[_WantedCopy], bound: int) -> list[_WantedCopy]:
        groups: list[list[_WantedCopy]] = [[]]
        room = bound
        for wanted in parameters:
            if wanted.memory.nbytes > room:
                groups.append([])
                room = bound
            room -= wanted.memory.nbytes
            groups[-1].append(wanted)
        turn = self._rotation[optimizer] = (self._rotation.get(optimizer, -1) + 1) % len(groups)
        group = groups[turn]
        more = sum(wanted.memory.nbytes for wanted in group if self._memory_of(wanted) is None)
        if self._held + more > bound:
            self._free({id(wanted.item.tensor) for wanted in group})
        return group

    def _free(self, kept: Iterable[int] = ()) -> None:
        """Give back the memory of all parameters but these, by identity, and of those that are gone."""
        for number, (of, _) in list(self._copies.items()):
            if number not in kept or of() is None:
                self._drop(number)

    def _memory_of(self, wanted: _WantedCopy) -> Any:
        """Memory for the values of this very parameter, where there is some already."""
        of, memory = self._copies.get(id(wanted.item.tensor), (lambda: None, wanted.memory))
        return memory.copy if of() is wanted.item.tensor and memory.alike == wanted.memory.alike else None

    def _copy(self, wanted: _WantedCopy) -> Any:
        known, parameter = self._memory_of(wanted), wanted.item.tensor
        copy = self._saving.arrays_of(wanted.values).copy(wanted.values, known, stride=wanted.memory.alike[3])
        if copy is not None and known is None:
            self._drop(id(parameter))
            memory = wanted.memory._replace(copy=copy)
            self._copies[id(parameter)] = weakref.ref(parameter), memory
            self._count(memory, 1)
        return copy

    def _drop(self, number: int) -> None:
        known = self._copies.pop(number, None)
        if known is not None:
            self._count(known[1], -1)

    def _count(self, memory: _CopyMemory, sign: int) -> None:
        self._held += sign * memory.nbytes
        self._port.cost.memory.hold(memory.alike[2], sign * memory.nbytes)


def _sample_stride(shape: tuple[int, ...], item_bytes: int, bound: int) -> int:
    """Stride of the sample of a parameter that is too large to copy; 0 where not even a sample fits."""
    # Twice the sample: the new values are read from a copy in one piece.
    most = min(_SAMPLE, bound // (2 * item_bytes))
    if not most:
        return 0
    total = math.prod(shape)
    stride = -(-total // most)
    # A stride that shares a factor with the length of an axis would reach few columns only.
    while math.gcd(stride, total) > 1:
        stride += 1
    return stride
