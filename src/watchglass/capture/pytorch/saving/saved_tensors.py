"""The one way in which a tensor of PyTorch gets into the records of a step."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from watchglass.capture.module_places import NOWHERE, Place
from watchglass.capture.plan import Keep
from watchglass.capture.port import Port
from watchglass.capture.pytorch.compiled.graphs import captured
from watchglass.capture.pytorch.device.device_statistics import DeviceStatistics
from watchglass.capture.pytorch.saving import reduce
from watchglass.capture.pytorch.saving.out_of_memory import is_out_of_memory, report_exhaustion
from watchglass.capture.pytorch.saving.reduce import is_plain
from watchglass.record import Captured, CapturedRecords
from watchglass.records import RAW, REDUCTIONS, STATISTICS, Role, TensorInfo, facts

_log = logging.getLogger("watchglass")
_UNKNOWN: Any = object()


class Item(NamedTuple):
    """A tensor to be saved.

    Attributes:
        tensor: Any tensor; one whose values cannot be read is left out.
        name: Its name in the run.
        place: The module it belongs to.
        tags: Its tags from structure, see :class:`~watchglass.config.Collection`.
        unit_axis: Axis that counts units, or None.
        trainable: Whether an optimizer may change it; None where that has no meaning.
        before: Its older value; then the difference is saved.
        sampled: Whether it stands for more than it holds: a fixed sample.
        whole: The tensor that it is a sample of, where that is one; then only its statistics are saved.
    """

    tensor: Tensor
    name: str
    place: Place = NOWHERE
    tags: tuple[str, ...] = ()
    unit_axis: int | None = None
    trainable: bool | None = None
    before: Tensor | None = None
    sampled: bool = False
    whole: Tensor | None = None


class Saving:
    """Saves tensors as the plan asks: statistics, histogram, exact reductions, shape, the tensor itself.

    Args:
        port: Where they go.
        on_device: Statistics of tensors on devices; sent to the host when a step ends.
    """

    def __init__(self, port: Port, on_device: DeviceStatistics | None = None) -> None:
        self._port = port
        self.on_device = on_device or DeviceStatistics(port.cost)
        port.on_finished.append(lambda step: self.on_device.send())
        self._seed = 0
        # Ids by role and name.
        self._ids: dict[Role, dict[str, int]] = {role: {} for role in Role}
        self._unreadable: set[str] = set()
        self._has_met_meta = False
        # Kinds of tensors that memory ran out for.
        self._given_up: set[Role] = set()

    def keep(self, role: Role, item: Item) -> Keep | None:
        """The form in which a tensor is kept at this step, None for none."""
        if role in self._given_up:
            return None
        return self._port.plan.keep(item.name, role, item.place, item.tags)

    def give_up(self, records: CapturedRecords, role: Role, error: Exception) -> None:
        """Memory ran out for tensors of a role: save none of them from now on."""
        if role not in self._given_up:
            self._given_up.add(role)
            report_exhaustion(records, f"{role.value.replace('_', ' ')} tensors", error)

    def save(self, records: CapturedRecords, role: Role, item: Item) -> int | None:
        """Save one tensor; returns its id, or None where it is not kept or cannot be read."""
        saved = self.save_all(records, role, (item,))
        return saved[0] if saved else None

    def save_all(
        self, records: CapturedRecords, role: Role, items: Sequence[Item], scale: Tensor | None = None
    ) -> list[int]:
        """Save tensors, each read once; returns the ids of those that are kept.

        Args:
            records: Records of the step.
            role: Role of the tensors.
            items: The tensors.
            scale: Factor of a scaler: values are divided by it.
        """
        if captured():
            return []
        lengths = {kind: len(rows) for kind, rows in records.rows.items()}
        try:
            return self._saved(records, role, items, scale)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for kind, rows in records.rows.items():
                del rows[lengths.get(kind, 0) :]
            self.give_up(records, role, error)
            return []

    def _saved(self, records: CapturedRecords, role: Role, items: Sequence[Item], scale: Tensor | None) -> list[int]:
        # Runs for every tensor of a captured step: known answers are looked up here.
        keeps, known = self._port.plan.answers, self._ids[role]
        given_up = role in self._given_up
        ids: list[int] = []
        together: dict[tuple[torch.device, bool, bool, bool], tuple[list[int], list[Tensor], list[Tensor]]] = {}
        kind: tuple[torch.device, bool, bool, bool] | None = None
        chosen: tuple[list[int], list[Tensor], list[Tensor]] = ([], [], [])
        for item in items:
            keep = None if given_up else keeps.get(item.name, _UNKNOWN)
            if keep is _UNKNOWN:
                keep = self.keep(role, item)
            tensor = item.tensor
            value = None if keep is None else tensor if is_plain(tensor) else self.readable(item)
            if keep is None or value is None:
                continue
            tensor_id = known.get(item.name)
            if tensor_id is None:
                info = functools.partial(self._info, role, item)
                tensor_id = known[item.name] = self._port.ids.of((role, item.name), info)
            ids.append(tensor_id)
            before = None if item.before is None else reduce.plain(item.before)
            this = (value.device, keep.histogram, item.sampled, before is not None)
            if this != kind:
                kind, chosen = this, together.setdefault(this, ([], [], []))
            chosen[0].append(tensor_id)
            chosen[1].append(value)
            if before is not None:
                chosen[2].append(before)
            if keep.raw or keep.reductions or keep.shape:
                self._save_more(records, keep, tensor_id, item, _value(value.detach(), before, scale))
        for (device, histogram, sampled, _), (saved, values, older) in together.items():
            self._seed += 1
            read = reduce.summaries if device.type == "cpu" else self.on_device.summaries
            rows, histograms = read(values, older or None, scale, histograms=histogram, seed=self._seed)
            records.rows[STATISTICS].append(Captured(saved, rows, sampled, histograms))
        return ids

    def _save_more(self, records: CapturedRecords, keep: Keep, tensor_id: int, item: Item, value: Tensor) -> None:
        if keep.shape:
            shape = tuple((value if item.whole is None else item.whole).shape)
            records.add_fact(facts.TensorShape(item.name, shape), "capture")
        if item.whole is not None:
            return
        if keep.raw:
            records.rows[RAW].append(reduce.raw(tensor_id, value))
        for reduction in keep.reductions:
            records.rows[REDUCTIONS].append((tensor_id, reduction, reduce.exact(value, reduction)))

    def readable(self, item: Item) -> Tensor | None:
        """A tensor's values as a plain one; None, and a warning the first time, where they cannot be read."""
        try:
            value = reduce.plain(item.tensor)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # The class of the tensor may raise anything.
            if item.name not in self._unreadable:
                self._unreadable.add(item.name)
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                _log.warning("watchglass: %s is not recorded: %s", item.name, reason)
            return None
        if value is None and not self._has_met_meta:
            self._has_met_meta = True
            _log.warning(
                "watchglass: %s is not recorded, nor is anything else on the meta device, where tensors have no "
                "values; give them some before training: to_empty(device=...), then load or initialize them",
                item.name,
            )
        return value

    def _info(self, role: Role, item: Item) -> TensorInfo:
        tensor = item.tensor if item.whole is None else item.whole
        return item.place.describe(
            item.name, role, shape=_shape(tensor), dtype=str(tensor.dtype).removeprefix("torch."),
            unit_axis=item.unit_axis, trainable=item.trainable, placement=_placement(tensor),
            collections=self._port.plan.collections_of(item.name, role, item.place, item.tags),
        )  # fmt: skip


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """Its shape; of a nested tensor, which has none, that of all its values together."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    values = reduce.plain(tensor)
    return () if values is None else tuple(values.shape)


def _value(tensor: Tensor, before: Tensor | None, scale: Tensor | None) -> Tensor:
    value = tensor if before is None else tensor - before
    return value if scale is None else value / scale


def _placement(tensor: Tensor) -> str:
    """How this rank's part relates to the whole of a distributed tensor."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return "local"
    if any(placement.is_shard() for placement in placements):
        return "shard"
    return "partial" if any(placement.is_partial() for placement in placements) else "replicated"
