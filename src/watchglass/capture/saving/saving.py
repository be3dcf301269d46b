"""Saves tensors of any framework into the records of a step, as the plan says."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from watchglass.capture.arrays import Arrays, NoValuesError, OwnArray, Read, arrays_of
from watchglass.capture.module_places import NOWHERE, Place
from watchglass.capture.planning.cost import Cost
from watchglass.capture.planning.plan import Keep, Plan
from watchglass.capture.saving.tensor_ids import TensorIds
from watchglass.record import Captured, CapturedRecords
from watchglass.records import RAW, REDUCTIONS, STATISTICS, Role, RowKind, TensorInfo, facts
from watchglass.stats import exact_reduction
from watchglass.store import RawTensor

_log = logging.getLogger("watchglass")


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, on the host or on a device."""
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    # On the host PyTorch raises a plain one.
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def report_exhaustion(records: CapturedRecords, what: str, error: Exception) -> None:
    """Log and record that capture of one kind of tensors has stopped."""
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    _log.warning(
        "watchglass: stopped capturing %s: out of memory (%s); the run continues. Lower capture_memory_bytes, or keep "
        "fewer of these tensors in collections",
        what, reason,
    )  # fmt: skip
    records.add_fact(facts.CaptureOutOfMemory(f"{type(error).__name__}: {reason}"), what)


_UNKNOWN: Any = object()

#: Rows that are added to the records of a step.
_Rows = dict[RowKind, list[Any]]


class Item(NamedTuple):
    """A tensor to be saved."""

    tensor: Any  #: Any array; one whose values cannot be read is left out.
    name: str  #: Its name in the run.
    place: Place = NOWHERE  #: The module it belongs to.
    tags: tuple[str, ...] = ()  #: Its tags from structure, see :class:`~watchglass.config.Collection`.
    unit_axis: int | None = None  #: Axis that counts units, or None.
    trainable: bool | None = None  #: Whether an optimizer may change it; None where that has no meaning.
    before: Any = None  #: Its older value; then the difference is saved.
    sampled: bool = False  #: Whether it stands for more than it holds: a fixed sample.
    whole: Any = None  #: The tensor that it is a sample of, where that is one; then only its statistics are saved.


class Saving:
    """Saves tensors as the plan asks: statistics, histogram, exact reductions, shape, the tensor itself.

    Args:
        plan: What is kept of them.
        ids: Their numbers.
        cost: Counts memory and time of devices.
        arrays: Who reads the tensors; None for the framework of each.
    """

    def __init__(self, plan: Plan, ids: TensorIds, cost: Cost, arrays: Arrays | None = None) -> None:
        self._plan, self._catalog, self._cost, self._arrays = plan, ids, cost, arrays
        self._seed = 0
        # Ids by role and name.
        self._ids: dict[Role, dict[str, int]] = {role: {} for role in Role}
        # Names of tensors that cannot be read, and reasons why none of some kind can: each is reported once.
        self._unreadable: set[str] = set()
        # Kinds of tensors that memory ran out for.
        self._given_up: set[Role] = set()

    def arrays_of(self, tensor: Any) -> Arrays:
        """Who reads a tensor."""
        return self._arrays or arrays_of(tensor)

    def keep(self, role: Role, item: Item) -> Keep | None:
        """The form in which a tensor is kept at this step, None for none."""
        return None if role in self._given_up else self._plan.keep(item.name, role, item.place, item.tags)

    def give_up(self, records: CapturedRecords, role: Role, error: Exception) -> None:
        """Memory ran out for tensors of a role: save none of them from now on."""
        if role not in self._given_up:
            self._given_up.add(role)
            report_exhaustion(records, f"{role.value.replace('_', ' ')} tensors", error)

    def save(self, records: CapturedRecords, role: Role, item: Item) -> int | None:
        """Save one tensor; returns its id, or None where it is not kept or cannot be read."""
        saved = self.save_all(records, role, (item,))
        return saved[0] if saved else None

    def save_all(self, records: CapturedRecords, role: Role, items: Sequence[Item], scale: Any = None) -> list[int]:
        """Save tensors of one framework, each read once; returns the ids of those that are kept.

        Args:
            records: Records of the step.
            role: Role of the tensors.
            items: The tensors.
            scale: Factor of a scaler: values are divided by it.
        """
        return self._saved(records, records.rows, role, items, scale, self._plan.answers)

    def save_by_hand(self, records: CapturedRecords, role: Role, item: Item, keep: Keep) -> None:
        """Save what a script saves, which counts instead of what is captured under its name."""
        self._saved(records, records.saved, role, (item,), None, {item.name: keep})

    def _saved(
        self, records: CapturedRecords, rows: _Rows, role: Role, items: Sequence[Item], scale: Any,
        keeps: Mapping[str, Keep | None],
    ) -> list[int]:  # fmt: skip
        if not items or role in self._given_up:
            return []
        lengths = {kind: len(added) for kind, added in rows.items()}
        try:
            return self._added(records, rows, role, items, scale, keeps)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for kind, added in rows.items():
                del added[lengths.get(kind, 0) :]
            self.give_up(records, role, error)
            return []

    def _added(
        self, records: CapturedRecords, rows: _Rows, role: Role, items: Sequence[Item], scale: Any,
        keeps: Mapping[str, Keep | None],
    ) -> list[int]:  # fmt: skip
        # Runs for every tensor of a captured step: known answers are looked up here.
        arrays, known = self.arrays_of(items[0].tensor), self._ids[role]
        ids: list[int] = []
        together: dict[Any, tuple[list[int], list[Any], list[Any]]] = {}
        kind: Any = None
        chosen: tuple[list[int], list[Any], list[Any]] = ([], [], [])
        for item in items:
            keep = keeps.get(item.name, _UNKNOWN)
            if keep is _UNKNOWN:
                keep = self.keep(role, item)
            if keep is None:
                continue
            try:
                value = arrays.values(item.tensor)
            except Exception as error:
                self._unread(item, error)
                continue
            if value is None:
                continue
            tensor_id = known.get(item.name)
            if tensor_id is None:
                info = functools.partial(self._info, arrays, role, item)
                tensor_id = known[item.name] = self._catalog.of((role, item.name), info)
            ids.append(tensor_id)
            before = None if item.before is None else arrays.values(item.before)
            this = (getattr(value, "device", None), keep.histogram, item.sampled, before is not None)
            if this != kind:
                kind, chosen = this, together.setdefault(this, ([], [], []))
            chosen[0].append(tensor_id)
            chosen[1].append(value)
            if before is not None:
                chosen[2].append(before)
            if keep.shape:
                shape = arrays.describe(value if item.whole is None else item.whole).shape
                records.add_fact(facts.TensorShape(item.name, shape), "capture")
            if (keep.raw or keep.reductions) and isinstance(value, OwnArray):
                # The step was compiled before the configuration asked for these values.
                self._unread(item, NoValuesError("as its compiled step returns its statistics alone"))
            elif (keep.raw or keep.reductions) and item.whole is None:
                value = value if before is None else value - before
                taken = arrays.take(value if scale is None else value / scale)
                if keep.raw:
                    rows.setdefault(RAW, []).append(RawTensor(tensor_id, taken.array, taken.dtype))  # type: ignore[arg-type]
                for wanted in keep.reductions:
                    number = taken.computed(functools.partial(exact_reduction, reduction=wanted))
                    rows.setdefault(REDUCTIONS, []).append((tensor_id, wanted, number))
        for (_, histograms, sampled, _), (saved, values, older) in together.items():
            self._seed += 1
            found, binned = arrays.statistics(Read(values, older or None, scale, histograms, self._seed), self._cost)
            rows.setdefault(STATISTICS, []).append(Captured(saved, found, sampled, binned))
        return ids

    def readable(self, item: Item) -> Any:
        """A tensor's values; None, and a warning the first time, where they cannot be read."""
        try:
            return self.arrays_of(item.tensor).values(item.tensor)
        except Exception as error:
            self._unread(item, error)
            return None

    def _unread(self, item: Item, error: Exception) -> None:
        if is_out_of_memory(error):
            raise error
        # The class of the tensor may raise anything.
        of_a_kind = isinstance(error, NoValuesError)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        once = reason if of_a_kind else item.name
        if once not in self._unreadable:
            self._unreadable.add(once)
            _log.warning("watchglass: %s is not recorded%s %s", item.name, "," if of_a_kind else ":", reason)

    def _info(self, arrays: Arrays, role: Role, item: Item) -> TensorInfo:
        about = arrays.describe(item.tensor if item.whole is None else item.whole)
        return item.place.describe(
            item.name, role, shape=about.shape, dtype=about.dtype, placement=about.placement,
            unit_axis=item.unit_axis, trainable=item.trainable,
            collections=self._plan.collections_of(item.name, role, item.place, item.tags),
        )  # fmt: skip
