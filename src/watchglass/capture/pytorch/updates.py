"""Exact updates within a bound of memory: copies of weights, taken before an optimizer changes them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.hook import Hook
from watchglass.capture.places import ParameterPlace
from watchglass.capture.pytorch.exhaustion import is_out_of_memory
from watchglass.capture.pytorch.reduce import plain
from watchglass.capture.pytorch.saving import Item, Saving
from watchglass.record import StepRecords
from watchglass.records import Role

#: Elements that are looked at of a parameter that is larger than the bound.
_SAMPLE = 1 << 20


class _Wanted(NamedTuple):
    """A parameter whose update is asked for.

    Attributes:
        item: The parameter under the name of its update.
        values: What is copied of it, where that is.
        stride: 1, or of how many elements one is copied.
    """

    item: Item
    values: Tensor
    stride: int

    @property
    def nbytes(self) -> int:
        """What the copy takes."""
        return self.values.numel() * self.values.element_size()


class UpdateCopies:
    """Saves what updates change, as ``update/fc1.weight``.

    Copies never take more than ``capture_memory_bytes`` together: where those of all parameters would, groups of
    parameters take turns over captured steps. Of a parameter that is larger than the bound by itself a fixed sample of
    elements is copied, and what is saved is marked so.
    """

    def __init__(self, hook: Hook, saving: Saving) -> None:
        self._hook = hook
        self._saving = saving
        self._turns: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._before: list[tuple[_Wanted, Tensor]] = []
        # By the parameter's identity: memory that is used again, since fresh pages cost more than the copying.
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._held = 0

    def take(
        self, records: StepRecords, optimizer: Optimizer, parameters: Iterable[tuple[Tensor, str, ParameterPlace]]
    ) -> None:
        """Copy what an optimizer is about to change, or the group whose turn it is."""
        self._before = []
        groups: list[list[_Wanted]] = [[]]
        room = bound = self._hook.config.capture_memory_bytes
        for parameter, name, place in parameters:
            item = Item(
                parameter, f"update/{name}", place.place, unit_axis=0 if parameter.dim() else None, trainable=True
            )
            values = self._saving.readable(item) if self._saving.keep(Role.UPDATE, item) is not None else None
            wanted = None if values is None else _within(item, values, bound)
            if wanted is None:
                continue
            if wanted.nbytes > room:
                groups.append([])
                room = bound
            room -= wanted.nbytes
            groups[-1].append(wanted)
        turn = self._turns[optimizer] = (self._turns.get(optimizer, -1) + 1) % len(groups)
        try:
            self._before = self._copied(groups[turn], bound)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._saving.give_up(records, Role.UPDATE, error)
            self._free(())

    def save(self, records: StepRecords) -> None:
        """Record the updates, now that the optimizer has changed the parameters."""
        before, self._before = self._before, []
        items = []
        for wanted, old in before:
            item = wanted.item._replace(before=old)
            if wanted.stride > 1:
                sample = _sampled(item.tensor, wanted.stride)
                if sample is None or sample.shape != old.shape:
                    continue
                item = item._replace(tensor=sample, whole=item.tensor, sampled=True)
            items.append(item)
        if items and not self._saving.save_all(records, Role.UPDATE, items):
            self._free(())

    def forget(self) -> None:
        """Drop what was kept for an update that never came."""
        self._before = []

    def _copied(self, group: list[_Wanted], bound: int) -> list[tuple[_Wanted, Tensor]]:
        more = sum(wanted.nbytes for wanted in group if self._memory_of(wanted) is None)
        if self._held + more > bound:
            self._free({id(wanted.item.tensor) for wanted in group})
        return [(wanted, self._copy(wanted)) for wanted in group]

    def _memory_of(self, wanted: _Wanted) -> Tensor | None:
        """Memory for the values of this very parameter, where there is some already."""
        values, (of, memory) = wanted.values, self._copies.get(id(wanted.item.tensor), (None, wanted.values))
        alike = memory.shape == values.shape and memory.dtype is values.dtype and memory.device == values.device
        return memory if of is not None and of() is wanted.item.tensor and alike else None

    def _copy(self, wanted: _Wanted) -> Tensor:
        memory = self._memory_of(wanted)
        if memory is None:
            parameter = wanted.item.tensor
            self._drop(id(parameter))
            memory = torch.empty_like(wanted.values, requires_grad=False)
            self._copies[id(parameter)] = weakref.ref(parameter), memory
            self._count(memory, 1)
        return memory.copy_(wanted.values)

    def _free(self, kept: Iterable[int]) -> None:
        """Give back the memory of all parameters but these, and of those that are gone."""
        for number, (of, _) in list(self._copies.items()):
            if number not in kept or of() is None:
                self._drop(number)

    def _drop(self, number: int) -> None:
        known = self._copies.pop(number, None)
        if known is not None:
            self._count(known[1], -1)

    def _count(self, copy: Tensor, sign: int) -> None:
        self._held += sign * copy.nbytes
        self._hook.cost.memory.hold(str(copy.device), sign * copy.nbytes)


def _within(item: Item, values: Tensor, bound: int) -> _Wanted | None:
    """What is copied of a parameter's values, None where not even a sample has room."""
    if values.numel() * values.element_size() <= bound:
        return _Wanted(item, values, 1)
    # Twice the sample: the new values are read from a copy in one piece.
    most = min(_SAMPLE, bound // (2 * values.element_size()))
    ordered = _in_memory_order(values)
    if not most or not ordered.is_contiguous():
        return None
    stride = -(-values.numel() // most)
    # A multiple of a row's length, or of a part of it, would look at few columns only.
    while math.gcd(stride, ordered.shape[-1]) > 1:
        stride += 1
    return _Wanted(item, ordered.view(-1)[::stride], stride)


def _sampled(parameter: Tensor, stride: int) -> Tensor | None:
    """The same elements of a parameter again: it may have other memory now."""
    values = plain(parameter)
    return None if values is None else _in_memory_order(values).reshape(-1)[::stride]


def _in_memory_order(values: Tensor) -> Tensor:
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True))
