"""Exact updates: parameters after an optimizer's step less copies from before it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.module_places import ParameterPlace
from watchglass.capture.port import Port
from watchglass.capture.pytorch.device.tensor_batches import memory_order
from watchglass.capture.pytorch.saving.out_of_memory import is_out_of_memory
from watchglass.capture.pytorch.saving.reduce import plain
from watchglass.capture.pytorch.saving.saved_tensors import Item, Saving
from watchglass.capture.update_copies import UpdateCopies, WantedCopy, sample_stride
from watchglass.record import CapturedRecords
from watchglass.records import Role


class Updates:
    """Saves the change of each parameter, as ``update/fc1.weight``.

    All copies together take at most ``capture_memory_bytes``. Of a parameter larger than that, a fixed sample of
    elements is copied, and its statistics are marked as sampled. For the training thread.
    """

    def __init__(self, port: Port, saving: Saving) -> None:
        self._port = port
        self._saving = saving
        self._copies = UpdateCopies(_copied, port.cost.memory.hold)
        # Each parameter with its stride (every stride-th element is copied), and the copy.
        self._before: list[tuple[tuple[Item, int], Tensor]] = []

    def take(
        self, records: CapturedRecords, optimizer: Optimizer, parameters: Iterable[tuple[Tensor, str, ParameterPlace]]
    ) -> None:
        """Copy the parameters of an optimizer, or the group whose turn it is."""
        self._before = []
        bound = self._port.config.capture_memory_bytes
        wanted = (self._wanted(*row, bound) for row in parameters)
        try:
            self._before = self._copies.take(optimizer, filter(None, wanted), bound)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._saving.give_up(records, Role.UPDATE, error)
            self._copies.free()

    def save(self, records: CapturedRecords) -> None:
        """Record the updates, now that the optimizer has changed the parameters."""
        before, self._before = self._before, []
        items = []
        for (item, stride), old in before:
            item = item._replace(before=old)
            if stride > 1:
                # The optimizer may have replaced its memory.
                values = plain(item.tensor)
                sample = None if values is None else _in_memory_order(values).reshape(-1)[::stride]
                if sample is None or sample.shape != old.shape:
                    continue
                item = item._replace(tensor=sample, whole=item.tensor, sampled=True)
            items.append(item)
        if items and not self._saving.save_all(records, Role.UPDATE, items):
            self._copies.free()

    def forget(self) -> None:
        """Drop the copies: the update did not happen."""
        self._before = []

    def _wanted(self, parameter: Tensor, name: str, place: ParameterPlace, bound: int) -> WantedCopy | None:
        item = Item(parameter, f"update/{name}", place.place, unit_axis=0 if parameter.dim() else None, trainable=True)
        values = self._saving.readable(item) if self._saving.keep(Role.UPDATE, item) is not None else None
        if values is None:
            return None
        if values.nbytes <= bound:
            return WantedCopy(parameter, values, (item, 1))
        ordered = _in_memory_order(values)
        stride = sample_stride(ordered.shape, values.element_size(), bound)
        if not stride or not ordered.is_contiguous():
            return None
        return WantedCopy(parameter, ordered.view(-1)[::stride], (item, stride))


def _in_memory_order(values: Tensor) -> Tensor:
    return values.permute(memory_order(values))


def _copied(values: Tensor, memory: Tensor | None) -> Tensor:
    return (torch.empty_like(values, requires_grad=False) if memory is None else memory).copy_(values)
