"""Copies of weights within a bound of memory, taken before an optimizer changes them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

#: Elements that are examined of a parameter that is larger than the bound.
_SAMPLE = 1 << 20


class WantedCopy(NamedTuple):
    """A parameter of which a copy is wanted.

    Attributes:
        parameter: The parameter.
        values: The array to copy.
        item: Handed back with the copy.
    """

    parameter: Any
    values: Any
    item: Any


class UpdateCopies:
    """Copies that never take more than a bound together.

    Where all parameters of an optimizer would take more, groups of them take turns over captured steps. For the
    training thread.

    Args:
        copied: Copies an array into the memory of an earlier copy of an array that was alike; into new memory where
            there is none.
        hold: Called with the device and the number of bytes more that are held there.
    """

    def __init__(self, copied: Callable[[Any, Any], Any], hold: Callable[[str, int], None]) -> None:
        self._copied = copied
        self._hold = hold
        self._rotation: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # By the parameter's identity: memory that is used again, since fresh pages cost more than the copying.
        self._copies: dict[int, tuple[weakref.ref[Any], Any]] = {}
        self._held = 0

    def take(self, optimizer: Any, parameters: Iterable[WantedCopy], bound: int) -> list[tuple[Any, Any]]:
        """Copy parameters of an optimizer, or the group of them whose turn it is; returns ``(item, copy)`` of each.

        Args:
            optimizer: The optimizer.
            parameters: None of them is larger than the bound.
            bound: Bytes that all copies may take together.
        """
        groups: list[list[WantedCopy]] = [[]]
        room = bound
        for wanted in parameters:
            if wanted.values.nbytes > room:
                groups.append([])
                room = bound
            room -= wanted.values.nbytes
            groups[-1].append(wanted)
        turn = self._rotation[optimizer] = (self._rotation.get(optimizer, -1) + 1) % len(groups)
        group = groups[turn]
        more = sum(wanted.values.nbytes for wanted in group if self._memory_of(wanted) is None)
        if self._held + more > bound:
            self.free({id(wanted.parameter) for wanted in group})
        return [(wanted.item, self._copy(wanted)) for wanted in group]

    def free(self, kept: Iterable[int] = ()) -> None:
        """Give back the memory of all parameters but these, by identity, and of those that are gone."""
        for number, (of, _) in list(self._copies.items()):
            if number not in kept or of() is None:
                self._drop(number)

    def _memory_of(self, wanted: WantedCopy) -> Any:
        """Memory for the values of this very parameter, where there is some already."""
        known, values = self._copies.get(id(wanted.parameter)), wanted.values
        if known is None or known[0]() is not wanted.parameter:
            return None
        memory = known[1]
        alike = memory.shape == values.shape and memory.dtype == values.dtype and memory.device == values.device
        return memory if alike else None

    def _copy(self, wanted: WantedCopy) -> Any:
        memory = self._memory_of(wanted)
        if memory is not None:
            return self._copied(wanted.values, memory)
        number = id(wanted.parameter)
        self._drop(number)
        copy = self._copied(wanted.values, None)
        self._copies[number] = weakref.ref(wanted.parameter), copy
        self._count(copy, 1)
        return copy

    def _drop(self, number: int) -> None:
        known = self._copies.pop(number, None)
        if known is not None:
            self._count(known[1], -1)

    def _count(self, copy: Any, sign: int) -> None:
        self._held += sign * copy.nbytes
        self._hold(str(copy.device), sign * copy.nbytes)


def sample_stride(shape: Sequence[int], item_bytes: int, bound: int) -> int:
    """Stride of the sample of a parameter that is too large to copy; 0 where not even a sample fits.

    Args:
        shape: Of the parameter, as it lies in memory.
        item_bytes: Bytes of an element.
        bound: Bytes that the copy may take.
    """
    # Twice the sample: the new values are read from a copy in one piece.
    most = min(_SAMPLE, bound // (2 * item_bytes))
    if not most:
        return 0
    stride = -(-math.prod(shape) // most)
    # A stride that shares a factor with the row's length would reach few columns only.
    while math.gcd(stride, shape[-1]) > 1:
        stride += 1
    return stride
